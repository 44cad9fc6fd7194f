"""The limit over stdio: read, find the lines, answer each, write: `limit_stdio.py [CORE]`."""

import os
import sys

from answers import reply

if len(sys.argv) > 1:  # a client that starts us would have us on its own core
    os.sched_setaffinity(0, {int(sys.argv[1])})
rest = b""
while data := os.read(0, 1 << 16):
    *lines, rest = (rest + data).split(b"\n")
    answers = [answer for line in lines if (answer := reply(line))]
    if answers:
        os.write(1, b"\n".join(answers) + b"\n")
