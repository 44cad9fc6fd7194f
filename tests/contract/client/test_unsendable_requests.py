"""Requests that HTTP headers cannot carry fail as mistakes of the caller; the connection stays usable."""

import asyncio
from typing import Annotated, Any

import pytest

from toolpost import Client, Header, Server, SyncClient
from toolpost.errors import RequestFailed


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", b"{}"),
        ("tools/call", b'{"name":5}'),
        ("tools/call", b'{"name":"route","arguments":{"region":{"a":1}}}'),
        ("no/m\u00e9thode", b"{}"),
        ("no/line\r\nbreak", b"{}"),
    ],
)
def test_a_request_that_headers_cannot_carry_fails_alone(method: str, params: bytes):
    server = Server("shop")

    @server.tool
    def route(region: Annotated[str, Header("Region")]) -> str:
        return region

    async def main() -> None:
        app = server.asgi()
        async with (
            app.lifespan(),
            Client("http://127.0.0.1/mcp", http=app, revision="2026-07-28") as client,
        ):
            await client.list_tools()
            for _ in range(8):  # as often as would make a server count as out of reach
                with pytest.raises(RequestFailed):
                    await client.forward(method, params)
            assert (await client.call_tool("route", {"region": "eu"})).text == "eu"

    asyncio.run(main())


def test_an_argument_that_is_no_string_is_named():
    server = Server("s")

    @server.prompt
    def ask(number: int) -> str:
        return f"Number {number}?"

    with SyncClient(server) as client:
        wrong: Any = {"number": 1}
        with pytest.raises(TypeError, match=r"^arguments\['number'\] must be a string, not int$"):
            client.get_prompt("ask", wrong)
        with pytest.raises(TypeError, match=r"^context\['number'\] must be a string, not int$"):
            client.complete("ask", "number", context=wrong)
        assert client.get_prompt("ask", {"number": "1"}).messages
