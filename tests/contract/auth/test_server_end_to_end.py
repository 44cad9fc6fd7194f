"""End to end: our client logs in at the authorization server for tests, and uses our server."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from hosted import NEW, OLD, run, serving
from protected_server import kitchen, listing
from toolpost import Auth, Client, ClientCredentials, Jwt, MemoryTokens, OAuth
from toolpost.testing import AuthorizationServer


@asynccontextmanager
async def serve_with_issuer(auth: Any = None, **issuer: Any):
    """A server and its issuer, on ports of their own."""
    async with AuthorizationServer.serve(**issuer) as login:
        holder: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await holder[0](scope, receive, send)

        async def started(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "lifespan":
                await app(scope, receive, send)
                return
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            if holder:
                await holder[0].stop()
            await send({"type": "lifespan.shutdown.complete"})

        async with serving(started) as site:
            url = f"http://127.0.0.1:{site.port}/mcp"
            guard = Auth(login.issuer, resource=url, scopes=["read"], **(auth or {}))
            holder.append(kitchen(guard).asgi())
            yield url, login


async def visit(url: str) -> str:
    """Return the redirect of the login page, as a browser would."""
    async with aiohttp.ClientSession() as browser, browser.get(url, allow_redirects=False) as answer:
        assert answer.status == 302, await answer.text()
        return answer.headers["location"]


def person(**more: Any) -> OAuth:
    given: dict[str, Any] = {"open_url": visit, "storage": MemoryTokens(), **more}
    return OAuth(redirect_uri="http://127.0.0.1/callback", **given)  # at a port that is free then


@pytest.mark.requirement("AUTH-3", "AUTH-5", "AUTH-43", "AUTH-45")
@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_person_logs_in_and_is_asked_for_more_only_when_more_is_needed(revision):
    async def main() -> None:
        async with serve_with_issuer() as (url, login), Client(url, auth=person(), revision=revision) as mcp:
            told = (await mcp.call_tool("whoami")).data
            assert (told["subject"], told["scopes"]) == ("alice", ["read"])
            assert (login.request_counts["authorize"], login.request_counts["register"]) == (1, 1)
            assert (await mcp.call_tool("cook", {"dish": "egg"})).text == "egg is ready"
            assert login.request_counts["authorize"] == 2
            assert (await mcp.call_tool("whoami")).data["scopes"] == ["read", "write"]
            assert (await mcp.read_resource("kitchen://till")).contents[0].text == "100"
            assert login.request_counts["authorize"] == 3

    run(main)


@pytest.mark.requirement("AUTH-3", "AUTH-5", "AUTH-45")
def test_a_person_logs_in_at_the_url_of_http_sse_and_is_asked_for_more():
    async def main() -> None:
        async with serve_with_issuer() as (url, login):
            address = {"url": url.replace("/mcp", "/sse"), "type": "sse"}
            async with Client(address, auth=person()) as mcp:
                assert (await mcp.call_tool("whoami")).data["scopes"] == ["read"]
                assert (await mcp.call_tool("cook", {"dish": "egg"})).text == "egg is ready"
            assert login.request_counts["authorize"] == 2

    run(main)


@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_token_that_is_refused_is_renewed_once_for_all_without_the_person(revision, monkeypatch):
    monkeypatch.setattr(Jwt, "cache_ttl", 0.0)

    async def main() -> None:
        async with serve_with_issuer() as (url, login), Client(url, auth=person(), revision=revision) as mcp:
            await mcp.call_tool("whoami")
            assert login.request_counts["token"] == 1
            login.rotate(forget=True)  # all tokens that there are have become bad
            answers = await asyncio.gather(*(mcp.call_tool("whoami") for _ in range(4)))
            assert {answer.data["subject"] for answer in answers} == {"alice"}
            # The server finds it out when it asks for the keys again, because of one that it does not know.
            headers, body = listing(login.token(url, scopes=["read"]))
            async with aiohttp.ClientSession() as raw, raw.post(url, headers=headers, data=body) as answer:
                assert answer.status == 200
            answers = await asyncio.gather(*(mcp.call_tool("whoami") for _ in range(4)))
            assert {answer.data["subject"] for answer in answers} == {"alice"}
            assert (login.request_counts["authorize"], login.request_counts["token"]) == (1, 2)

    run(main)


@pytest.mark.parametrize("revision", [OLD, NEW])
@pytest.mark.parametrize("nonce", [False, True])
def test_a_key_is_proven_where_the_server_insists(revision, nonce):
    async def main() -> None:
        async with (
            serve_with_issuer({"dpop": True, "nonce": nonce}) as (url, _),
            Client(url, auth=person(), revision=revision) as mcp,
        ):
            for _ in range(3):
                assert (await mcp.call_tool("whoami")).data["subject"] == "alice"

    run(main)


def test_a_machine_proves_itself():
    async def main() -> None:
        async with serve_with_issuer(clients={"robot": "s3cret"}) as (url, _):
            auth = ClientCredentials("robot", client_secret="s3cret", storage=MemoryTokens())
            async with Client(url, auth=auth) as mcp:
                told = (await mcp.call_tool("whoami")).data
                assert (told["subject"], told["client"]) == ("robot", "robot")

    run(main)
