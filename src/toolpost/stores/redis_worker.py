"""One of several workers on Redis: its lease, its inbox, and the news for all workers.

The lease tells others that the worker is alive. Inbox and news are streams, which the worker continues to
read after a reconnect. The receiver interprets the messages.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from typing import Any, Final, Self

import msgspec
from msgspec.structs import asdict

from toolpost.errors import StoreUnavailable
from toolpost.stores.redis_commands import BLOCK_TIMEOUT, RedisAddress, RedisCommands, Script, close_client
from toolpost.stores.store import Receive
from toolpost.version import __version__

logger: Final = logging.getLogger("toolpost.stores")

WORKER_BITS: Final = 20
MAX_INBOX: Final = 1000  # messages that wait for one worker
MAX_NEWS: Final = 4096  # messages to all workers that are kept for slow ones
INBOX_TTL: Final = 60_000  # milliseconds to keep an inbox after its last message
READ_COUNT: Final = 500  # messages to read at once
_START: Final = b"%d-%d" % (0, 0)  # the position before all messages of a stream
RETRY_DELAYS: Final = (0.05, 2.0)  # seconds between attempts to read: the first, and the longest

SEND: Final = Script(f"""
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if redis.call('XLEN', KEYS[2]) >= {MAX_INBOX} then return -1 end
redis.call('XADD', KEYS[2], '*', 'd', ARGV[1])
redis.call('PEXPIRE', KEYS[2], {INBOX_TTL})
return 1
""")
"""Puts a message into an inbox: 1, or 0 if the worker is dead, or -1 if its inbox is full."""


def make_lease_key(prefix: str, number: int) -> str:
    """Return the key that exists while a worker is alive."""
    return f"{prefix}{{w{number:x}}}:on"


def make_inbox_key(prefix: str, number: int) -> str:
    """Return the key of a worker's inbox."""
    return f"{prefix}{{w{number:x}}}:in"


class WorkerInfo(msgspec.Struct):
    """The data in the lease of a worker."""

    host: str
    pid: int
    version: str
    since: int


async def list_workers(url: str) -> list[dict[str, Any]]:
    """Return a description of each live worker. Raises ValueError if the URL is not valid."""
    address = RedisAddress(url)
    client = address.connect(address.timeout)
    found: list[dict[str, Any]] = []
    prefix = "tp:*" if address.prefix is None else address.prefix
    try:
        async for key in client.scan_iter(f"{prefix}{{w*}}:on", count=1000):
            lease, before = await client.get(key), key.decode().removesuffix(":on")
            if lease is not None:
                about = asdict(msgspec.json.decode(lease, type=WorkerInfo))
                server, _, number = before.removesuffix("}").rpartition("{w")
                server = server.removeprefix("tp:").removesuffix(":")
                inbox = await client.xlen(f"{before}:in")
                found.append({"server": server, "worker": number, **about, "messages": inbox})
    finally:
        await close_client(client)
    return found


