"""Benchmarks against other libraries and against the limit; `python -m bench` runs all of them."""
