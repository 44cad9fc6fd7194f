"""What a server does about tokens: it verifies them and says how to get one."""
