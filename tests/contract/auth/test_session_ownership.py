"""Ownership within a server: notifications, the server chosen for a session, and the limit of sessions."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from hosted import NEW, OLD, call, legacy, message, modern, opening, run, serving
from protected_server import RESOURCE, bearer
from toolpost import Auth, Client, Context, Http, Jwt, MemoryTokens, OAuth, Principal, Server
from toolpost.testing import AuthorizationServer, TokenIssuer

EVENTS = {"Accept": "text/event-stream", "MCP-Protocol-Version": OLD}
POSTED = {"Content-Type": "application/json"}
PING = message("ping", id=1)

MINT = TokenIssuer("https://login.example.com")


def token(*scopes: str, subject: str = "ann", client: str = "app") -> dict[str, str]:
    return bearer(MINT.token(RESOURCE, scopes=[*scopes], subject=subject, client=client))


def guard(issuer: str = MINT.issuer, resource: str = RESOURCE) -> Auth:
    verifier = Jwt(MINT.issuer, keys=MINT.jwks) if issuer == MINT.issuer else None
    return Auth(issuer, resource=resource, verifier=verifier)


async def endpoint_of(site: Any, headers: dict[str, str]) -> tuple[Any, str]:
    """Return an HTTP+SSE stream and its endpoint for POSTs."""
    wire, begun = await site.begin("GET", {**EVENTS, **headers}, target="/sse")
    assert begun.status == 200
    return wire, (await wire.event()).data


# --------------------------------------------------------------------- notifications


class NotificationRecorder:
    """Records the principals of notifications."""

    def __init__(self, server: Server) -> None:
        self.heard: asyncio.Queue[Principal | None] = asyncio.Queue()
        for method in ("notifications/roots/list_changed", "notifications/initialized", "notifications/own"):
            server.on_notification(method)(self.on_change)

    async def on_change(self, ctx: Context) -> None:
        await self.heard.put(ctx.principal)

    async def scopes(self) -> list[str]:
        heard = await self.heard.get()
        assert heard is not None
        return sorted(heard.scopes)


@pytest.mark.requirement("SEC-8", "SEC-5")
@pytest.mark.parametrize("method", ["notifications/roots/list_changed", "notifications/own"])
def test_a_notification_uses_the_scopes_of_its_own_token(method):
    async def main() -> None:
        server = Server("notes", auth=guard())
        recorder = NotificationRecorder(server)
        async with serving(server.asgi()) as site:
            session = await site.open(headers=token("admin"))
            assert await recorder.scopes() == ["admin"]
            for allowed in (["read"], ["admin", "read"]):
                answer = await site.post({**legacy(session), **token(*allowed)}, message(method))
                assert answer.status == 202
                assert await recorder.scopes() == allowed

    run(main)


@pytest.mark.requirement("SEC-5")
def test_a_handshake_may_be_completed_by_another_principal():
    async def main() -> None:
        server = Server("notes", auth=guard())
        recorder = NotificationRecorder(server)
        async with serving(server.asgi()) as site:
            opened = await site.post({**legacy(), **token("admin")}, opening())
            headers = {**legacy(opened.headers["mcp-session-id"]), **token("read")}
            await site.post(headers, message("notifications/initialized"))
            assert await recorder.scopes() == ["read"]

    run(main)


@pytest.mark.requirement("SEC-5")
def test_notifications_that_wait_for_the_handshake_keep_their_tokens():
    go = asyncio.Event()
    server = Server("notes")
    recorder = NotificationRecorder(server)

    async def choose(*_: Any) -> Server:
        await go.wait()
        return server

    async def main() -> None:
        async with serving(Server.factory(choose, auth=guard()).asgi()) as site:
            wire, endpoint = await endpoint_of(site, token("admin"))
            await site.post({**POSTED, **token("admin")}, opening(), endpoint)
            for more in ("b", "c"):
                said = message("notifications/own")
                told = await site.post({**POSTED, **token("admin", more)}, said, endpoint)
                assert told.status == 202
            go.set()
            assert "result" in (await wire.event()).json
            assert [await recorder.scopes(), await recorder.scopes()] == [["admin", "b"], ["admin", "c"]]

    run(main)


# --------------------------------------------------------------------- what was chosen


def chosen(auth: Auth) -> Any:
    """Return a factory: one server for all users, another for administrators of one client."""
    public, secret = Server("public"), Server("secret")

    @public.tool
    def read() -> str:
        return "read"

    @public.tool(scopes=["write"])
    def write() -> str:
        return "written"

    @secret.tool
    def wipe() -> str:
        return "wiped"

    async def choose(_info: Any, _capabilities: Any, who: Principal | None) -> Server:
        assert who is not None
        return secret if "admin" in who.scopes and who.client == "app" else public

    return Server.factory(choose, auth=auth)


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize("less", [token("read"), token("admin", client="other"), token(client="other")])
def test_the_selection_of_a_session_is_not_used_with_fewer_scopes(less):
    async def main() -> None:
        async with serving(chosen(guard()).asgi()) as site:
            session = await site.open(headers=token("admin", "read"))
            wipe = message("tools/call", call("wipe"), 1)
            refused = await site.post({**legacy(session), **less}, wipe)
            assert (refused.status, b"Session not found" in refused.body) == (404, True)
            get = await site.ask("GET", "/mcp", {**EVENTS, "Mcp-Session-Id": session, **less})
            assert get.status == 404
            own = await site.open(headers=less)  # as a client does after such a response
            assert b"wiped" not in (await site.post({**legacy(own), **less}, wipe)).body
            more = token("admin", "read", "write")
            assert b"wiped" in (await site.post({**legacy(session), **more}, wipe)).body

    run(main)


@pytest.mark.requirement("SEC-8")
def test_over_http_sse_the_handshake_selects_the_server():
    async def main() -> None:
        async with serving(chosen(guard()).asgi()) as site:
            wire, endpoint = await endpoint_of(site, token("read"))
            wide = token("read", "admin")
            assert (await site.post({**POSTED, **wide}, opening(), endpoint)).status == 202
            assert "result" in (await wire.event()).json
            wipe = message("tools/call", call("wipe"), 1)
            assert (await site.post({**POSTED, **token("read")}, wipe, endpoint)).status == 404
            assert (await site.post({**POSTED, **wide}, wipe, endpoint)).status == 202
            assert "wiped" in (await wire.event()).data

    run(main)


@pytest.mark.requirement("SEC-8", "SEC-10")
def test_without_a_session_the_client_also_selects_the_server():
    async def main() -> None:
        async with serving(chosen(guard()).asgi()) as site:
            headers, body = modern("tools/call", call("wipe"))
            told = [
                b"wiped" in (await site.post({**headers, **token("admin", client=client)}, body)).body
                for client in ("app", "other", "app")
            ]
            assert told == [True, False, True]

    run(main)


async def visit(url: str) -> str:
    """Return the redirect of the login page, as a browser would."""
    async with aiohttp.ClientSession() as browser, browser.get(url, allow_redirects=False) as answer:
        return answer.headers["location"]


class DeferredApp:
    """An application that is created once its port is known."""

    app: Any

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    async def stop(self) -> None:
        await self.app.stop()


@asynccontextmanager
async def serve_with_issuer():
    """Serve the factory and an issuer, each on its own port."""
    later = DeferredApp()
    async with AuthorizationServer.serve() as login, serving(later, lifespan="off") as site:
        url = f"http://127.0.0.1:{site.port}/mcp"
        later.app = chosen(guard(login.issuer, url)).asgi()
        yield url


@pytest.mark.requirement("AUTH-51")
@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_step_up_continues_the_session(revision):
    async def main() -> None:
        async with serve_with_issuer() as url:
            auth = OAuth(open_url=visit, storage=MemoryTokens())
            async with Client(url, auth=auth, revision=revision) as mcp:
                assert (await mcp.call_tool("read")).text == "read"
                assert (await mcp.call_tool("write")).text == "written"
                assert mcp.server_info is not None

    run(main)


class ChangingToken:
    """Sends a new token with each request, with the scopes in `allowed`."""

    allowed: tuple[str, ...] = ("admin", "read")

    async def headers(self, _errand: Any) -> dict[str, str]:
        return token(*self.allowed)

    async def on_rejected(self, _errand: Any, _refused: Any) -> bool:
        return False

    def on_accepted(self, _errand: Any, _headers: Any, _sent: Any) -> None:
        pass


@pytest.mark.requirement("HTTPL-28")
@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_client_that_returns_with_fewer_scopes_gets_another_server(revision):
    async def main() -> None:
        auth = ChangingToken()
        async with (
            serving(chosen(guard()).asgi()) as site,
            Client(Http(f"http://127.0.0.1:{site.port}/mcp", auth=auth), revision=revision) as mcp,
        ):
            assert (await mcp.call_tool("wipe")).text == "wiped"
            auth.allowed = ("read",)
            assert (await mcp.call_tool("read")).text == "read"
            assert {tool.name for tool in await mcp.list_tools()} == {"read", "write"}

    run(main)
