"""Recovery from transient failures: a busy server, a lost response, a declined login."""

import asyncio
import time
import traceback
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from test_client_unattended import SESSION, SessionAuthSites, run_session_sites

from fake_authorization_site import AuthSites, browse, run
from scripted import Heard, answer, event, scripted, stream
from toolpost import Client, ClientCredentials
from toolpost.auth.client import grant, token_cache
from toolpost.auth.client.storage import ResilientStorage
from toolpost.auth.client.token_cache import TokenCache
from toolpost.auth.client.token_endpoint import Tokens
from toolpost.auth.urls import UrlPolicy
from toolpost.errors import (
    AuthError,
    AuthorizationDenied,
    AuthorizationRequired,
    ConnectFailed,
    InsufficientScope,
    RequestFailed,
    TokenRejected,
)
from toolpost.protocol.urls import has_secret
from toolpost.transports import credentials
from toolpost.transports.credentials import CredentialsRejection, OutgoingRequest
from toolpost.transports.http_sender import Unauthorized

PASSING = [408, 425, 429, 500, 503]


def account_of(auth: Any) -> Any:
    [account] = auth._providers[asyncio.get_running_loop()].values()
    return account


def nearly_over(auth: Any, *, ended: bool = False) -> None:
    """Make the current token expire in ten seconds, or let it have expired."""
    purse = account_of(auth)._cache
    purse.tokens = replace(purse.tokens, expires_at=time.time() + (-1 if ended else 10))


# --------------------------------------------------------------------- an authorization server that is busy


@pytest.mark.parametrize("status", PASSING)
@pytest.mark.parametrize("early", [True, False])
def test_a_failed_refresh_is_repeated_later_without_a_prompt(status, early):
    async def visit(sites: AuthSites) -> None:
        auth = sites.oauth()
        async with sites.client(auth) as mcp:
            await mcp.call_tool("anything")
            sites.paths["/token"] = lambda _: answer(status)
            if early:
                nearly_over(auth)
                for _ in range(3):
                    await mcp.call_tool("anything")  # the token is still valid for some seconds
                assert sites.looked.count("/token") == 2  # the login, and one try
                nearly_over(auth, ended=True)
            sites.valid.clear()
            with pytest.raises(AuthError, match="is temporarily unavailable") as caught:
                await mcp.call_tool("anything")
            assert caught.value.retry_safe
            assert not isinstance(caught.value, AuthorizationDenied)
            del sites.paths["/token"]
            await mcp.call_tool("anything")
        assert sites.grants == ["authorization_code", "refresh_token"]
        assert len(sites.authorized) == 1

    run(visit)


# --------------------------------------------------------------------- an answer that is lost


@pytest.mark.parametrize("lapsed", ["it has ended", "long ago"])
def test_a_lost_first_request_does_not_discard_a_new_token(monkeypatch, lapsed):
    async def visit(sites: AuthSites) -> None:
        sites.token = {"refresh_token": ...}
        auth, real = sites.oauth(), sites.answer_mcp

        async def lost(heard: Heard) -> bytes:
            if "access-2" in heard.headers["authorization"]:
                heard.cut()
            return await real(heard)

        async with sites.client(auth) as mcp:
            sites.valid.clear()
            sites.answer_mcp = lost
            with pytest.raises(RequestFailed):
                await mcp.call_tool("anything")
            assert account_of(auth)._cache.unproven_source == "granted"
            sites.answer_mcp = real
            sites.valid.clear()
            if lapsed == "it has ended":
                nearly_over(auth, ended=True)
            else:
                monkeypatch.setattr(token_cache, "TOKEN_PROBATION", 0.0)
            await mcp.call_tool("anything")
        assert len(sites.authorized) == 3

    run(visit)


