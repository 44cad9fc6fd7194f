"""PyPI's `mcp` over HTTP, as its documentation recommends: `mcp_http.py PORT json|sse [TOOLS] [WITH]`."""

import sys

from mcp_server import make_server


def main(port: str, mode: str, tools: str = "0", switch: str = "") -> None:
    """Serve."""
    server = make_server(f"http://127.0.0.1:{port}/mcp", switch, int(tools))
    server.run("streamable-http", port=int(port), json_response=mode == "json")


main(*sys.argv[1:])
