"""The judge is a program beside the library: its modules, and those of interop that it shares, are found."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "conformance"), str(ROOT / "interop")]
