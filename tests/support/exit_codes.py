"""The exit codes of the command line, as docs/cli.md promises them."""

__all__ = ["CLOSED_PIPE", "FAILED", "INTERRUPTED", "OK", "REFUSED", "UNREACHABLE", "USAGE"]

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
REFUSED = 4
INTERRUPTED = 130
CLOSED_PIPE = 141
