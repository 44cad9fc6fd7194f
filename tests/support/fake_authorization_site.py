"""An MCP server and an authorization server, each on its own socket, for clients that log in.

A test can change their responses one by one. `browse` is a user who agrees in their browser.
"""

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
import msgspec

from revision_dates import DATES
from scripted import Heard, answer, scripted
from toolpost import Client, MemoryTokens, OAuth

NEWEST = DATES[-1]
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": [NEWEST],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "sites", "version": "1"}},
}
CALLED = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}

Change = Callable[[dict[str, str]], dict[str, str]]


class AuthSites:
    """An MCP server and an authorization server: their configured responses, and the requests they got."""

    def __init__(self) -> None:
        self.server = self.issuer = ""
        self.challenge: str | None = None
        """The value of `WWW-Authenticate`; None for the default."""
        self.resource: dict[str, Any] | None = {}
        """Changes to the resource metadata; None if there is none."""
        self.metadata: dict[str, Any] | None = {}
        """Changes to the metadata of the authorization server; None if there is none."""
        self.token: dict[str, Any] = {}
        """Changes to the responses of the token endpoint."""
        self.redirect: Change = lambda parameters: parameters
        """Changes to the parameters of the redirect."""
        self.needs: tuple[str, ...] = ()
        """The scopes that a call of a tool needs."""
        self.valid: dict[str, tuple[str, ...]] = {}
        """The valid tokens, and their scopes."""
        self.refresh: dict[str, tuple[str, ...]] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.heard: list[tuple[str, str, dict[str, str]]] = []
        """The requests to the MCP server: HTTP method, method of the message, headers."""
        self.looked: list[str] = []
        """The paths of all other requests, to both servers."""
        self.registered: list[dict[str, Any]] = []
        self.authorized: list[dict[str, str]] = []
        self.forms: list[tuple[dict[str, str], dict[str, str]]] = []
        """The requests to the token endpoint: form and headers."""
        self.paths: dict[str, Callable[[Heard], Awaitable[bytes] | bytes]] = {}
        """Path → response of either server, instead of the usual."""
        self.on_call: Callable[[], Awaitable[None]] | None = None
        self.made = 0

    # ----------------------------------------------------------------- the MCP server

    async def serve_mcp(self, heard: Heard) -> None:
        path = heard.path.partition("?")[0]
        if await self._special(heard, path):
            return
        if path == "/.well-known/oauth-protected-resource/mcp" and self.resource is not None:
            self.looked.append(path)
            usual = {"resource": self.server, "authorization_servers": [self.issuer]}
            await _say(heard, answer(body=msgspec.json.encode(usual | self.resource)))
        elif path == "/mcp":
            await _say(heard, await self.answer_mcp(heard))
        else:
            self.looked.append(path)
            await _say(heard, answer(404, kind=None))

    async def answer_mcp(self, heard: Heard) -> bytes:
        message = msgspec.json.decode(heard.body) if heard.body else {}
        method = message.get("method", "")
        self.heard.append((heard.method, method, heard.headers))
        scheme, _, token = heard.headers.get("authorization", "").partition(" ")
        if token not in self.valid or scheme not in {"Bearer", "DPoP"}:
            return answer(401, kind=None, WWW_Authenticate=self.challenge_of_server())
        if method == "tools/call":
            if self.on_call is not None:
                await self.on_call()
            if not {*self.needs} <= {*self.valid[token]}:
                scope = " ".join(self.needs)
                return answer(
                    403, kind=None, WWW_Authenticate=f'Bearer error="insufficient_scope", scope="{scope}"'
                )
        results = {"server/discover": DISCOVERED, "tools/call": CALLED}
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": results[method]}
        return answer(body=msgspec.json.encode(reply))

    def challenge_of_server(self) -> str:
        if self.challenge is not None:
            return self.challenge
        root = self.server.removesuffix("/mcp")
        return f'Bearer resource_metadata="{root}/.well-known/oauth-protected-resource/mcp"'

    # ----------------------------------------------------------------- the authorization server

    async def serve_issuer(self, heard: Heard) -> None:
        path, _, query = heard.path.partition("?")
        self.looked.append(path)
        if await self._special(heard, path):
            return
        if path == "/.well-known/oauth-authorization-server" and self.metadata is not None:
            await _say(heard, answer(body=msgspec.json.encode(self.describe_issuer())))
        elif path == "/register":
            await _say(heard, self.answer_registration(heard.body))
        elif path == "/authorize":
            await _say(heard, self._authorize(dict(parse_qsl(query))))
        elif path == "/token":
            await _say(heard, self.answer_token(heard))
        else:
            await _say(heard, answer(404, kind=None))

    async def _special(self, heard: Heard, path: str) -> bool:
        if path not in self.paths:
            return False
        said = self.paths[path](heard)
        await _say(heard, said if isinstance(said, bytes) else await said)
        return True

    def describe_issuer(self) -> dict[str, Any]:
        usual = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
        }
        described = usual | (self.metadata or {})
        return {name: value for name, value in described.items() if value is not ...}

    def answer_registration(self, body: bytes) -> bytes:
        self.registered.append(msgspec.json.decode(body))
        return answer(201, msgspec.json.encode({"client_id": f"client-{len(self.registered)}"}))

    def _authorize(self, asked: dict[str, str]) -> bytes:
        self.authorized.append(asked)
        code = f"code-{len(self.authorized)}"
        self.codes[code] = asked
        back = self.redirect({"code": code, "state": asked["state"]})
        return answer(302, kind=None, Location=f"{asked['redirect_uri']}?{urlencode(back)}")

    def answer_token(self, heard: Heard) -> bytes:
        form = dict(parse_qsl(heard.body.decode(), keep_blank_values=True))
        self.forms.append((form, heard.headers))
        scopes: tuple[str, ...] = tuple(form.get("scope", "").split())
        if form["grant_type"] == "authorization_code":
            asked = self.codes.pop(form["code"], None)
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            if asked is None or asked["code_challenge"] != challenge:
                return _refusal("invalid_grant")
            assert (form["redirect_uri"], form["resource"]) == (asked["redirect_uri"], asked["resource"])
            scopes = tuple(asked.get("scope", "").split())
        elif form["grant_type"] == "refresh_token":
            found = self.refresh.pop(form["refresh_token"], None)
            if found is None:
                return _refusal("invalid_grant")
            scopes = found
        return self.issue(scopes)

    def issue(self, scopes: tuple[str, ...] = ()) -> bytes:
        self.made += 1
        access, refresh = f"access-{self.made}-secret", f"refresh-{self.made}-secret"
        usual: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "refresh_token": refresh}
        usual["expires_in"] = 3600
        said = {name: value for name, value in (usual | self.token).items() if value is not ...}
        self.valid[said["access_token"]] = scopes
        if "refresh_token" in said:
            self.refresh[said["refresh_token"]] = scopes
        return answer(body=msgspec.json.encode(said))

    @property
    def grants(self) -> list[str]:
        """The requested kinds of grants."""
        return [form["grant_type"] for form, _ in self.forms]

    # ----------------------------------------------------------------- clients

    def oauth(self, **options: Any) -> OAuth:
        usual: dict[str, Any] = {"storage": MemoryTokens(), "open_url": browse, "timeout": 20.0}
        return OAuth(**(usual | options))

    def client(self, auth: Any = None, **options: Any) -> Client:
        usual: dict[str, Any] = {"revision": NEWEST}
        return Client(self.server, auth=auth or self.oauth(), **(usual | options))


def _refusal(code: str) -> bytes:
    return answer(400, msgspec.json.encode({"error": code, "error_description": "no"}))


async def _say(heard: Heard, data: bytes) -> None:
    await heard.write(data)


async def browse(url: str) -> str:
    """Log in, and return the URL of the redirect."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, allow_redirects=False) as response,
    ):
        assert response.status == 302, await response.text()
        return response.headers["location"]


async def follow(url: str) -> None:
    """Agree, and follow the redirect."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200, await response.text()


@asynccontextmanager
async def sites() -> AsyncGenerator[AuthSites]:
    it = AuthSites()
    async with scripted(it.serve_mcp) as server, scripted(it.serve_issuer, "") as issuer:
        it.server, it.issuer = server.url, issuer.url
        yield it


def origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def run(work: Callable[[AuthSites], Awaitable[None]]) -> None:
    """Run a function with its own sites."""

    async def visit() -> None:
        async with sites() as it:
            await work(it)

    asyncio.run(visit())
