"""Limits on calls, subscriptions and streams, per client and in total, and the responses beyond them."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosted import Stage, call, hosted, kitchen, legacy, message, modern, run, serving
from toolpost.server.http import post
from toolpost.server.http.exchange import RETRY_AFTER, HTTPRefusal
from toolpost.server.http.worker import RequestCounts
from waiting import until

EVENTS = {"Accept": "text/event-stream"}
ECHO = modern("tools/call", call("echo", text="hi"))
QUIET = modern("tools/call", call("quiet"))
TOOLS = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "sub")


def user(scope: Any) -> str | None:
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


def as_user(name: str, headers: dict[str, str]) -> dict[str, str]:
    return {**headers, "X-User": name}


def load(site: Any) -> RequestCounts:
    return site.app._worker.counts


@asynccontextmanager
async def stage_and_site(server: Any = None, **web: Any):
    stage = Stage()
    async with hosted(kitchen(stage, **(server or {})), **web) as site:
        yield stage, site
        stage.go.set()
        await until(lambda: not load(site).calls)
        assert load(site)._peers == {}
    assert load(site).streams == 0


async def begin(site: Any, headers: dict[str, str], body: bytes, count: int = 1) -> Any:
    """Start a call, and wait until it runs."""
    before = load(site).calls if site.app._worker else 0
    wire = await site.wire()
    await wire.ask("POST", "/mcp", headers, body)
    await until(lambda: site.app._worker and load(site).calls == before + count)
    return wire


# --------------------------------------------------------------------- calls


def test_calls_of_all_clients_are_bounded_in_every_era():
    async def main():
        async with stage_and_site(max_calls=2) as (stage, site):
            session = await site.open()
            one = await begin(site, legacy(session), message("tools/call", call("quiet"), 1))
            two = await begin(site, *QUIET)
            for headers, body in (ECHO, (legacy(session), message("ping", id=2)), QUIET):
                refused = await site.post(headers, body)
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
                assert "max_calls=" in refused.text
            # A message that ends or continues a call is not a new call.
            note = message("notifications/cancelled", {"requestId": 1})
            assert (await site.post(legacy(session), note)).status == 202
            assert (await one.answer()).status == 202
            assert (await site.post(*ECHO)).status == 200
            stage.go.set()
            assert (await two.answer()).status == 200

    run(main)


def test_calls_of_a_session_that_come_all_at_once_are_bounded_too():
    async def main():
        async with stage_and_site(max_calls=3) as (stage, site):
            session = await site.open()
            wires = [await site.wire() for _ in range(20)]
            for number, wire in enumerate(wires):
                await wire.ask("POST", "/mcp", legacy(session), message("tools/call", call("quiet"), number))
            answers = [asyncio.create_task(wire.answer()) for wire in wires]
            await until(lambda: sum(answer.done() for answer in answers) == 17)
            assert load(site).calls == 3
            stage.go.set()
            bodies = [(await answer).body for answer in answers]
            assert sum(b"max_calls=" in body for body in bodies) == 17

    run(main)


def test_a_session_that_ends_releases_its_slots():
    async def main():
        async with stage_and_site(max_calls=1) as (_, site):
            session = await site.open()
            wire = await begin(site, legacy(session), message("tools/call", call("quiet"), 1))
            assert (await site.ask("DELETE", "/mcp", legacy(session))).status == 200
            assert (await wire.answer()).status == 404
            await until(lambda: not load(site).calls)

    run(main)


def test_the_calls_of_a_principal_are_counted_in_all_its_sessions_and_outside():
    async def main():
        async with stage_and_site({"max_in_flight": 2}, principal=user) as (_, site):
            alice, bob = ({"X-User": name} for name in ("alice", "bob"))
            one, two = [await site.open(headers=alice) for _ in range(2)]
            ask = message("tools/call", call("quiet"), 1)
            for session in (one, two):
                await begin(site, {**legacy(session), **alice}, ask)
            refused = await site.post({**QUIET[0], **alice}, QUIET[1])
            assert (refused.status, refused.headers["retry-after"]) == (429, "5")
            assert refused.json["id"] == 1
            assert (refused.code, "max_in_flight=" in refused.text) == (-32603, True)
            # A client of the session era may take an error status for the end of its session.
            told = await site.post({**legacy(one), **alice}, message("tools/call", call("quiet"), 2))
            assert (told.status, told.json["id"], "max_in_flight=" in told.text) == (200, 2, True)
            await begin(site, {**QUIET[0], **bob}, QUIET[1])

    run(main)


def test_a_batch_counts_as_many():
    async def main():
        async with stage_and_site({"max_in_flight": 3}) as (stage, site):
            session = await site.open("2025-03-26")
            calls = [message("tools/call", call("quiet"), number) for number in range(4)]
            wire = await begin(site, legacy(session, "2025-03-26"), b"[" + b",".join(calls) + b"]", count=3)
            stage.go.set()
            answers = (await wire.answer()).json
            refused = [answer["error"]["code"] for answer in answers if "error" in answer]
            assert (len(answers), refused) == (4, [-32603])

    run(main)


# --------------------------------------------------------------------- subscriptions and streams


def test_the_subscriptions_of_a_principal_are_bounded(monkeypatch):
    monkeypatch.setattr(post, "MAX_SUBSCRIPTIONS", 2)

    async def main():
        async with stage_and_site(principal=user) as (_, site):
            headers, body = TOOLS
            wires = [(await site.begin("POST", as_user("alice", headers), body))[0] for _ in range(2)]
            refused = await site.post(as_user("alice", headers), body)
            assert (refused.status, refused.headers["retry-after"]) == (429, "5")
            assert (refused.json["id"], "the limit is 2" in refused.text) == ("sub", True)
            _, head = await site.begin("POST", as_user("bob", headers), body)
            assert head.status == 200
            assert load(site).calls == 0  # none of them is a call
            await wires[0].abort()
            await until(lambda: load(site).streams == 2)
            _, head = await site.begin("POST", as_user("alice", headers), body)
            assert head.status == 200

    run(main)


def test_anonymous_clients_share_the_limit_of_their_address():
    async def main():
        async with stage_and_site({"max_in_flight": 3}) as (_, site):
            for _ in range(3):
                assert (await site.begin("POST", *TOOLS))[1].status == 200
            assert (await site.post(*TOOLS)).status == 429

    run(main)


def test_streams_for_news_are_bounded_in_all():
    async def main():
        async with stage_and_site(max_streams=2) as (_, site):
            session = await site.open()
            await site.begin("POST", *TOOLS)
            wire, head = await site.begin("GET", {**EVENTS, "Mcp-Session-Id": session})
            assert head.status == 200
            for refused in (
                await site.post(*TOOLS),
                await site.ask("GET", "/mcp", {**EVENTS, "Mcp-Session-Id": session}),
                await site.ask("GET", "/sse", EVENTS),
            ):
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
                assert "max_streams=" in refused.text
            await wire.abort()
            await until(lambda: load(site).streams == 1)
            assert (await site.begin("GET", EVENTS, target="/sse"))[1].status == 200

    run(main)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_sends_retry_after(status):
    assert dict(HTTPRefusal(status, "no").headers) == {b"retry-after": RETRY_AFTER[status]}
    assert dict(HTTPRefusal(status, "no", [(b"retry-after", b"9")]).headers) == {b"retry-after": b"9"}
    assert not HTTPRefusal(400, "no").headers


def test_a_server_that_stops_says_so_and_serves_what_still_comes():
    async def main():
        stage = Stage()
        app = kitchen(stage).asgi(health="/health", drain=20)
        async with serving(app) as site:
            running = asyncio.create_task(site.post(*QUIET))
            await stage.begun.wait()
            stopping = asyncio.create_task(app.stop())
            await until(lambda: site.app._worker.is_draining)
            answer = await site.ask("GET", "/health/ready")
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            answer = await site.post(*ECHO)  # a balancer needs a while to learn it
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            stage.go.set()
            assert (await running).status == 200
            await stopping

    run(main)
