"""Makes the modules of the conformance runner importable, and those of interop that it uses."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "conformance"), str(ROOT / "interop")]
