"""Every kind of target, and what is said about those that are none."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raw_server import Clock, RawServer, run
from toolpost.channel import Channel
from toolpost.client.client import Client
from toolpost.connect import SERVER_PATIENCE, way_to
from toolpost.errors import ChannelClosed
from toolpost.protocol.methods import DATES
from toolpost.testing import ScriptedChannel

OLD = DATES[0]


# --------------------------------------------------------------------- URLs, nonsense


ANSWER = {
    "server/discover": {"resultType": "complete", "supportedVersions": [DATES[-1]], "capabilities": {}},
    "initialize": {
        "protocolVersion": OLD,
        "capabilities": {},
        "serverInfo": {"name": "old", "version": "1"},
    },
}


class Wire:
    """A backend of HTTP that answers JSON, and remembers what it was sent."""

    def __init__(self, *refuse: str) -> None:
        self.refuse = refuse
        self.sent: list[tuple[str, str, dict[str, str], str]] = []

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Any, body: bytes | None = None
    ) -> AsyncGenerator["Said"]:
        message = json.loads(body or b'{"method": null}')
        self.sent.append((method, url, dict(headers), message["method"]))
        if method == "GET":
            yield Said(200, {"content-type": "text/event-stream"}, b"event: endpoint\ndata: /post\n\n")
        elif message["method"] in self.refuse:
            yield Said(404, {}, b"")
        elif "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWER[message["method"]]}
            yield Said(200, {"content-type": "application/json"}, json.dumps(answer).encode())
        else:
            yield Said(202, {}, b"")

    async def close(self) -> None:
        pass


class Said:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    async def chunks(self) -> Any:
        yield self.body

    async def read(self, limit: int = 0) -> bytes:
        return self.body


def test_a_file_leads_to_a_url(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"url": "http://host/mcp", "headers": {"a": "1"}}}}')

    async def main() -> None:
        http = Wire("server/discover")
        async with Client(path, headers={"b": "2"}, http=http) as client:
            assert client.era == "session"
        assert {(headers["a"], headers["b"]) for _, _, headers, _ in http.sent} == {("1", "2")}
        channel = await way_to(path, http=http).open()
        await channel.close()

    run(main())


def test_what_is_known_of_a_url_is_for_the_next_client_unless_the_user_carries_the_requests():
    assert way_to("http://host/mcp").key == "http://host/mcp"
    assert way_to("http://host/mcp", http="httpx2").key == "http://host/mcp"
    assert way_to("http://host/mcp", http=Wire()).key is None
    assert way_to({"url": "http://host/sse", "type": "sse"}).session
    assert way_to("http://host/mcp?token=x").name == "http://host/mcp"


def test_a_way_has_a_name():
    class Named(RawServer):
        name = "weather"

    assert way_to(Named()).name == "weather"
    assert way_to(RawServer()).name == "RawServer"
    assert way_to(ScriptedChannel()).name == "ScriptedChannel"
    assert way_to("x/mcp.json", "one").name == "x/mcp.json, one"
    assert way_to("x/mcp.json").name == "x/mcp.json"
    assert way_to(["python", "-m", "server"]).name == "python server"


def test_a_server_that_does_not_end_is_cancelled(caplog):
    ended: list[str] = []

    class Stubborn(RawServer):
        async def serve(self, channel: Channel) -> None:
            await super().serve(channel)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("at last")

    async def main() -> None:
        client = Client(Stubborn())
        async with client:
            served = client._talk.link._channel
        with pytest.raises(ChannelClosed):
            await served.receive()
        assert ended == ["at last"]
        assert asyncio.get_running_loop().time() == SERVER_PATIENCE

    run(main(), Clock)
    assert "is cancelled" in caplog.text


def test_a_command_line_may_end_with_the_name_of_a_file():
    assert way_to("python3 serve.py --config conf.json").name == "python3 serve.py"
