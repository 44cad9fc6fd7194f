"""Login with a provider: the server is an authorization server that leaves the login to another one."""
