"""toolpost over HTTP, as docs/http.md recommends: `toolpost_http.py PORT [TOOLS] [WITH]`.

WITH names the option to enable, so that its cost can be measured.
"""

import sys

from toolpost_server import make_server


def main(port: str, tools: str = "0", switch: str = "", *_: str) -> None:
    """Serve."""
    server = make_server(f"http://127.0.0.1:{port}/mcp", switch, int(tools))
    server.run(http=f"127.0.0.1:{port}", metrics="/metrics" if switch == "metrics" else None)


main(*sys.argv[1:])
