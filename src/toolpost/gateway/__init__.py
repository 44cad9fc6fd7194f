"""Several servers as one: `Server.mount` loads it on demand."""
