"""RING 2: what a server author uses. How a function becomes a tool, a prompt or a resource, and is called."""
