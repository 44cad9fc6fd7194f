"""Starts the echo server on its own stdin and stdout, and waits to be killed."""

import signal
import subprocess
import sys
from pathlib import Path

subprocess.Popen([sys.executable, Path(__file__).with_name("echo.py"), "--parent-check=0.02"])
signal.pause()