class RedisWorker:
    """Membership of one worker, an asynchronous context manager. `number` is its number."""

    def __init__(self, commands: RedisCommands, prefix: str, receive: Receive) -> None:
        self._commands = commands
        self._prefix = prefix
        self._receive = receive
        self._news = f"{prefix}news".encode()
        self._info = msgspec.json.encode(
            WorkerInfo(socket.gethostname(), os.getpid(), __version__, int(time.time()))
        )
        self._is_leaving = False  # redis-py sometimes swallows a cancellation

    async def __aenter__(self) -> Self:
        """Take a number, and start to read."""
        life, is_free = int(self._commands.address.lease * 1000), False
        while not is_free:
            self.number = secrets.randbelow(2**WORKER_BITS - 1) + 1
            key = make_lease_key(self._prefix, self.number)
            try:
                is_free = bool(await self._commands.write("SET", key, self._info, "PX", life, "NX"))
            except StoreUnavailable:
                is_free = True  # logged; a random number is most likely free
        self._inbox = make_inbox_key(self._prefix, self.number).encode()
        self._positions = {self._inbox: _START, self._news: b""}
        with contextlib.suppress(StoreUnavailable):
            await self._find_last_news()
        loop = asyncio.get_running_loop()
        groups = (
            [(self._inbox,), (self._news,)]
            if self._commands.address.is_cluster
            else [(self._inbox, self._news)]
        )
        self._tasks = [loop.create_task(self._renew_lease())]
        self._tasks += [loop.create_task(self._read(keys)) for keys in groups]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop, and let others know at once that the worker has left."""
        self._is_leaving = True
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        with contextlib.suppress(StoreUnavailable):
            await self._commands.write("DEL", make_lease_key(self._prefix, self.number))
            await self._commands.write("DEL", self._inbox)

    async def renew(self) -> None:
        """Renew the lease, or take it again. A full Redis rejects writes, but renews a lease that exists."""
        key, life = make_lease_key(self._prefix, self.number), int(self._commands.address.lease * 1000)
        if not await self._commands.write("PEXPIRE", key, life):
            await self._commands.write("SET", key, self._info, "PX", life)
            self._commands.note_loss()
            self._pass_on(b"")

    async def _renew_lease(self) -> None:
        interval = self._commands.address.lease / 3
        while not self._is_leaving:
            await asyncio.sleep(interval if self._commands.is_available else RETRY_DELAYS[0])
            with contextlib.suppress(StoreUnavailable):  # logged where it was noticed
                await self.renew()

    # ----------------------------------------------------------------- reading

    async def _find_last_news(self) -> None:
        """Start after the newest message to all workers."""
        last = await self._commands.write("XREVRANGE", self._news, "+", "-", "COUNT", 1)
        self._positions[self._news] = last[0][0] if last else _START

    async def _read(self, keys: tuple[bytes, ...]) -> None:
        """Read messages until cancelled; after a failure, continue at the last position."""
        client = self._commands.address.connect(BLOCK_TIMEOUT + self._commands.address.timeout)
        delay, has_failed = RETRY_DELAYS[0], False
        try:
            while not self._is_leaving:
                try:
                    if self._news in keys and not self._positions[self._news]:
                        await self._find_last_news()
                    if has_failed:
                        await self.renew()  # Redis may have lost the lease
                        await self._check_positions(keys)
                    await self._read_once(client, keys)
                    delay, has_failed = RETRY_DELAYS[0], False
                except Exception as error:  # noqa: BLE001 - whatever redis-py raises when it cannot read
                    has_failed = True
                    if not isinstance(error, StoreUnavailable):
                        self._commands.pause(error)
                    await asyncio.sleep(delay * (0.5 + secrets.randbits(8) / 256))
                    delay = min(delay * 2, RETRY_DELAYS[1])
        finally:
            await close_client(client)

    async def _read_once(self, client: Any, keys: tuple[bytes, ...]) -> None:
        """Read the messages that are there, or wait for one."""
        positions = {key: self._positions[key] for key in keys}
        streams = await client.xread(positions, count=READ_COUNT, block=int(BLOCK_TIMEOUT * 1000))
        for key, entries in streams:
            for position, fields in entries:
                self._positions[key] = position
                self._pass_on(fields[b"d"])
            if key == self._inbox:
                milliseconds, _, sequence = entries[-1][0].partition(b"-")
                after = b"%b-%d" % (milliseconds, int(sequence) + 1)
                self._commands.send("XTRIM", key, "MINID", after)
            elif len(entries) == READ_COUNT and not await self._has_entry(key, positions[key]):
                self._pass_on(b"")  # there were more than Redis keeps

    def _pass_on(self, data: bytes) -> None:
        try:
            self._receive(data)
        except Exception:
            logger.exception("could not handle a message of another worker")

    async def _check_positions(self, keys: tuple[bytes, ...]) -> None:
        """Find out whether Redis has come back without messages, and continue with those that follow."""
        for key in keys:
            position = self._positions[key]
            if position == _START:
                continue
            last = await self._commands.write("XREVRANGE", key, "+", "-", "COUNT", 1)
            if not last or _parse_position(last[0][0]) < _parse_position(position):
                self._positions[key] = last[0][0] if last and key == self._news else _START
            elif key == self._inbox or await self._has_entry(key, position):
                continue
            if key == self._news:
                self._pass_on(b"")

    async def _has_entry(self, key: bytes, position: bytes) -> bool:
        return bool(await self._commands.write("XRANGE", key, position, position))


def _parse_position(position: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = position.partition(b"-")
    return int(milliseconds), int(sequence)
