"""What single steps of a call cost; `python -m bench.micro` prints it."""
