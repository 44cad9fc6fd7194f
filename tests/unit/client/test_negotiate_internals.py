"""The revision that a client negotiates with every kind of server, conforming or not."""

import logging
from typing import Any

import pytest

from odd_server import NOT_FOUND, SESSIONS, WELCOME, Odd
from raw_server import RawServer, run
from toolpost.channel import Channel
from toolpost.client.client import Client
from toolpost.client.connection.negotiate import Connector
from toolpost.errors import ConnectFailed


@pytest.mark.requirement("LIFE-8")
def test_the_newest_session_is_offered():
    async def main() -> None:
        offered: list[Any] = []

        async def greet(asked: Any) -> Any:
            offered.append(asked.params)
            return asked.server.connection.local_peer.introduce(
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
        client._session._connector = Connector("server", open_it)
        with pytest.raises(ConnectFailed, match="server: could not connect: no such file") as caught:
            await client.connect()
        assert caught.value.sent is False

    run(main())


def test_a_verdict_that_proves_wrong_on_a_channel_is_an_error(caplog):
    async def main() -> None:
        client = Client(Odd(initialize=[WELCOME, NOT_FOUND], server__discover=NOT_FOUND))
        async with client:
            pass
        client._session._connector = client._session._connector._replace(can_reopen=False)
        with pytest.raises(ConnectFailed, match="Method not found"):
            await client.connect()

    with caplog.at_level(logging.DEBUG):
        run(main())
