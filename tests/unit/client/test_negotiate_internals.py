"""Which revision a client ends up with, against servers of every kind, decent and not."""

import logging
from typing import Any

import msgspec
import pytest

from raw_server import RawServer, run
from toolpost.channel import Channel
from toolpost.client.client import Client
from toolpost.client.negotiate import Way
from toolpost.errors import ChannelClosed, ConnectFailed
from toolpost.protocol.methods import DATES

SESSIONS = DATES[:-1]
WELCOME = {
    "protocolVersion": DATES[3],
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "old", "version": "1"},
}
NOT_FOUND = {"code": -32601, "message": "Method not found"}
EXIT = "exit"


class Odd:
    """A server that answers by a table: method → result, error, silence, exit, or a list of those in turn."""

    def __init__(self, **table: Any) -> None:
        self.table = {name.replace("__", "/"): answer for name, answer in table.items()}
        self.heard: list[list[str]] = []

    async def serve(self, channel: Channel) -> None:
        heard: list[str] = []
        self.heard.append(heard)
        try:
            while True:
                message = msgspec.json.decode(await channel.receive())
                heard.append(message["method"])
                answer = self.table.get(message["method"])
                if isinstance(answer, list):
                    answer = answer.pop(0)
                if answer == EXIT:
                    return
                if isinstance(answer, dict) and "id" in message:
                    kind = "error" if "code" in answer else "result"
                    await channel.send(
                        msgspec.json.encode({"jsonrpc": "2.0", "id": message["id"], kind: answer})
                    )
        except ChannelClosed:
            pass


@pytest.mark.requirement("LIFE-8")
def test_the_newest_session_is_offered():
    async def main() -> None:
        offered: list[Any] = []

        async def greet(asked: Any) -> Any:
            offered.append(asked.params)
            return asked.server.connection.party.introduce(
                asked.server.connection.incoming[asked.id].peer.revision
            )

        server = RawServer({"initialize": greet}, supported=SESSIONS)
        async with Client(server, name="me", version="3", title="Me"):
            (params,) = offered
            assert params.protocol_version == SESSIONS[-1]
            assert (params.client_info.name, params.client_info.version, params.client_info.title) == (
                "me",
                "3",
                "Me",
            )

    run(main())


def test_a_target_that_cannot_be_reached_is_an_error():
    async def main() -> None:
        async def open_it() -> Channel:
            raise FileNotFoundError("no such file: server")

        client = Client(RawServer())
        client._talk._way = Way("server", open_it)
        with pytest.raises(ConnectFailed, match="server: it cannot be reached: no such file") as caught:
            await client.connect()
        assert caught.value.sent is False

    run(main())


def test_a_verdict_that_proves_wrong_on_a_channel_is_an_error(caplog):
    async def main() -> None:
        client = Client(Odd(initialize=[WELCOME, NOT_FOUND], server__discover=NOT_FOUND))
        async with client:
            pass
        client._talk._way = client._talk._way._replace(again=False)
        with pytest.raises(ConnectFailed, match="Method not found"):
            await client.connect()

    with caplog.at_level(logging.DEBUG):
        run(main())
