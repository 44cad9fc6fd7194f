"""The tools, resources and prompts of a server, and how they are listed and served."""
