"""The lines that a server prints when it starts, and the state of its parts in the readiness check."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolpost import Auth, Server

HINT = "hint: requests to another name than localhost get status 403"


async def announce(server: Server, capfd: pytest.CaptureFixture[str], address: str, **options: Any) -> str:
    """Return what a server prints before it serves."""
    task = asyncio.create_task(server.serve_http(address, **options))
    said = ""
    while "\n" not in said:
        await asyncio.sleep(0)
        said += capfd.readouterr().err
    task.cancel()
    await asyncio.wait([task])
    return said


async def accept(token: str) -> str | None:
    return None


def make_auth() -> Auth:
    return Auth("https://login.example.com", resource="https://mcp.example.com/mcp", verifier=accept)


@pytest.mark.parametrize(
    ("address", "more", "options", "facts", "hinted"),
    [
        ("127.0.0.1:0", {}, {}, "(auth: none, workers: 1, store: memory)", False),
        ("0.0.0.0:0", {}, {}, "(auth: none, workers: 1, store: memory)", True),
        ("0.0.0.0:0", {}, {"public_url": "https://mcp.example.com"}, "(auth: none,", False),
        ("0.0.0.0:0", {}, {"allowed_hosts": ["*"]}, "(auth: none,", False),
        ("0.0.0.0:0", {"auth": make_auth()}, {}, "(auth: on,", False),
    ],
)
def test_the_line_says_where_and_how(
    address: str, more: Any, options: Any, facts: str, hinted: bool, capfd: pytest.CaptureFixture[str]
):
    said = asyncio.run(announce(Server("shop", **more), capfd, address, **options))
    assert said.startswith(f"shop serves MCP at http://{address.partition(':')[0]}:")
    assert facts in said
    assert (HINT in said) is hinted


async def ask_ready(app: Any) -> tuple[int, Any]:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "GET", "path": "/health/ready", "headers": []}
    await app(scope, asyncio.Event().wait, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_a_ready_server_names_its_parts():
    async def main() -> None:
        app = Server("shop").asgi(health="/health")
        async with app.lifespan():
            expected = {"status": "ready", "lifespan": "started", "store": "available"}
            assert await ask_ready(app) == (200, expected)
        status, parts = await ask_ready(app)
        assert (status, parts["status"], parts["lifespan"]) == (503, "not ready", "stopping")

    asyncio.run(main())


def test_a_server_whose_lifespan_fails_is_not_ready(caplog: pytest.LogCaptureFixture):
    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncGenerator[None]:
        raise RuntimeError("no database")
        yield

    async def main() -> None:
        status, parts = await ask_ready(Server("shop", lifespan=lifespan).asgi(health="/health"))
        assert (status, parts["lifespan"]) == (503, "failed")

    asyncio.run(main())
    assert "no database" in caplog.text
