# ruff: noqa: T201 - a program that prints
"""Starts a grandchild that ignores the end of stdin, and prints its pid; then waits, or exits immediately."""

import os
import signal
import sys

stubborn = "stubborn" in sys.argv
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready, say_ready = os.pipe()
grandchild = os.fork()
if grandchild == 0:
    os.write(say_ready, b"1")
    while True:
        signal.pause()
os.read(ready, 1)
print(grandchild, flush=True)
if "leave" not in sys.argv:
    sys.stdin.read()
    if stubborn:
        while True:
            signal.pause()
