"""Authorization of a client: get, store, refresh and send tokens."""
