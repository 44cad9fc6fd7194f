"""Credentials of callers at an upstream: exchanged, passed on, or from a login; never weaker ones."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from hosted import run, serving
from toolpost import Auth, Client, Context, Http, Jwt, Server
from toolpost.errors import InsufficientScope, InternalError, MCPError, RPCError, UserRejected
from toolpost.gateway.credentials import (
    CallerCredentials,
    CallerTokens,
    Passthrough,
    TokenExchange,
    UserLogins,
)
from toolpost.principal import Principal
from toolpost.testing import AuthorizationServer
from toolpost.transports.backends.backend import open_backend
from toolpost.types import ClientCapabilities, ElicitationCapability, ElicitResult

GATEWAY = "http://127.0.0.1/gw"
ERAS = ["2025-11-25", "2026-07-28"]


class Later:
    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    async def stop(self) -> None:
        await self.app.stop()


class Chain:
    """A gateway whose tool calls `whoami` of a protected server on behalf of its caller."""

    def __init__(self, issuer: AuthorizationServer, far_url: str) -> None:
        self.issuer = issuer
        self.far_url = far_url
        self.tokens = CallerTokens()
        self.credentials: CallerCredentials = Passthrough("far", self.tokens)
        self.url = ""

    def token(self, subject: str = "ann", audience: Any = GATEWAY, **options: Any) -> str:
        return self.issuer.token(audience, subject=subject, **options)

    async def ask(self, token: str, revision: str = ERAS[1], **options: Any) -> str:
        async with Client(Http(self.url, auth=token), revision=revision, **options) as client:
            return (await client.call_tool("who")).text

    def exchange(self, **options: Any) -> None:
        given: dict[str, Any] = {
            "issuer": self.issuer.issuer,
            "client_id": "gw",
            "client_secret": "s3cret",
            **options,
        }
        self.credentials = TokenExchange("far", self.tokens, **given)


def make_far(issuer: str, url: str) -> Server:
    far = Server("far", auth=Auth(issuer, resource=url))

    @far.tool
    async def whoami(ctx: Context) -> str:
        assert ctx.principal is not None
        return f"{ctx.principal.subject} by {ctx.principal.client}"

    return far


def make_gateway(chain: Chain) -> Server:
    auth = chain.tokens.watch(Auth(chain.issuer.issuer, resource=GATEWAY))
    gateway = Server("gw", auth=auth)

    @gateway.tool
    async def who(ctx: Context) -> str:
        _, authorizer = await chain.credentials.authorize(ctx, chain.far_url)
        async with Client(Http(chain.far_url, auth=authorizer)) as client:
            return (await client.call_tool("whoami")).text

    return gateway


@asynccontextmanager
async def chained(**options: Any) -> AsyncGenerator[Chain]:
    async with AuthorizationServer.serve(clients={"gw": "s3cret"}, **options) as issuer:
        later = Later()
        async with serving(later, lifespan="off") as site:
            far_url = f"http://127.0.0.1:{site.port}/mcp"
            issuer.audiences = frozenset([far_url])
            later.app = make_far(issuer.issuer, far_url).asgi()
            chain = Chain(issuer, far_url)
            async with serving(make_gateway(chain).asgi()) as front:
                chain.url = f"http://127.0.0.1:{front.port}/mcp"
                yield chain


# --------------------------------------------------------------------- exchange


@pytest.mark.parametrize("revision", ERAS)
def test_the_token_of_a_caller_is_exchanged(revision):
    async def main() -> None:
        async with chained() as chain:
            chain.exchange()
            assert await chain.ask(chain.token("ann"), revision) == "ann by gw"
            assert await chain.ask(chain.token("bob"), revision) == "bob by gw"

    run(main)


def test_an_exchanged_token_is_kept_for_its_caller():
    async def main() -> None:
        async with chained() as chain:
            chain.exchange()
            for _ in range(3):
                await chain.ask(chain.token("ann"))
            assert chain.issuer.request_counts["token"] == 1
            await chain.ask(chain.token("ann", scopes=["more"]))
            assert chain.issuer.request_counts["token"] == 2

    run(main)


def test_calls_at_the_same_time_exchange_once():
    async def main() -> None:
        async with chained() as chain:
            chain.exchange()
            token = chain.token("ann")
            assert set(await asyncio.gather(*(chain.ask(token) for _ in range(5)))) == {"ann by gw"}
            assert chain.issuer.request_counts["token"] == 1

    run(main)


def test_a_short_lived_token_is_exchanged_again():
    async def main() -> None:
        async with chained(lifetime=0) as chain:
            chain.exchange()
            token = chain.token("ann", lifetime=300)
            for _ in range(2):
                await chain.ask(token)
            assert chain.issuer.request_counts["token"] >= 2

    run(main)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"audience": "elsewhere"}, "invalid_target"),
        ({"client_secret": "wrong"}, "invalid_client"),
    ],
)
def test_a_refused_exchange_is_a_403_that_says_what_is_wanted(options, why, caplog):
    async def main() -> None:
        async with chained() as chain:
            chain.exchange(scopes=["far:read"], **options)
            token = chain.token("ann")
            with pytest.raises(InsufficientScope, match="far:read") as refused:
                await chain.ask(token)
            chain.exchange(**options)
            with pytest.raises(RPCError, match=why):
                await chain.ask(token)
            for secret in (token, token.rpartition(".")[2], "s3cret"):
                assert secret not in f"{refused.value!r}{caplog.text}"

    with caplog.at_level(logging.DEBUG):
        run(main)


def test_an_issuer_that_is_away_is_no_refusal():
    async def main() -> None:
        async with chained() as chain:
            chain.exchange(issuer="http://127.0.0.1:9/away")
            with pytest.raises(InternalError, match="could not be exchanged for far") as failed:
                await chain.ask(chain.token("ann"))
            assert failed.value.data == {"server": "far", "sent": False}

    run(main)


def test_an_issuer_that_returns_the_same_token_is_refused(monkeypatch):
    """Else the upstream would get a token that works at the gateway."""

    async def main() -> None:
        async with chained() as chain:
            chain.exchange()
            token = chain.token("ann")
            monkeypatch.setattr(chain.issuer, "token", lambda *_, **__: token)
            with pytest.raises(InternalError):
                await chain.ask(token)

    run(main)


def test_a_rejected_exchanged_token_is_not_replaced_by_the_callers(monkeypatch):
    async def main() -> None:
        async with chained() as chain:
            chain.exchange()
            token = chain.token("ann")
            seen: list[str] = []
            monkeypatch.setattr(Jwt, "verify", _record(Jwt.verify, seen))
            await chain.ask(token)
            chain.issuer.audiences = frozenset()
            chain.exchange()
            with pytest.raises(RPCError, match="invalid_target"):
                await chain.ask(token)
            assert seen.count(token) <= 2
            assert len(set(seen)) == 2

    run(main)


def _record(verify: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    async def recorded(self: Any, token: str, *resources: str) -> Principal:
        seen.append(token)
        return await verify(self, token, *resources)

    return recorded


# --------------------------------------------------------------------- passing on


def test_a_token_is_passed_on_only_if_it_names_the_upstream():
    async def main() -> None:
        async with chained() as chain:
            both = chain.token("ann", [GATEWAY, chain.far_url])
            assert await chain.ask(both) == "ann by test-client"
            for wrong in (GATEWAY, [GATEWAY, f"{chain.far_url}/deeper"], [GATEWAY, chain.far_url[:-4]]):
                with pytest.raises(RPCError, match="its audience must include"):
                    await chain.ask(chain.token("ann", wrong))

    run(main)


def test_no_token_is_sent_without_encryption():
    tokens = CallerTokens()
    for credentials in (Passthrough("far", tokens), UserLogins("far")):
        with pytest.raises(MCPError, match="without encryption"):
            asyncio.run(credentials.authorize(None, "http://far.example/mcp"))  # type: ignore[arg-type] - refused before the context is used


# --------------------------------------------------------------------- kept tokens


def test_tokens_are_kept_until_they_expire_and_are_never_shown():
    tokens = CallerTokens()
    ann = tokens.add(Principal("ann", claims={"exp": 4e9}), "t0ken")
    assert tokens.find(ann) == "t0ken"
    assert "t0ken" not in f"{ann!r}{ann.claims}{tokens!r}{tokens._known!r}"
    assert tokens.find(tokens.add(Principal("bob", claims={"exp": 1}), "old")) is None
    assert tokens.find(Principal("ann")) is None
    assert tokens.find(None) is None


def test_tokens_of_idle_callers_are_dropped(monkeypatch):
    monkeypatch.setattr("toolpost.gateway.credentials.MAX_CALLERS", 2)
    tokens = CallerTokens()
    ann, bob = (tokens.add(Principal(name), f"of {name}") for name in ("ann", "bob"))
    assert tokens.find(ann)
    tokens.add(Principal("cid"), "of cid")
    assert tokens.find(bob) is None
    assert tokens.find(ann) == "of ann"


# --------------------------------------------------------------------- logins


class Browser:
    """A user who follows the links that they are shown."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.action: Literal["accept", "decline"] = "accept"
        modes = ElicitationCapability(form={}, url={})
        self.options: dict[str, Any] = {
            "on_elicitation": self.visit,
            "capabilities": ClientCapabilities(elicitation=modes),
        }

    async def visit(self, asked: Any) -> ElicitResult:
        self.pages.append(asked.url)
        if self.action == "accept":
            backend = open_backend(None)
            try:
                url = asked.url
                for _ in range(3):
                    async with backend.send("GET", url, {}, None) as response:
                        url = response.headers.get("location", "")
                    if not url:
                        break
            finally:
                await backend.close()
        return ElicitResult(action=self.action)