def test_a_token_is_in_doubt_until_it_ends_or_a_request_goes_through():
    async def main() -> None:
        purse = TokenCache()
        purse.put(Tokens("t0ken"), "granted")
        assert purse.unproven_source == "granted"
        assert purse.mark_accepted(purse.headers("GET", "http://x"))
        assert purse.unproven_source is None
        assert not purse.mark_accepted(purse.headers("GET", "http://x"))
        purse.put(Tokens("t0ken", expires_at=1.0), "granted")
        assert purse.unproven_source is None

    asyncio.run(main())


def test_a_function_is_asked_again_although_the_first_request_with_its_token_was_lost(monkeypatch):
    async def visit(sites: AuthSites) -> None:
        tokens = iter(["one", "two", "three"])
        sites.valid["one"] = ()
        async with sites.client(lambda: next(tokens)) as mcp:
            sites.valid.clear()
            with pytest.raises(TokenRejected):
                await mcp.call_tool("anything")  # with `two`
            sites.valid["three"] = ()
            with pytest.raises(TokenRejected):
                await mcp.call_tool("anything")  # which is too new for another
            monkeypatch.setattr(credentials, "TOKEN_PROBATION", 0.0)
            await mcp.call_tool("anything")

    run(visit)


# --------------------------------------------------------------------- more scopes


@pytest.mark.requirement("AUTH-59")
@pytest.mark.parametrize("trouble", ["denied", "nobody", "busy"])
def test_a_failed_step_up_may_be_repeated(trouble):
    async def visit(sites: AuthSites) -> None:
        wanted = True

        async def person(url: str) -> str:
            if trouble == "nobody" and not wanted:
                raise AuthorizationRequired("nobody is there")
            return await browse(url)

        sites.challenge = 'Bearer scope="read"'
        async with sites.client(sites.oauth(open_url=person)) as mcp:
            await mcp.call_tool("anything")
            sites.needs, wanted = ("write",), False
            if trouble == "denied":
                sites.redirect = lambda said: {"error": "access_denied", "state": said["state"]}
            elif trouble == "busy":
                sites.paths["/token"] = lambda _: answer(503)
            for _ in range(token_cache.MAX_FRUITLESS_GRANTS + 1):
                with pytest.raises(AuthError) as caught:
                    await mcp.call_tool("anything")
                assert not isinstance(caught.value, InsufficientScope)
            sites.redirect, wanted = (lambda said: said), True
            sites.paths.clear()
            await mcp.call_tool("anything")

    run(visit)


def test_credentials_may_ask_for_more_when_their_authorization_server_is_back():
    async def visit(sites: AuthSites) -> None:
        async with sites.client(ClientCredentials("job", "s3cret")) as mcp:
            await mcp.call_tool("anything")
            sites.needs = ("write",)
            sites.paths["/token"] = lambda _: answer(503)
            for _ in range(token_cache.MAX_FRUITLESS_GRANTS + 1):
                with pytest.raises(AuthError, match="temporarily unavailable"):
                    await mcp.call_tool("anything")
            sites.paths.clear()
            await mcp.call_tool("anything")

    run(visit)


def test_refused_scopes_may_be_requested_again_later(monkeypatch):
    async def visit(sites: AuthSites) -> None:
        sites.challenge, sites.needs = 'Bearer scope="read"', ("write",)
        issue, granted = sites.issue, ("read",)
        sites.issue = lambda scopes=(): issue(granted)
        sites.token = {"scope": "read"}
        async with sites.client() as mcp:
            with pytest.raises(InsufficientScope, match=r"required: write; .*scopes="):
                await mcp.call_tool("anything")
            monkeypatch.setattr(token_cache, "PROMPT_WINDOW", 0.0)
            granted, sites.token = ("read", "write"), {"scope": "read write"}
            await mcp.call_tool("anything")

    run(visit)


@pytest.mark.requirement("AUTH-56")
def test_as_many_scopes_as_a_server_has_may_be_asked_for_one_by_one():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            for number in range(2 * token_cache.MAX_PROMPTS):
                sites.needs = (f"scope-{number}",)
                await mcp.call_tool("anything")
        assert len(sites.authorized) == 1 + 2 * token_cache.MAX_PROMPTS

    run(visit)


