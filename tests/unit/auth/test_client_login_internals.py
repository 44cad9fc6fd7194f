"""The whole login, from the first 401 to a call that succeeds."""

import asyncio
import logging
from math import inf
from typing import Any

import pytest

from fake_authorization_site import AuthSites, browse, run
from toolpost import AuthError


def test_timeouts_are_paused_during_a_login():
    async def visit(sites: AuthSites) -> None:
        ends: list[float | None] = []

        async def think(url: str) -> str:
            talk = client._session
            if talk.reconnector.is_connected:
                ends.extend(call.deadline for call in talk.dispatcher.calls.values())
            elif talk._connect_scope is not None:
                ends.append(talk._connect_scope.when())
            return await browse(url)

        client = sites.client(sites.oauth(open_url=think), revision=None)
        async with client as mcp:
            sites.valid.clear()
            sites.refresh.clear()
            assert (await mcp.call_tool("anything")).text == "done"
        assert ends == [None, inf]

    run(visit)


# --------------------------------------------------------------------- secrets are not shown


@pytest.mark.requirement("AUTH-60", "AUTH-68")
def test_no_secret_is_logged_or_shown(caplog):
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    async def visit(sites: AuthSites) -> None:
        auth = sites.oauth(client_id="me", client_secret="my secret", issuer=sites.issuer)
        sites.token = {"expires_in": 0}
        async with sites.client(auth) as mcp:
            await mcp.call_tool("anything")
            sites.refresh.clear()
            sites.valid.clear()
            sites.redirect = lambda said: {"error": "access_denied", "state": said["state"]}
            with pytest.raises(AuthError) as caught:
                await mcp.call_tool("anything")
            account: Any
            [account] = auth._providers[asyncio.get_running_loop()].values()
            shown.extend([repr(caught.value), str(caught.value), repr(auth), repr(mcp), repr(account)])
            shown.extend([repr(account._cache.tokens), str(auth.storage)])

    run(visit)
    text = "".join([caplog.text, *shown])
    for secret in ("access-", "refresh-", "my secret", "code-1", "bXk"):
        assert secret not in text, secret
