"""Fuzzing: bytes that nobody would send, thrown at whatever reads bytes. README.md says how to use it."""
