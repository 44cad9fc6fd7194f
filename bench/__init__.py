"""Speed, measured beside the peers and beside the limit; `python -m bench` runs all of it."""
