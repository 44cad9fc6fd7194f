"""Sessions, streams, request states and `ctx.state` belong to their principal; no other can use them."""

import asyncio
import json
from base64 import urlsafe_b64decode
from typing import Any

import pytest

from hosted import BOTH, OLD, call, legacy, message, modern, opening, run, serving
from protected_server import RESOURCE, bearer, guarded
from toolpost import Auth, Context, Jwt, Server
from toolpost.testing import TokenIssuer

EVENTS = {"Accept": "text/event-stream", "MCP-Protocol-Version": OLD}


def token(mint: TokenIssuer, subject: str = "alice", **more: Any) -> dict[str, str]:
    made: dict[str, Any] = {"scopes": ["read"], "subject": subject, **more}
    return bearer(mint.token(RESOURCE, **made))


def others(mint: TokenIssuer, second: TokenIssuer) -> dict[str, dict[str, str]]:
    """Other principals: another user, the same name at another issuer, a client of that name, …"""
    return {
        "somebody else": token(mint, "mallory"),
        "the same name of another issuer": token(second),
        "a client of that name": token(mint, sub=None, client="alice"),
        "another client": token(mint, client="another-client"),
    }


class Both:
    """A verifier that trusts two issuers."""

    cache_ttl = 60.0

    def __init__(self, *mints: TokenIssuer) -> None:
        self._each = {mint.issuer: Jwt(mint.issuer, keys=mint.jwks) for mint in mints}

    async def verify(self, token: str, *resources: str) -> Any:
        said = json.loads(urlsafe_b64decode(token.split(".")[1] + "=="))
        return await self._each[said["iss"]].verify(token, *resources)


@pytest.mark.requirement("SEC-8", "SEC-6", "ELIC-24")
@pytest.mark.parametrize(
    "who", ["somebody else", "the same name of another issuer", "a client of that name", "another client"]
)
def test_a_session_of_another_principal_does_not_exist(who):
    async def main() -> None:
        one, two = TokenIssuer("https://one.example.com"), TokenIssuer("https://two.example.com")
        async with guarded(verifier=Both(one, two)) as (site, _, _):
            mine, theirs = token(one), others(one, two)[who]
            session = await site.open(headers=mine)
            unknown = await site.post({**legacy("x" * 32), **mine}, message("ping", id=1))
            post = await site.post({**legacy(session), **theirs}, message("ping", id=1))
            get = await site.ask("GET", "/mcp", {**EVENTS, "Mcp-Session-Id": session, **theirs})
            delete = await site.ask("DELETE", "/mcp", {"Mcp-Session-Id": session, **theirs})
            # It is as if there were none: the same answer as for one that was never there.
            assert {answer.status for answer in (post, get, delete)} == {404}
            assert post.body == get.body == delete.body == unknown.body
            assert (await site.post({**legacy(session), **mine}, message("ping", id=1))).status == 200

    run(main)


@pytest.mark.requirement("SEC-8")
def test_a_newer_token_of_the_same_principal_goes_on_with_the_session():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            session = await site.open(headers=token(mint))
            newer = token(mint, scopes=["read", "write"])
            answer = await site.post({**legacy(session), **newer}, message("tools/call", call("whoami"), 1))
            told = answer.json["result"]["structuredContent"]
            # What a request may do is said by its own token, not by that which opened the session.
            assert told == {"subject": "alice", "client": "test-client", "scopes": ["read", "write"]}

    run(main)


@pytest.mark.requirement("SEC-8")
def test_the_events_of_another_principal_cannot_be_had():
    """A replayed Last-Event-ID, with the session or without it."""

    async def main() -> None:
        async with guarded() as (site, mint, _):
            mine, theirs = token(mint), token(mint, "mallory")
            session = await site.open(headers=mine)
            wire, begun = await site.begin(
                "POST",
                {**legacy(session), **mine},
                message("tools/call", {**call("talk"), "_meta": {"progressToken": 1}}, 7),
            )
            assert begun.headers["content-type"] == "text/event-stream"
            last = (await wire.event()).id
            assert last
            await wire.events()
            own = await site.open(headers=theirs)
            for named, status in ((session, 404), (own, 400)):
                sent = {**EVENTS, "Mcp-Session-Id": named, "Last-Event-ID": last, **theirs}
                refused = await site.ask("GET", "/mcp", sent)
                assert refused.status == status
                assert b"jsonrpc" in refused.body
                assert b"progress" not in refused.body
            again, head = await site.begin(
                "GET", {**EVENTS, "Mcp-Session-Id": session, "Last-Event-ID": last, **mine}
            )
            assert head.status == 200
            *_, answered = await again.events()
            assert answered.json["id"] == 7

    run(main)