def test_a_user_who_always_declines_is_not_asked_again_and_all_calls_fail():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            sites.needs = ("write",)
            sites.redirect = lambda said: {"error": "access_denied", "state": said["state"]}
            for _ in range(token_cache.MAX_PROMPTS - 1):
                with pytest.raises(AuthorizationRequired, match="declined"):
                    await mcp.call_tool("anything")
            calls = [mcp.call_tool("anything") for _ in range(4)]
            failures = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(failure) for failure in failures} == {InsufficientScope}
        [told] = {str(failure) for failure in failures}
        assert "was asked 6 times" in told
        assert "required: write; request them" in told
        assert len(sites.authorized) == token_cache.MAX_PROMPTS

    run(visit)


# --------------------------------------------------------------------- secrets

LONG = "eyJhbGciOiJFUzI1NiJ9." + "A1b2C3d4E5" * 60


@pytest.mark.parametrize("way", ["auth", "headers"])
@pytest.mark.parametrize("said", ["{token}", "I do not like {token}, {token}", "{part}"])
def test_a_body_that_repeats_the_token_is_not_quoted(way, said):
    async def visit(sites: AuthSites) -> None:
        body = said.format(token=LONG, part=LONG[30:60]).encode()
        sites.paths["/mcp"] = lambda _: answer(400, body, "text/plain")
        options: dict[str, Any] = (
            {"auth": LONG} if way == "auth" else {"headers": {"Authorization": f"Bearer {LONG}"}}
        )
        with pytest.raises(ConnectFailed) as caught:
            await Client(sites.server, **options).connect()
        told = "".join(traceback.format_exception(caught.value))
        assert "400 Bad Request" in told
        assert not has_secret(told, [LONG])

    run(visit)


def test_a_challenge_that_repeats_a_long_token_is_not_quoted():
    async def visit(sites: AuthSites) -> None:
        challenge = f'Bearer error="insufficient_scope", scope="{LONG}"'
        sites.paths["/mcp"] = lambda _: answer(403, kind=None, WWW_Authenticate=challenge)
        with pytest.raises(InsufficientScope) as caught:
            await sites.client(LONG).connect()
        assert not has_secret(str(caught.value), [LONG])

    run(visit)


# --------------------------------------------------------------------- unattended requests


class Refusing:
    """Records which refused requests are unattended."""

    def __init__(self) -> None:
        self.told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def headers(self, _errand: OutgoingRequest, /) -> Mapping[str, str]:
        return {"authorization": "Bearer t0ken"}

    async def on_rejected(self, errand: OutgoingRequest, _refused: CredentialsRejection, /) -> bool:
        self.told.set_result(errand.unattended)
        return False

    def on_accepted(
        self, _errand: OutgoingRequest, _headers: Mapping[str, str], _sent: Mapping[str, str], /
    ) -> None:
        pass


@pytest.mark.parametrize("what", ["cancellation", "pong"])
def test_a_background_request_does_not_prompt_the_user(what):
    async def visit(sites: SessionAuthSites) -> None:
        held, let_go, told = asyncio.Event(), asyncio.Event(), Refusing()
        real, serve = sites.answer_mcp, sites.serve_mcp

        async def mcp_of(heard: Heard) -> bytes:
            if b"notifications/cancelled" in heard.body or b'"id":"ping-1"' in heard.body:
                return answer(401, kind=None)
            if b"tools/call" in heard.body:
                held.set()
                await let_go.wait()
            return await real(heard)

        async def serve_it(heard: Heard) -> None:
            if heard.method != "GET":
                await serve(heard)
                return
            await held.wait()
            ping = [event(b'{"jsonrpc":"2.0","id":"ping-1","method":"ping"}')] if what == "pong" else []
            await heard.write(stream(*ping, end=False))
            await heard.gone()

        sites.answer_mcp, sites.valid["t0ken"] = mcp_of, ()
        async with (
            scripted(serve_it) as server,
            Client(server.url, auth=told, revision=SESSION) as mcp,
        ):
            calls = [asyncio.ensure_future(mcp.call_tool(name)) for name in "ab"]
            await held.wait()
            if what == "cancellation":
                calls[0].cancel()
            assert await told.told is True
            let_go.set()
            assert (await calls[1]).text == "done"
            await asyncio.wait(calls)

    run_session_sites(visit)