@pytest.mark.parametrize("revision", ERAS)
def test_each_user_logs_in_once(revision, tmp_path):
    async def main() -> None:
        async with chained() as chain:
            logins = chain.credentials = UserLogins("far", tmp_path)
            browser = Browser()
            for subject in ("ann", "bob"):
                chain.issuer.user = f"{subject}-at-far"
                for _ in range(2):
                    told = await chain.ask(chain.token(subject), revision, **browser.options)
                    assert told.startswith(f"{subject}-at-far by ")
            assert len(browser.pages) == 2
            await logins.close()

    run(main)


@pytest.mark.parametrize("revision", ERAS)
def test_a_user_may_decline_to_log_in(revision, tmp_path):
    async def main() -> None:
        async with chained() as chain:
            logins = chain.credentials = UserLogins("far", tmp_path)
            browser = Browser()
            browser.action = "decline"
            with pytest.raises(UserRejected, match="did not sign in to far"):
                await chain.ask(chain.token("ann"), revision, **browser.options)
            await logins.close()

    run(main)


@pytest.mark.parametrize("revision", ["2025-06-18", *ERAS])
def test_a_client_that_opens_no_pages_is_told_the_page(revision, tmp_path):
    async def main() -> None:
        async with chained() as chain:
            logins = chain.credentials = UserLogins("far", tmp_path)
            with pytest.raises(RPCError, match="/authorize"):
                await chain.ask(chain.token("ann"), revision)
            await logins.close()

    run(main)
