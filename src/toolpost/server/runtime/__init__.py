"""Serves requests, notifications and connections: everything between a channel and a function."""
