"""A gateway in front of protected servers: each caller has credentials and a connection of their own."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from test_credentials import ERAS, Browser, Later

from hosted import run, serving
from toolpost import Auth, Client, Context, Http, Server
from toolpost.errors import RPCError, TokenRejected
from toolpost.gateway.reload import FileGateway
from toolpost.testing import AuthorizationServer

GATEWAY = "http://127.0.0.1/gw"


class Office:
    """A gateway with an audit log, in front of a server that only knows tokens of its own."""

    def __init__(self, issuer: AuthorizationServer, far_url: str, folder: Path) -> None:
        self.issuer = issuer
        self.far_url = far_url
        self.folder = folder
        self.url = ""
        self.reports: list[str] = []
        self.far = Recorder()
        self.seen = self.far.seen
        """What the upstream saw as `Authorization`."""

    def token(self, subject: str = "ann", audience: Any = GATEWAY, **options: Any) -> str:
        return self.issuer.token(audience, subject=subject, **options)

    async def reject_all(self) -> None:
        """Let the upstream reject every token from now on."""
        await self.far.stop()
        self.far.app = _make_far(self.issuer.issuer, "http://127.0.0.1/another").asgi()

    def client(self, token: str, **options: Any) -> Client:
        return Client(Http(self.url, auth=token), **options)


@asynccontextmanager
async def office(folder: Path, auth: Any, policy: Any = (), **options: Any) -> AsyncGenerator[Office]:
    async with AuthorizationServer.serve(clients={"gw": "s3cret"}, **options) as issuer:
        later = Later()
        async with serving(later, lifespan="off") as site:
            far_url = f"http://127.0.0.1:{site.port}/mcp"
            issuer.audiences = frozenset([far_url])
            place = Office(issuer, far_url, folder)
            later.app = place.far
            place.far.app = _make_far(issuer.issuer, far_url).asgi()
            settings = {
                "auth": {"issuer": issuer.issuer, "audience": GATEWAY},
                "audit": {"path": "calls.jsonl", "arguments": True},
                "policy": list(policy),
            }
            text = json.dumps(auth).replace("ISSUER", issuer.issuer).replace("FAR", far_url)
            entry = {"url": far_url, "toolpost": {"auth": json.loads(text)}}
            path = folder / "mcp.json"
            content = {"mcpServers": {"far": entry}, "toolpost": settings}
            await asyncio.to_thread(path.write_text, json.dumps(content))
            gateway = await asyncio.to_thread(FileGateway, path, place.reports.append)
            async with serving(gateway.server.asgi()) as front:
                place.url = f"http://127.0.0.1:{front.port}/mcp"
                yield place


def _make_far(issuer: str, url: str) -> Server:
    far = Server("far", auth=Auth(issuer, resource=url))

    @far.tool
    async def whoami(ctx: Context, note: str = "") -> str:
        assert ctx.principal is not None
        return f"{ctx.principal.subject} by {ctx.principal.client}"

    return far


class Recorder(Later):
    """Records the credentials of all requests to the upstream."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/mcp":
            self.seen.append(dict(scope["headers"]).get(b"authorization", b"").decode())
        await super().__call__(scope, receive, send)


EXCHANGE = {"exchange": {"issuer": "ISSUER", "client_id": "gw", "client_secret": "s3cret"}}


@pytest.mark.parametrize("revision", ERAS)
def test_each_caller_is_known_upstream(tmp_path, revision):
    async def main() -> None:
        async with office(tmp_path, EXCHANGE) as place:
            tokens = [place.token(name) for name in ("ann", "bob")]
            for name, token in zip(("ann", "bob"), tokens, strict=True):
                async with place.client(token, revision=revision) as client:
                    assert [tool.name for tool in await client.list_tools()] == ["far_whoami"]
                    assert (await client.call_tool("far_whoami")).text == f"{name} by gw"
            assert not {f"Bearer {token}" for token in tokens} & set(place.seen)

    run(main)


def test_callers_at_the_same_time_are_not_mixed_up(tmp_path):
    async def main() -> None:
        async with office(tmp_path, EXCHANGE) as place:

            async def visit(name: str) -> None:
                async with place.client(place.token(name)) as client:
                    for _ in range(5):
                        assert (await client.call_tool("far_whoami")).text == f"{name} by gw"

            async with place.client(place.token("first")) as client:
                await client.list_tools()
            await asyncio.gather(*(visit(f"user{number}") for number in range(10)))

    run(main)


def test_a_caller_without_credentials_gets_nothing_weaker(tmp_path):
    async def main() -> None:
        async with office(tmp_path, EXCHANGE) as place:
            async with place.client(place.token("ann")) as client:
                await client.list_tools()
                place.seen.clear()
                place.issuer.audiences = frozenset()
                async with place.client(place.token("bob")) as other:
                    with pytest.raises(RPCError, match="not accepted for far: invalid_target"):
                        await other.call_tool("far_whoami")
                assert place.seen == []
            with pytest.raises(TokenRejected):
                async with place.client(place.token("ann", "http://127.0.0.1/elsewhere")) as client:
                    await client.list_tools()

    run(main)


