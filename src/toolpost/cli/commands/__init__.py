"""The small commands, one module each."""
