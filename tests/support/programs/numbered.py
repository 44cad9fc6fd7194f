"""A server that says which process it is; its tools have the names that it is given."""

import os
import sys
from typing import Any

from toolpost import Context, Server
from toolpost.types import ToolAnnotations

server = Server("numbered")


def pid() -> int:
    return os.getpid()


async def whoami(ctx: Context) -> dict[str, Any]:
    return {"name": sys.argv[1:], "client": ctx.client.info and ctx.client.info.name}


for name in sys.argv[1:] or ["pid"]:
    hints = ToolAnnotations(destructive_hint=True) if name == "wipe" else None
    register = server.tool(name=name, annotations=hints)
    if name == "whoami":
        register(whoami)
    else:
        register(pid)

if __name__ == "__main__":
    server.run()
