"""`toolpost install`: adds a server to the configuration of a host."""