@pytest.mark.requirement("SEC-8", "SEC-5")
def test_messages_of_http_sse_need_the_principal_of_the_stream():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            mine, theirs = token(mint), token(mint, "mallory")
            wire, _ = await site.begin("GET", {**EVENTS, **mine}, target="/sse")
            endpoint = (await wire.event()).data
            posted = {"Content-Type": "application/json"}
            refused = await site.post({**posted, **theirs}, opening(), endpoint)
            missing = await site.post({**posted, **theirs}, opening(), "/messages?session_id=" + "x" * 32)
            assert (refused.status, refused.body) == (404, missing.body)
            assert (await site.post(posted, opening(), endpoint)).status == 401
            assert (await site.post({**posted, **mine}, opening(), endpoint)).status == 202
            assert "result" in (await wire.event()).json

    run(main)


@pytest.mark.requirement("SEC-9", "SEC-10")
def test_state_without_a_session_belongs_to_its_principal():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            counted = []
            for who in ("alice", "bob", "alice", "alice", "bob"):
                headers, body = modern("tools/call", call("count"))
                answer = await site.post({**headers, **token(mint, who)}, body)
                counted.append(answer.json["result"]["structuredContent"]["result"])
            assert counted == [1, 1, 2, 3, 2]

    run(main)


@pytest.mark.requirement("SEC-9", "SEC-10", "ELIC-23", "ELIC-25")
def test_a_request_state_of_another_principal_is_refused():
    mint = TokenIssuer("https://login.example.com")
    auth = Auth(mint.issuer, resource=RESOURCE, verifier=Jwt(mint.issuer, keys=mint.jwks))
    server = Server("asking", auth=auth)

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return repr(answer)

    async def main() -> None:
        async with serving(server.asgi()) as site:
            capable = {"elicitation": {"form": {}}}
            headers, body = modern("tools/call", call("ask"), capabilities=capable)
            first = await site.post({**headers, **token(mint)}, body)
            told = first.json["result"]
            [key] = told["inputRequests"]
            back = {
                **call("ask"),
                "requestState": told["requestState"],
                "inputResponses": {key: {"action": "accept", "content": {"value": 3}}},
            }
            headers, body = modern("tools/call", back, capabilities=capable)
            stolen = await site.post({**headers, **token(mint, "mallory")}, body)
            assert stolen.code == -32602
            assert "Accepted" in (await site.post({**headers, **token(mint)}, body)).body.decode()

    run(main)


def test_requests_in_flight_are_counted_for_each_principal():
    mint = TokenIssuer("https://login.example.com")
    auth = Auth(mint.issuer, resource=RESOURCE, verifier=Jwt(mint.issuer, keys=mint.jwks))
    server = Server("waiting", auth=auth, max_in_flight=1)
    begun, go = asyncio.Event(), asyncio.Event()

    @server.tool
    async def wait() -> str:
        begun.set()
        await go.wait()
        return "waited"

    async def main() -> None:
        async with serving(server.asgi()) as site:
            headers, body = modern("tools/call", call("wait"))
            first = asyncio.create_task(site.post({**headers, **token(mint)}, body))
            await begun.wait()
            refused = await site.post({**headers, **token(mint)}, body)
            assert "Too many" in refused.text
            second = asyncio.create_task(site.post({**headers, **token(mint, "bob")}, body))
            go.set()
            assert {(await first).status, (await second).status} == {200}

    run(main)


@pytest.mark.parametrize("accept", [BOTH])
def test_stateless_serving_of_old_clients_wants_tokens_as_well(accept):
    async def main() -> None:
        async with guarded(web={"stateless": True}) as (site, mint, _):
            said = message("tools/call", call("whoami"), 1)
            assert (await site.post(legacy(), said)).status == 401
            answer = await site.post({**legacy(), "Accept": accept, **token(mint)}, said)
            assert answer.json["result"]["structuredContent"]["subject"] == "alice"
            # … and gets the missing scopes in the same way.
            more = await site.post(
                {**legacy(), **token(mint)}, message("tools/call", call("cook", dish="egg"), 1)
            )
            assert more.status == 403

    run(main)
