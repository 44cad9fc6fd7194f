"""What the store on Redis does when Redis is slow, full, emptied or too far ahead."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from redis_servers import PROGRAMS, RedisServer, redis_server
from toolpost.errors import StoreUnavailable
from toolpost.stores import redis_commands, redis_worker
from toolpost.stores.redis_store import RedisStore
from waiting import until


@pytest.fixture(params=PROGRAMS)
def server(request, tmp_path):
    with redis_server(tmp_path, request.param) as running:
        yield running


@asynccontextmanager
async def opened(server: RedisServer, options: str = "") -> AsyncGenerator[RedisStore]:
    store = RedisStore(f"{server.url}?prefix=p:{options}")
    try:
        yield store
    finally:
        await store.close()


async def say(server: RedisServer, *command: str) -> str:
    return await asyncio.to_thread(server.run, *command)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 100))


async def deliver(store: RedisStore, number: int, data: bytes) -> bool:
    """Send a message as soon as the store is available."""
    while True:
        try:
            return await store.send(number, data)
        except StoreUnavailable:
            await asyncio.sleep(0.01)  # the store has no event for this


def test_after_a_slow_read_others_fail_at_once(server):
    async def main():
        async with opened(server, "&timeout=8") as store:
            assert await store.records.get("k") is None
            server.pause()
            with pytest.raises(StoreUnavailable, match="did not answer within 1 s"):
                await store.records.get("k")
            with pytest.raises(StoreUnavailable, match="slow"):
                await store.records.get("k")
            server.resume()
            await store.records.put("k", b"1", 60)  # writes are patient
            await until(lambda: not store._commands._slow_until > asyncio.get_running_loop().time())
            assert await store.records.get("k") == b"1"

    run(main)


def test_a_command_without_a_waiting_caller_is_not_sent(server):
    async def main():
        async with opened(server) as store:
            assert await store.records.get("k") is None
            server.pause()
            first = asyncio.create_task(store.records.put("first", b"1", 60))  # on its way
            await asyncio.sleep(0)
            second = asyncio.create_task(store.records.put("second", b"1", 60))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait([second])
            server.resume()
            await first
            assert await store.records.get("first") == b"1"
            assert await store.records.get("second") is None

    run(main)


def test_commands_that_wait_are_bounded(server, monkeypatch):
    monkeypatch.setattr(redis_commands, "MAX_WAITING", 3)
    monkeypatch.setattr(redis_commands, "MAX_WAITING_BYTES", 100)

    async def main():
        async with opened(server) as store:
            sent = [store._commands.send("GET", "k") for _ in range(3)]
            with pytest.raises(StoreUnavailable, match="too many commands"):
                await store.records.get("k")
            assert await asyncio.gather(*sent) == [None] * 3
            with pytest.raises(StoreUnavailable, match="too many commands"):
                await store.records.put("k", b"x" * 101, 60)
            await store.records.put("k", b"x" * 100, 60)

    run(main)


def test_a_worker_stays_alive_while_redis_is_full(server):
    """A full Redis rejects writes that need memory, but renews a lease that exists."""

    async def main():
        options = "&lease=1"
        async with (
            opened(server, options) as here,
            opened(server, options) as there,
            here.join(lambda _: None) as number,
        ):
            await say(server, "config", "set", "maxmemory", "1")
            with pytest.raises(StoreUnavailable, match="refused a command"):
                await here.logs.append("l", b"1", 60)
            key, left = redis_worker.make_lease_key("p:", number), [1000]
            while sum(after > before for before, after in pairwise(left)) < 5:
                left.append(int((await say(server, "pttl", key)).strip(":\r\n")))
                assert left[-1] > 0
                await asyncio.sleep(0.01)  # the server has no event for this
            with pytest.raises(StoreUnavailable):  # not: False, as for a dead worker
                await there.send(number, b"1")
            await say(server, "config", "set", "maxmemory", "0")
            assert await deliver(there, number, b"2")

    run(main)


def test_an_inbox_refuses_messages_when_it_is_full(server):
    async def main():
        async with opened(server) as store:
            await say(server, "set", redis_worker.make_lease_key("p:", 7), "a worker that does not read")
            for _ in range(redis_worker.MAX_INBOX // 100):
                assert all(await asyncio.gather(*(store.send(7, b"x") for _ in range(100))))
            with pytest.raises(StoreUnavailable, match="unread"):
                await store.send(7, b"x")

    run(main)


def test_a_worker_that_reads_too_slowly_is_told_that_messages_are_lost(server):
    async def main():
        heard: list[bytes] = []
        async with opened(server) as store, store.join(heard.append):
            await store.publish(b"first")
            await until(lambda: heard == [b"first"])
            add = "redis.call('XADD', KEYS[1], 'MAXLEN', '~', 4096, '*', 'd', number)"
            await say(server, "eval", f"for number = 1, 9000 do {add} end", "1", "p:news")
            await until(lambda: heard[-1] == b"9000")
            assert b"" in heard
            assert len(heard) < 9000

    run(main)


def test_messages_that_are_few_enough_are_not_lost(server):
    async def main():
        heard: list[bytes] = []
        async with opened(server) as store, store.join(heard.append):
            await store.publish(b"first")
            await until(lambda: heard == [b"first"])
            script = "for number = 1, 3000 do redis.call('XADD', KEYS[1], '*', 'd', number) end"
            await say(server, "eval", script, "1", "p:news")
            await until(lambda: heard[-1] == b"3000")
            assert heard[1:] == [b"%d" % number for number in range(1, 3001)]

    run(main)


def test_a_connection_that_breaks_loses_no_message(server):
    async def main():
        heard: list[bytes] = []
        async with opened(server) as here, opened(server) as there, here.join(heard.append) as number:
            for count in range(20):
                await say(server, "client", "kill", "type", "normal")
                assert await deliver(there, number, b"%d" % count)
            await until(lambda: len(set(heard)) == 20)
            assert list(dict.fromkeys(heard)) == [b"%d" % count for count in range(20)]

    run(main)


def test_a_worker_hears_that_redis_came_back_empty(server):
    async def main():
        heard: list[bytes] = []
        async with opened(server) as store, store.join(heard.append):
            await store.publish(b"before")
            await until(lambda: heard == [b"before"])
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await until(lambda: b"" in heard)

    run(main)


def test_an_address_with_a_password_appears_in_no_error(server, caplog):
    server.run("config", "set", "requirepass", "right")

    async def main():
        store = RedisStore(f"redis://:secret@127.0.0.1:{server.port}")
        with pytest.raises(StoreUnavailable) as caught:
            await store.records.put("k", b"1", 60)
        await store.close()
        assert "secret" not in str(caught.value)

    run(main)
    assert re.search("unreachable.*password", caplog.text)
    assert "secret" not in caplog.text
