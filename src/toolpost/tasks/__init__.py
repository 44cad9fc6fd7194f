"""Tasks of a server: calls of tools that outlast their request, of both kinds, over one engine."""
