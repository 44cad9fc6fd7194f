"""Selections of a server's entries: they follow changes, share everything else, and change nothing."""

import asyncio

from toolpost import Client, Context, Extension, Server
from toolpost.protocol.methods import DATES
from toolpost.types import Params, Result


def test_a_subclass_stays_one_and_its_routes_are_its_own():
    counting = Extension("com.example/counting", since=DATES[0])
    counting.method("example/count", Params, Result)

    class Mine(Server):
        def __init__(self) -> None:
            super().__init__("mine", extensions=[counting])
            self.routes = {**self.routes, "example/count": self.count, "ping": lambda ctx, params: Result()}

        def count(self, ctx: Context, params: Params) -> Result:
            return Result(meta={"com.example/count": len(self.tools)})

    async def main() -> int:
        server = Mine()
        for name in ("a", "b"):
            server.tool(name=name)(lambda: "")
        part = server.select(lambda handle: handle.name == "a")
        async with Client(part, revision=DATES[-2], extensions=[counting]) as client:
            await client.ping()
            return ((await client.request("example/count", {})).meta or {})["com.example/count"]

    assert asyncio.run(main()) == 1
