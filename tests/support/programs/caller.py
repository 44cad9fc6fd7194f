"""A client to be killed or stopped. Its argument has the target, the options and the actions, as JSON.

It writes one line when it is busy, and one when it is done.
"""

import asyncio
import json
import sys
from typing import Any

from toolpost import Client

settings: dict[str, Any] = json.loads(sys.argv[1])


async def main() -> None:
    target, calls = settings["target"], settings["calls"]
    busy = asyncio.Barrier(calls + 1)

    async def begun(_: object) -> None:
        await busy.wait()

    async def heard(*_: object) -> None:
        """The value is ignored; a listener may use it."""

    async def hanging(mcp: Client) -> None:
        await mcp.call_tool("hang", progress=begun, timeout=None)

    async with Client(target, revision=settings["revision"], on_notification=heard) as mcp:
        server = (await mcp.call_tool("pid")).text
        waiting = [asyncio.create_task(hanging(mcp)) for _ in range(calls)]
        await busy.wait()
        print(server, flush=True)  # noqa: T201 - for the test to wait for
        for count in range(settings.get("echoes", 0)):
            await mcp.call_tool("echo", {"text": str(count)})
        for call in waiting:
            await call
    print("done", flush=True)  # noqa: T201 - as above


asyncio.run(main())