def test_a_stream_that_was_refused_once_is_opened_again_with_the_same_token(monkeypatch):
    monkeypatch.setattr(grant, "UNATTENDED_LOGIN_TIMEOUT", 0.05)

    async def visit(sites: SessionAuthSites) -> None:
        sites.token = {"refresh_token": ...}
        async with sites.client(revision=SESSION):
            await sites.refused.wait()
            sites.for_streams = {"access-1-secret"}
            await sites.streaming.wait()
        assert sites.streams == ["access-1-secret"]
        assert len(sites.authorized) == 1

    run_session_sites(visit)


# --------------------------------------------------------------------- storages


class Stuck:
    """A storage that fails at every write, delete and lock."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self.kept.get(key)

    def put(self, _key: str, _value: str) -> None:
        raise OSError("full")

    def delete(self, _key: str) -> None:
        raise OSError("full")

    def lock(self, _key: str) -> Any:
        raise OSError("full")


def test_a_failing_storage_is_replaced_by_memory_and_reported_once(caplog):
    async def main() -> None:
        storage = Stuck()
        storage.kept["k"] = "old"
        vault = ResilientStorage(storage)
        async with vault.lock("k"):
            await vault.delete("k")
        assert await vault.get("k") is None
        await vault.put("k", "new")
        assert await vault.get("k") == "new"
        storage.kept["k"] = "of another program"
        assert await vault.get("k") == "of another program"

    asyncio.run(main())
    assert len(caplog.records) == 1


def test_an_invalid_refresh_token_is_sent_once_even_if_it_cannot_be_deleted():
    async def visit(sites: AuthSites) -> None:
        auth = sites.oauth(storage=Stuck())
        async with sites.client(auth) as mcp:
            await mcp.call_tool("anything")
            sites.refresh.clear()
            nearly_over(auth)
            for _ in range(3):
                await mcp.call_tool("anything")
        assert sites.grants == ["authorization_code", "refresh_token", "authorization_code"]

    run(visit)


# --------------------------------------------------------------------- where one may be sent


@pytest.mark.requirement("SEC-3", "SEC-4")
def test_a_name_that_says_it_is_private_may_not_send_us_into_private_networks(monkeypatch):
    async def main() -> None:
        table = {"evil.example": "10.9.9.9", "intranet.corp": "10.0.0.5", "login.corp": "93.184.216.34"}

        async def resolved(host: str, port: int, **_: object) -> list[object]:
            return [(2, 1, 6, "", (table.get(host, host), port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        guard = UrlPolicy("https://evil.example/mcp")
        with pytest.raises(
            AuthError, match=r"a private network that the server is not in.*allow_private=True"
        ):
            await guard.check("https://intranet.corp/admin", "the metadata")
        await guard.check("https://evil.example/x", "the metadata")
        await guard.check("https://login.corp/x", "the metadata")
        table["login.corp"] = "10.0.0.6"
        with pytest.raises(AuthError):
            await guard.check("https://login.corp/x", "the metadata")
        await UrlPolicy("https://evil.example/mcp", allow_private=True).check("https://login.corp/x", "x")
        await UrlPolicy("https://10.1.1.1/mcp").check("https://intranet.corp/x", "x")

    asyncio.run(main())


def test_a_traceback_names_a_class_that_can_be_imported():
    told = "".join(traceback.format_exception_only(Unauthorized("no", status=401)))
    assert told.startswith("toolpost.errors.AuthorizationRequired: no")
