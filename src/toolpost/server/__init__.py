"""The API for server authors: turns functions into tools, prompts and resources, and calls them."""
