"""A server with a login provider, browsers that visit it, and clients that log in.

All of it runs in memory, so that the server can have an https URL.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import msgspec

from fake_providers import make_challenge
from toolpost import Auth, Client, Context, Server

__all__ = [
    "BACK",
    "ISSUER",
    "RESOURCE",
    "VERIFIER",
    "LoginSite",
    "Page",
    "Window",
    "ask",
    "logging_in",
    "visit",
]

ISSUER = "https://mcp.example.com"
RESOURCE = f"{ISSUER}/mcp"
BACK = "http://127.0.0.1:3000/callback"
VERIFIER = "v" * 64


class Page(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.text)

    @property
    def location(self) -> str:
        assert self.status == 303, self
        return self.headers["location"]

    @property
    def sent(self) -> dict[str, str]:
        """The parameters of a redirect."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.location).query).items()}

    def shows(self, name: str) -> str:
        """The text of an element."""
        found = re.search(rf'id="{name}">(.*?)</(?:em|p|ul)>', self.text, re.DOTALL)
        assert found is not None, self.text
        return unescape(found[1])


async def ask(
    app: Any, method: str, url: str, *, headers: dict[str, str] | None = None, body: str = ""
) -> Page:
    """Send a request to an ASGI application."""
    parts = urlsplit(url)
    sent = {"host": parts.netloc, **(headers or {})}
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "scheme": parts.scheme,
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }
    events: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body.encode()}

    async def send(event: Any) -> None:
        events.append(event)

    await app(scope, receive, send)
    start, *rest = events
    heard = {name.decode(): value.decode() for name, value in start["headers"]}
    return Page(start["status"], heard, b"".join(event.get("body", b"") for event in rest).decode())


class Window:
    """A browser with its cookies."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.cookies: dict[str, str] = {}

    async def open(self, url: str, form: dict[str, str] | None = None, **headers: str) -> Page:
        """Open a page, or send a form."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if form is None:
            page = await ask(self.app, "GET", url, headers=sent)
        else:
            usual = {"content-type": "application/x-www-form-urlencoded", "origin": ISSUER}
            page = await ask(self.app, "POST", url, headers=usual | sent, body=urlencode(form))
        name, _, value = page.headers.get("set-cookie", "").partition("; ")[0].partition("=")
        if name:
            self.cookies[name] = value
        return page

    async def answer(self, page: Page, answer: str = "allow", **headers: str) -> Page:
        """Press a button of a consent page."""
        sealed = re.search(r'name="request" value="([^"]+)"', page.text)
        assert sealed is not None, page.text
        form = {"request": unescape(sealed[1]), "answer": answer}
        return await self.open(f"{ISSUER}/oauth/authorize", form, **headers)


async def visit(url: str) -> str:
    """Agree to everything, as a person at a browser would; return where the client is sent at last."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        async with http.get(url) as page:
            assert page.status == 200, await page.text()
            sealed = re.findall(r'name="request" value="([^"]+)"', await page.text())
        form = {"request": unescape(sealed[0]), "answer": "allow"}
        async with http.post(url.partition("?")[0], data=form, allow_redirects=False) as away:
            next_url = away.headers["location"]
        for _ in range(2):  # the login page of the provider, and our callback
            async with http.get(next_url, allow_redirects=False) as page:
                next_url = page.headers["location"]
        return next_url


class LoginSite:
    """The server, and its provider."""

    def __init__(self, app: Any, upstream: Any) -> None:
        self.app = app
        self.upstream = upstream

    async def register(self, *redirects: str, **more: Any) -> Page:
        """Register a client."""
        about = {"redirect_uris": redirects or [BACK], "client_name": "Desk", **more}
        return await self.post("register", msgspec.json.encode(about).decode())

    async def post(self, endpoint: str, body: str, **headers: str) -> Page:
        return await ask(self.app, "POST", f"{ISSUER}/oauth/{endpoint}", body=body, headers=headers)

    async def make_client(self, *redirects: str) -> str:
        return (await self.register(*redirects)).json["client_id"]

    def login_url(self, client: str, **changes: str | None) -> str:
        """Return the URL that a client opens."""
        asked = {
            "response_type": "code",
            "client_id": client,
            "redirect_uri": BACK,
            "state": "client-state",
            "code_challenge": make_challenge(VERIFIER),
            "code_challenge_method": "S256",
            "scope": "read",
            "resource": RESOURCE,
            **changes,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return f"{ISSUER}/oauth/authorize?{urlencode(given)}"

    async def log_in(self, client: str, window: Window | None = None, **changes: str | None) -> Page:
        """Log in with a browser; return its redirect to the client."""
        window = window or Window(self.app)
        page = await window.open(self.login_url(client, **changes))
        assert page.status == 200, page
        away = await window.answer(page)
        return await window.open(await self.upstream.log_in(away.location))

    async def token(self, client: str, **form: str) -> Page:
        """Ask the token endpoint."""
        return await self.post("token", urlencode({"client_id": client, **form}))

    async def redeem(self, client: str, code: str, **changes: str) -> Page:
        """Redeem a code."""
        usual = {"grant_type": "authorization_code", "code": code, "code_verifier": VERIFIER}
        return await self.token(client, **usual | {"redirect_uri": BACK, "resource": RESOURCE} | changes)

    async def refresh(self, client: str, token: str, **changes: str) -> Page:
        return await self.token(client, grant_type="refresh_token", refresh_token=token, **changes)

    async def obtain(self, client: str, **changes: str | None) -> dict[str, Any]:
        """Log in; return the tokens."""
        back = await self.log_in(client, None, **changes)
        page = await self.redeem(client, back.sent["code"])
        assert page.status == 200, page
        return page.json

    async def call(self, token: str, tool: str = "whoami") -> Any:
        """Call a tool with an access token."""
        headers = {"Authorization": f"Bearer {token}"}
        async with Client(RESOURCE, http=self.app, headers=headers) as mcp:
            return (await mcp.call_tool(tool)).data


def make_server(auth: Auth, **options: Any) -> Server:
    server = Server("notes", auth=auth, **options)

    @server.tool
    async def whoami(ctx: Context) -> dict[str, Any]:
        who = ctx.principal
        assert who is not None
        return {"subject": who.subject, "scopes": sorted(who.scopes), "claims": who.claims}

    @server.tool
    async def upstream(ctx: Context) -> str:
        assert ctx.principal is not None
        return await ctx.principal.upstream_token()

    @server.tool(scopes=["write"])
    async def write() -> str:
        return "written"

    return server


@asynccontextmanager
async def logging_in(
    upstream: Any, provider: Any, *, options: Any = None, **auth: Any
) -> AsyncGenerator[LoginSite]:
    """Serve in memory."""
    usual: dict[str, Any] = {"scopes": ["read"], "optional_scopes": ["write"]}
    server = make_server(Auth(provider=provider, **usual | auth), **(options or {}))
    app = server.asgi(public_url=ISSUER)
    async with asyncio.timeout(30), app.lifespan():
        yield LoginSite(app, upstream)
