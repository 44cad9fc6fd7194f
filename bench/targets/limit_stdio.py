"""The limit over stdio: read, find the lines, answer each, write: `limit_stdio.py [CORE]`."""

import os
import sys

from answers import reply

if len(sys.argv) > 1:  # otherwise it would share the core of the client that starts it
    os.sched_setaffinity(0, {int(sys.argv[1])})
rest = b""
while data := os.read(0, 1 << 16):
    *lines, rest = (rest + data).split(b"\n")
    answers = [answer for line in lines if (answer := reply(line))]
    if answers:
        os.write(1, b"\n".join(answers) + b"\n")
