"""Unattended requests: they use a token, or wait for one, and never open a login page."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from fake_authorization_site import CALLED, DISCOVERED, AuthSites, browse, run, scripted
from scripted import Heard, answer, event, stream
from toolpost import AuthError, Client
from toolpost.channel import is_unattended, mark_unattended
from toolpost.protocol.methods import DATES
from toolpost.transports.credentials import CredentialsRejection, OutgoingRequest
from toolpost.types import SUBSCRIPTION_ID

SESSION = DATES[3]
WELCOME = {
    "protocolVersion": SESSION,
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "old", "version": "1"},
}


class SessionAuthSites(AuthSites):
    """A server of the session era, whose stream may be refused."""

    def __init__(self) -> None:
        super().__init__()
        self.for_streams: set[str] = set()
        self.refused, self.streaming = asyncio.Event(), asyncio.Event()
        self.streams: list[str] = []

    async def serve_mcp(self, heard: Heard) -> None:
        if heard.method != "GET" or heard.path != "/mcp":
            await super().serve_mcp(heard)
            return
        token = heard.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.for_streams:
            await heard.write(answer(401, kind=None, WWW_Authenticate=self.challenge_of_server()))
            self.refused.set()
            return
        self.streams.append(token)
        await heard.write(stream(end=False))
        self.streaming.set()
        await heard.gone()

    async def answer_mcp(self, heard: Heard) -> bytes:
        message = msgspec.json.decode(heard.body) if heard.body else {}
        token = heard.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.valid:
            return answer(401, kind=None, WWW_Authenticate=self.challenge_of_server())
        if "id" not in message:
            return answer(202, kind=None)
        result = WELCOME if message["method"] == "initialize" else CALLED
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return answer(body=msgspec.json.encode(reply), Mcp_Session_Id="s1")


def run_session_sites(work: Any) -> None:
    async def visit() -> None:
        it = SessionAuthSites()
        async with scripted(it.serve_mcp) as server, scripted(it.serve_issuer, "") as issuer:
            it.server, it.issuer = server.url, issuer.url
            await work(it)

    asyncio.run(visit())


def test_a_rejected_stream_opens_no_browser_and_resumes_after_a_login():
    async def visit(sites: SessionAuthSites) -> None:
        sites.token = {"refresh_token": ...}
        looked = asyncio.Event()

        def described(_heard: Heard) -> bytes:
            if sites.refused.is_set():
                looked.set()
            return answer(body=msgspec.json.encode(sites.describe_issuer()))

        wanted, windows = False, list[bool]()

        async def note(url: str) -> str:
            windows.append(wanted)
            return await browse(url)

        sites.paths["/.well-known/oauth-authorization-server"] = described
        async with sites.client(sites.oauth(open_url=note), revision=SESSION) as mcp:
            await sites.refused.wait()
            await looked.wait()
            for _ in range(3):
                await mcp.call_tool("anything")  # with the token that is good for all but the stream
            wanted = True
            sites.valid.clear()
            sites.for_streams = {"access-2-secret"}
            await mcp.call_tool("anything")
            await sites.streaming.wait()
        assert windows == [False, True]
        assert sites.streams == ["access-2-secret"]

    run_session_sites(visit)


def test_a_stream_that_is_refused_gets_a_refreshed_token():
    async def visit(sites: SessionAuthSites) -> None:
        sites.for_streams = {"access-2-secret"}
        async with sites.client(revision=SESSION):
            await sites.streaming.wait()
        assert sites.grants == ["authorization_code", "refresh_token"]

    run_session_sites(visit)


def test_a_background_request_asks_for_no_more_scopes():
    async def visit(sites: AuthSites) -> None:
        auth = sites.oauth()
        async with sites.client(auth):
            errand = OutgoingRequest(sites.server, "GET", sites.server, unattended=True)
            refusal = {"www-authenticate": 'Bearer error="insufficient_scope", scope="all"'}
            assert not await auth.on_rejected(
                errand, CredentialsRejection(403, refusal, await auth.headers(errand))
            )
        assert len(sites.authorized) == 1

    run(visit)


def test_a_failed_login_does_not_end_background_requests():
    async def visit(sites: AuthSites) -> None:
        auth = sites.oauth()
        errand = OutgoingRequest(sites.server, "GET", sites.server, unattended=True)
        refused = CredentialsRejection(
            401, {"www-authenticate": sites.challenge_of_server()}, await auth.headers(errand)
        )
        waiting = asyncio.create_task(auth.on_rejected(errand, refused))
        sites.redirect = lambda said: {"error": "access_denied", "state": said["state"]}
        with pytest.raises(AuthError):
            await sites.client(auth).connect()
        assert not waiting.done()
        sites.redirect = lambda said: said
        async with sites.client(auth):
            assert await waiting
        assert len(sites.authorized) == 2

    run(visit)


class Told:
    """Records which requests are unattended."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool]] = []

    async def headers(self, errand: OutgoingRequest, /) -> Mapping[str, str]:
        self.told.append((errand.method, errand.unattended))
        return {}

    async def on_rejected(self, _errand: OutgoingRequest, _refused: CredentialsRejection, /) -> bool:
        return False

    def on_accepted(
        self, _errand: OutgoingRequest, _headers: Mapping[str, str], _sent: Mapping[str, str], /
    ) -> None:
        pass


def test_an_authorizer_knows_unattended_requests():
    async def visit(sites: SessionAuthSites) -> None:
        told = Told()
        sites.for_streams.add("")
        sites.valid[""] = ()
        async with sites.client(told, revision=SESSION) as mcp:
            await sites.streaming.wait()
            await mcp.call_tool("anything")
        assert {*told.told} == {("POST", False), ("GET", True), ("DELETE", True)}

    run_session_sites(visit)


def test_a_reopened_listen_is_unattended():
    async def visit(sites: AuthSites) -> None:
        told, listens, again = Told(), 0, asyncio.Event()

        async def serve(heard: Heard) -> bytes:
            nonlocal listens
            message = msgspec.json.decode(heard.body)
            if message["method"] == "server/discover":
                result = {**DISCOVERED, "capabilities": {"tools": {"listChanged": True}}}
                reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
                return answer(body=msgspec.json.encode(reply))
            listens += 1
            if listens == 2:
                again.set()
            params = {
                "notifications": {"toolsListChanged": True},
                "_meta": {SUBSCRIPTION_ID: message["id"]},
            }
            method = "notifications/subscriptions/acknowledged"
            said = msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})
            return stream(event(said))

        sites.paths["/mcp"] = serve
        async with Client(sites.server, auth=told, revision=DATES[-1], on_notification=lambda *_: None):
            await again.wait()
        assert told.told[:3] == [("POST", False), ("POST", False), ("POST", True)]

    run(visit)


def test_the_unattended_mark_ends_with_its_block():
    with mark_unattended():
        assert is_unattended()
        with mark_unattended(False):
            assert not is_unattended()
        assert is_unattended()
    assert not is_unattended()


def test_a_notification_waits_for_the_login():
    async def visit(sites: SessionAuthSites) -> None:
        ends: list[list[float | None]] = []

        async def think(url: str) -> str:
            if len(sites.authorized):
                ends.append([scope.when() for scope in channel._sender._timeouts])
            return await browse(url)

        async with sites.client(sites.oauth(open_url=think), revision=SESSION, on_roots=[]) as mcp:
            channel: Any = mcp._session.dispatcher._channel
            sites.valid.clear()
            sites.refresh.clear()
            await mcp.notify("notifications/roots/list_changed")
        assert ends == [[None]]
        assert not channel._sender._timeouts

    run_session_sites(visit)
