"""`toolpost install`: writes a server into the configuration of a host."""
