"""Plain credentials: a token, a function, an object; over every kind of HTTP."""

import asyncio
import json

import msgspec
import pytest

from fake_authorization_site import AuthSites, run
from revision_dates import DATES
from scripted import Heard, answer, chunk, event, scripted, stream
from toolpost import AuthError, Client, Http, SyncClient
from toolpost.errors import (
    AuthorizationRequired,
    InsufficientScope,
    RequestFailed,
    TokenRejected,
)

WELCOME = {
    "protocolVersion": DATES[3],
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "old", "version": "1"},
}


class ReturnsAwaitable:
    """A callable that is not async, but returns an awaitable."""

    def __init__(self, later) -> None:
        self.later = later

    def __call__(self):
        return self.later()


@pytest.mark.requirement("AUTH-43")
@pytest.mark.parametrize("how", ["client", "address", "entry", "sync", "function", "coroutine", "soon"])
def test_a_token_is_sent_with_every_request(how):
    async def visit(sites: AuthSites) -> None:
        sites.valid["t0ken"] = ()

        async def later() -> str:
            return "t0ken"

        if how == "sync":

            def use() -> str:
                with SyncClient(sites.server, auth="t0ken") as mcp:
                    return mcp.call_tool("anything").text

            assert await asyncio.to_thread(use) == "done"
        else:
            client = {
                "client": lambda: Client(sites.server, auth="t0ken"),
                "address": lambda: Client(Http(sites.server, auth="t0ken")),
                "entry": lambda: Client({"url": sites.server, "auth": "t0ken"}),
                "function": lambda: Client(sites.server, auth=lambda: "t0ken"),
                "coroutine": lambda: Client(sites.server, auth=later),
                "soon": lambda: Client(sites.server, auth=ReturnsAwaitable(later)),
            }[how]()
            async with client as mcp:
                assert (await mcp.call_tool("anything")).text == "done"
        assert {headers.get("authorization") for _, _, headers in sites.heard} == {"Bearer t0ken"}

    run(visit)


def test_a_function_is_called_once_and_again_when_the_token_is_rejected():
    async def visit(sites: AuthSites) -> None:
        given: list[str] = []

        def source() -> str:
            given.append(f"token-{len(given) + 1}")
            sites.valid = {given[-1]: ()}
            return given[-1]

        async with sites.client(source) as mcp:
            await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))
            assert len(given) == 1
            sites.valid.clear()
            await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))
            assert len(given) == 2
            sites.valid.clear()
            await mcp.call_tool("anything")
            assert len(given) == 3

    run(visit)


@pytest.mark.parametrize("auth", ["wr0ng", lambda: "wr0ng", iter(["a", "b", "c", "d"]).__next__])
def test_the_error_for_a_rejected_token_does_not_show_it(auth, caplog):
    async def visit(sites: AuthSites) -> None:
        with pytest.raises(TokenRejected, match="rejected the credentials") as caught:
            await sites.client(auth).connect()
        assert "wr0ng" not in str(caught.value) + repr(caught.value)
        assert caught.value.peer == sites.server
        assert len(sites.heard) <= 2

    run(visit)
    assert "wr0ng" not in caplog.text


def test_a_token_with_too_few_scopes():
    async def visit(sites: AuthSites) -> None:
        sites.valid["t0ken"] = ()
        sites.needs = ("write",)
        for auth in ("t0ken", lambda: "t0ken"):
            async with sites.client(auth) as mcp:
                with pytest.raises(InsufficientScope):
                    await mcp.call_tool("anything")

    run(visit)


def test_a_403_without_a_challenge_is_an_ordinary_error():
    async def visit(sites: AuthSites) -> None:
        sites.valid["t0ken"] = ()
        async with sites.client("t0ken") as mcp:
            sites.paths["/mcp"] = lambda _: answer(403, kind=None)
            with pytest.raises(RequestFailed, match="403"):
                await mcp.call_tool("anything")

    run(visit)


# --------------------------------------------------------------------- sessions and streams


@pytest.mark.requirement("AUTH-43")
def test_streams_and_the_end_of_a_session_carry_the_token():
    heard: list[tuple[str, str | None]] = []

    async def script(request: Heard) -> None:
        heard.append((request.method, request.headers.get("authorization")))
        if request.method == "GET":
            await request.write(stream(end=False))
            streaming.set()
            await request.gone()
            return
        if request.method == "DELETE":
            await request.write(answer(401, kind=None))
            return
        message = msgspec.json.decode(request.body)
        if "id" not in message:
            await request.write(answer(202, kind=None))
            return
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": WELCOME}
        await request.write(answer(200, json.dumps(reply).encode(), Mcp_Session_Id="s1"))

    async def visit() -> None:
        nonlocal streaming
        streaming = asyncio.Event()
        async with scripted(script) as server, Client(server.url, auth="t0ken", revision=DATES[3]):
            await streaming.wait()
        assert [method for method, _ in heard][-1] == "DELETE"
        assert {token for _, token in heard} == {"Bearer t0ken"}

    streaming = asyncio.Event()
    asyncio.run(visit())


@pytest.mark.parametrize("good", [True, False])
def test_http_and_sse_carry_the_token(good):
    heard: list[tuple[str, str | None]] = []

    async def script(request: Heard) -> None:
        heard.append((request.method, request.headers.get("authorization")))
        if request.headers.get("authorization") != "Bearer t0ken":
            await request.write(answer(401, kind=None))
        elif request.method == "GET":
            await request.write(stream(event(b"/messages", event="endpoint"), end=False))
            streams.append(request)
            await request.gone()
        else:
            message = msgspec.json.decode(request.body)
            await request.write(answer(202, kind=None))
            if "id" in message:
                result = {**WELCOME, "protocolVersion": DATES[0]}
                reply = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
                await streams[0].write(chunk(event(reply, event="message")))

    streams: list[Heard] = []

    async def visit() -> None:
        async with scripted(script) as server:
            client = Client(Http(server.url, sse=True, auth="t0ken" if good else "wrong"))
            if good:
                async with client:
                    pass
                assert {method for method, _ in heard} == {"GET", "POST"}
                assert {token for _, token in heard} == {"Bearer t0ken"}
            else:
                with pytest.raises(TokenRejected):
                    await client.connect()

    asyncio.run(visit())


def test_without_auth_the_error_says_what_to_pass():
    async def visit(sites: AuthSites) -> None:
        with pytest.raises(AuthorizationRequired, match=r"auth=OAuth\(\)"):
            await Client(sites.server).connect()

    run(visit)


def test_all_errors_of_authorization_have_one_base():
    assert issubclass(TokenRejected, AuthError)
