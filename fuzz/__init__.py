"""Fuzzing of everything that parses bytes. See README.md."""
