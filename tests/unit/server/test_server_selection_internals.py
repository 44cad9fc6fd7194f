"""A selection of a server's entries: live, shared, and nothing else of the server changed."""

import asyncio

from toolpost import Client, Context, Server
from toolpost.protocol.methods import ALWAYS, DATES, Row
from toolpost.types import Params, Result


def test_a_subclass_stays_one_and_its_routes_are_its_own():
    class Mine(Server):
        def __init__(self) -> None:
            super().__init__("mine", extra_methods=[Row("example/count", Params, Result, client=ALWAYS)])
            self.routes = {**self.routes, "example/count": self.count, "ping": lambda ctx, params: Result()}

        def count(self, ctx: Context, params: Params) -> Result:
            return Result(meta={"com.example/count": len(self.tools)})

    async def main() -> int:
        server = Mine()
        for name in ("a", "b"):
            server.tool(name=name)(lambda: "")
        async with Client(server.select(lambda handle: handle.name == "a"), revision=DATES[-2]) as client:
            await client.ping()
            return ((await client.request("example/count", {})).meta or {})["com.example/count"]

    assert asyncio.run(main()) == 1
