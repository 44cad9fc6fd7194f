"""`toolpost doctor`: finds out why a server does not work."""