def test_missing_scopes_are_a_403_that_names_them(tmp_path):
    exchange = {"exchange": {**EXCHANGE["exchange"], "audience": "nowhere", "scopes": ["far:read"]}}

    async def main() -> None:
        async with office(tmp_path, exchange) as place, place.client(place.token("ann")) as client:
            assert await client.list_tools() == []
            with pytest.raises(RPCError, match="Unknown tool"):
                await client.call_tool("far_whoami")
            place.issuer.audiences = frozenset(["nowhere"])
            # The token is then for another audience, and the server refuses it.
            assert await client.list_tools() == []

    run(main)


def test_a_token_that_was_revoked_upstream_is_a_refusal(tmp_path):
    async def main() -> None:
        async with office(tmp_path, EXCHANGE) as place, place.client(place.token("ann")) as client:
            await client.list_tools()
            await place.reject_all()
            with pytest.raises(RPCError, match="does not accept the exchanged token"):
                await client.call_tool("far_whoami")
            assert len(set(place.seen)) == 2  # the first, and one more

    run(main)


def test_a_token_is_passed_on_only_to_its_audience(tmp_path):
    async def main() -> None:
        async with office(tmp_path, {"passthrough": {"same_audience": True}}) as place:
            both = place.token("ann", [GATEWAY, place.far_url])
            async with place.client(both) as client:
                assert [tool.name for tool in await client.list_tools()] == ["far_whoami"]
                assert (await client.call_tool("far_whoami")).text == "ann by test-client"
            place.seen.clear()
            async with place.client(place.token("bob")) as client:
                with pytest.raises(RPCError, match="its audience must include"):
                    await client.call_tool("far_whoami")
            assert place.seen == []

    run(main)


@pytest.mark.parametrize("revision", ERAS)
def test_each_user_signs_in_once(tmp_path, revision):
    async def main() -> None:
        async with office(tmp_path, {"per_user": {"storage": "tokens"}}) as place:
            for name in ("ann", "bob"):
                browser = Browser()
                place.issuer.user = f"{name}-at-far"
                async with place.client(place.token(name), revision=revision, **browser.options) as client:
                    assert "far_sign_in" in [tool.name for tool in await client.list_tools()]
                    assert "signed in to far" in (await client.call_tool("far_sign_in")).text
                    found = await client.list_tools()
                    assert {"far_sign_in", "far_whoami"} == {tool.name for tool in found}
                    for _ in range(2):
                        told = (await client.call_tool("far_whoami")).text
                        assert told.startswith(f"{name}-at-far by ")
                    assert len(browser.pages) == 1

    run(main)


def test_secrets_are_in_no_log_error_record_or_result(tmp_path, caplog):
    """Not the caller's token, nor the exchanged one, nor the gateway's secret: whatever fails."""
    told: list[str] = []
    secrets = ["s3cret"]

    async def main() -> None:
        async with office(tmp_path, EXCHANGE) as place:
            token = place.token("ann")
            async with place.client(token) as client:
                await client.list_tools()
                told.append(str((await client.call_tool("far_whoami", {"note": f"Bearer {token}"})).raw))
                await place.reject_all()
                with pytest.raises(RPCError) as failed:
                    await client.call_tool("far_whoami")
                told.append(f"{failed.value!r} {failed.value} {failed.value.data!r}")
            secrets.extend([token, *(seen.removeprefix("Bearer ") for seen in place.seen if seen)])
            told.extend(place.reports)

    with caplog.at_level(logging.DEBUG):
        run(main)
    told += [caplog.text, (tmp_path / "calls.jsonl").read_text()]
    assert len(secrets) >= 3
    for text in told:
        for secret in secrets:
            assert secret not in text
            assert secret.rpartition(".")[2] not in text


def test_policies_see_the_upstream_of_callers(tmp_path):
    rules = [{"upstream": "far", "subjects": "bob", "then": "hide"}, {"upstream": "far"}]

    async def main() -> None:
        async with office(tmp_path, EXCHANGE, rules) as place:
            async with place.client(place.token("ann")) as client:
                assert [tool.name for tool in await client.list_tools()] == ["far_whoami"]
            async with place.client(place.token("bob")) as client:
                assert await client.list_tools() == []

    run(main)


def test_only_so_many_callers_are_connected(tmp_path, monkeypatch):
    monkeypatch.setattr("toolpost.gateway.callers.MAX_CALLERS", 2)

    async def main() -> None:
        async with office(tmp_path, EXCHANGE) as place:
            for name in ("ann", "bob", "cid", "ann"):
                async with place.client(place.token(name)) as client:
                    await client.list_tools()
                    assert (await client.call_tool("far_whoami")).text == f"{name} by gw"

    run(main)
