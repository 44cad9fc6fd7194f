"""A session id is as valuable as a login: only the client of the session sees it."""

import asyncio
import logging
from typing import Any

import pytest

from toolpost import Client, Server
from toolpost.protocol.revisions import LATEST_SESSION


@pytest.mark.requirement("HTTPL-24")
def test_the_id_of_a_session_is_neither_logged_nor_reported(caplog):
    caplog.set_level(logging.DEBUG)
    server = Server("secret")
    app = server.asgi()

    async def main() -> tuple[str, str]:
        async with Client("http://127.0.0.1/mcp", http=app, revision=LATEST_SESSION.date) as client:
            channel: Any = client._session.dispatcher._channel
            name = channel._session.id
            with pytest.raises(Exception, match="tools") as caught:
                await client.call_tool("nope")
            shown = [repr(client), repr(channel), str(caught.value), repr(client.stats)]
        return name, " ".join(shown)

    name, shown = asyncio.run(main())
    assert len(name) >= 32
    assert name not in shown + caplog.text
