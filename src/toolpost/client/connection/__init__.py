"""One connection to a server: negotiation, requests in flight, reconnecting, retries."""
