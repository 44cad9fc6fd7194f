"""Several servers as one: a configuration file, policies, credentials, and what happened."""
