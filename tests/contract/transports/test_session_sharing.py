"""Processes that share only a key: each serves any session, behind a proxy without sticky sessions."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from hosted import Site, kitchen, legacy, message, opening, serving
from raw_http import wired
from revision_dates import DATES
from round_robin import round_robin
from server_processes import OLD, run, victim
from session_site import listening, steps, text, tool
from toolpost import KeyRing

KEY = "a key that all processes of a fleet have"
SESSION_REVISIONS = DATES[:4]
CALLS = 500


async def workers(stack: AsyncExitStack, count: int = 2, key: str = KEY) -> list[Any]:
    """This number of processes with the same key."""
    return [await stack.enter_async_context(victim(key=key)) for _ in range(count)]


async def open_session(site: Site, revision: str) -> str:
    """The id of a session whose handshake is done, each message of it on a connection of its own."""
    opened = await site.post(legacy(revision=None), opening(revision))
    assert opened.json["result"]["protocolVersion"] == revision
    session = opened.headers["mcp-session-id"]
    told = await site.post(legacy(session, revision), message("notifications/initialized"))
    assert (told.status, told.body) == (202, b"")
    return session


@pytest.mark.requirement("HTTPL-22", "HTTPL-24")
def test_five_hundred_calls_reach_two_processes_and_none_fails():
    async def main():
        async with AsyncExitStack() as stack:
            ports = [worker.port for worker in await workers(stack)]
            proxy = await stack.enter_async_context(round_robin(*ports))
            site = Site(None, proxy.port)
            sessions = {revision: await open_session(site, revision) for revision in SESSION_REVISIONS}
            served: dict[str, Counter[str]] = {revision: Counter() for revision in sessions}

            async def talk(revision: str, session: str) -> None:
                headers = legacy(session, revision)
                for number in range(1, CALLS // len(sessions) + 1):
                    answer = await site.post(headers, tool("pid", number))
                    assert answer.status == 200, answer
                    served[revision][text(answer)] += 1
                    if number % 10 == 0:
                        pong = await site.post(headers, message("ping", id=f"ping {number}"))
                        assert (pong.status, pong.json["result"]) == (200, {})
                        said = message("notifications/roots/list_changed")
                        assert (await site.post(headers, said)).status == 202

            await asyncio.gather(*(talk(*each) for each in sessions.items()))
            assert sum(count.total() for count in served.values()) == CALLS
            assert all(len(count) == 2 for count in served.values()), served
            assert set(proxy.taken) == set(ports)

    run(main)


def test_event_streams_come_from_either_process():
    async def main():
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(
                round_robin(*(worker.port for worker in await workers(stack)))
            )
            session = await open_session(Site(None, proxy.port), OLD)
            for number in range(1, 11):
                async with wired(proxy.port) as wire:
                    call = tool("steps", number, token=number, count=3)
                    await wire.ask("POST", "/mcp", legacy(session), call)
                    await wire.head()
                    events = await wire.events()
                assert steps(events) == [1, 2, 3]
                assert events[-1].json["id"] == number

    run(main)


@pytest.mark.requirement("HTTPL-27")
def test_without_a_shared_store_a_session_ends_only_in_one_process():
    """Processes that share only a key do not communicate: the others keep serving the session."""

    async def main():
        async with AsyncExitStack() as stack:
            first, second = [Site(None, worker.port) for worker in await workers(stack)]
            proxy = await stack.enter_async_context(round_robin(first.port, second.port))
            session = await open_session(Site(None, proxy.port), OLD)
            proxy.ports = [first.port]
            ended = await Site(None, proxy.port).ask("DELETE", "/mcp", legacy(session))
            assert ended.status == 200
            ping = message("ping", id=1)
            assert (await first.post(legacy(session), ping)).status == 404
            assert (await first.ask("GET", "/mcp", listening(session))).status == 404
            assert (await second.post(legacy(session), ping)).status == 200
            assert (await second.ask("DELETE", "/mcp", legacy(session))).status == 200
            assert (await second.post(legacy(session), ping)).status == 404

    run(main)


@pytest.mark.parametrize("revision", SESSION_REVISIONS)
def test_a_session_outlives_the_process_that_has_opened_it(revision):
    async def main():
        async with victim(key=KEY) as server:
            session = await open_session(Site(None, server.port), revision)
            server.process.kill()
            await server.ends()
        async with victim(key=KEY) as server:
            answer = await Site(None, server.port).post(legacy(session, revision), tool("pid", 1))
            assert text(answer) == str(server.pid)

    run(main)


def test_a_process_with_another_key_knows_nothing_of_a_session():
    async def main():
        async with victim(key=KEY) as server, victim(key=KEY.upper()) as stranger:
            session = await open_session(Site(None, server.port), OLD)
            for number in range(2):
                refused = await Site(None, stranger.port).post(legacy(session), message("ping", id=number))
                assert refused.status == 404
            forged = session[:-1] + ("A" if session[-1] != "A" else "B")
            assert (await Site(None, server.port).post(legacy(forged), message("ping", id=1))).status == 404
            assert (await Site(None, server.port).post(legacy(session), message("ping", id=1))).status == 200

    run(main)


@pytest.mark.parametrize("keys", [None, KeyRing([b"k" * 32])])
def test_a_server_that_gets_sessions_of_another_process_says_so_once(keys, caplog):
    """`uvicorn --workers 2` without shared keys: clients lose their sessions at every other request."""

    async def main():
        ours, theirs = kitchen(keys=keys).asgi(), kitchen().asgi()
        async with serving(ours) as first, serving(theirs) as second:
            session = await second.open()
            for _ in range(3):
                assert (await first.post(legacy(session), message("ping", id=1))).status == 404

    run(main)
    told = [record.message for record in caplog.records if record.name.startswith("toolpost")]
    assert len([text for text in told if "several processes serve it" in text]) == (keys is None)
