"""How requests, notifications and connections run: what happens between a channel and a function."""
