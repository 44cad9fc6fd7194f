"""Every kind of target, and the errors for invalid ones."""

import asyncio

import pytest

from raw_server import Clock, RawServer, run
from toolpost.channel import Channel
from toolpost.client.client import Client
from toolpost.connect import SERVER_CLOSE_TIMEOUT, TargetOptions, make_connector
from toolpost.errors import ChannelClosed
from toolpost.testing import ScriptedChannel
from wire_server import Wire


def test_a_file_leads_to_a_url(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"url": "http://host/mcp", "headers": {"a": "1"}}}}')

    async def main() -> None:
        http = Wire("server/discover")
        async with Client(path, headers={"b": "2"}, http=http) as client:
            assert client.era == "session"
        assert {(headers["a"], headers["b"]) for _, _, headers, _ in http.sent} == {("1", "2")}
        channel = await make_connector(path, TargetOptions(http=http)).open()
        await channel.close()

    run(main())


def test_the_attributes_of_a_context():
    assert make_connector("http://host/mcp").key == "http://host/mcp"
    assert make_connector("http://host/mcp", TargetOptions(http="httpx2")).key == "http://host/mcp"
    assert make_connector("http://host/mcp", TargetOptions(http=Wire())).key is None
    assert make_connector({"url": "http://host/sse", "type": "sse"}).session
    assert make_connector("http://host/mcp?token=x").name == "http://host/mcp"


def test_a_connector_has_a_name():
    class Named(RawServer):
        name = "weather"

    assert make_connector(Named()).name == "weather"
    assert make_connector(RawServer()).name == "RawServer"
    assert make_connector(ScriptedChannel()).name == "ScriptedChannel"
    assert make_connector("x/mcp.json", TargetOptions("one")).name == "x/mcp.json, one"
    assert make_connector("x/mcp.json").name == "x/mcp.json"
    assert make_connector(["python", "-m", "server"]).name == "python server"


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
            served = client._session.dispatcher._channel
        with pytest.raises(ChannelClosed):
            await served.receive()
        assert ended == ["at last"]
        assert asyncio.get_running_loop().time() == SERVER_CLOSE_TIMEOUT

    run(main(), Clock)
    assert "cancelling it" in caplog.text


def test_a_command_line_may_end_with_the_name_of_a_file():
    assert make_connector("python3 serve.py --config conf.json").name == "python3 serve.py"
