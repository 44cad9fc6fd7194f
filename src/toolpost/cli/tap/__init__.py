"""`toolpost tap`: shows the messages between a client and a server."""
