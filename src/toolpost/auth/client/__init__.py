"""What a client does about tokens: it gets, keeps, renews and sends them."""
