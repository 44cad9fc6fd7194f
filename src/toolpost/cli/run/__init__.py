"""`toolpost run`: loads a server from a file and serves it."""
