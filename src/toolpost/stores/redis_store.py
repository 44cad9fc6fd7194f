"""A store on Redis or Valkey, for any number of workers on any number of machines.

A record is a string. A log is a list whose elements start with the number of the entry and the bytes of all
entries so far. A queue is a sorted set: each item with the time when it is ready, by the clock of Redis.
Messages between workers are left to `redis_worker`.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any, Final

from toolpost.errors import StoreUnavailable
from toolpost.stores.memory import MAX_ENTRIES, MAX_LOG_BYTES
from toolpost.stores.redis_commands import RedisAddress, RedisCommands, Script
from toolpost.stores.redis_worker import MAX_NEWS, SEND, RedisWorker, make_inbox_key, make_lease_key
from toolpost.stores.store import LogEntry, LogGap, LogStore, QueueStore, Receive, RecordStore

_SWAP: Final = Script("""
local found = redis.call('GET', KEYS[1])
if ARGV[1] == '0' and found or ARGV[1] == '1' and found ~= ARGV[2] then return 0 end
if ARGV[3] == '0' then redis.call('DEL', KEYS[1])
elseif ARGV[5] == '' then redis.call('SET', KEYS[1], ARGV[4])
else redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5]) end
return 1
""")
"""Replaces a value: ARGV = whether there is an old value, it, whether there is a new one, it, its life."""

_APPEND: Final = Script("""
local last = redis.call('LINDEX', KEYS[1], -1)
local number, total = 0, 0
if last then
  number, total = struct.unpack('>I8I8', last)
end
local given = tonumber(ARGV[2])
if given > 0 then
  if given <= number then return given end
  number = given - 1
end
number, total = number + 1, total + #ARGV[1]
local length = redis.call('RPUSH', KEYS[1], struct.pack('>I8I8', number, total) .. ARGV[1])
while length > 1 do
  local first = redis.call('LINDEX', KEYS[1], 0)
  local _, before = struct.unpack('>I8I8', first)
  if length <= tonumber(ARGV[4]) and total - before + #first - 16 <= tonumber(ARGV[5]) then break end
  redis.call('LPOP', KEYS[1])
  length = length - 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return number
""")
"""Appends an entry: ARGV = data, number or 0, life, limits of entries and bytes. A number may be repeated."""

_READ: Final = Script("""
local last = redis.call('LINDEX', KEYS[1], -1)
if not last then return -1 end
local first = struct.unpack('>I8', redis.call('LINDEX', KEYS[1], 0))
local after = tonumber(ARGV[1])
if after > struct.unpack('>I8', last) then return -1 end
if after < first - 1 then return first - 1 end
return redis.call('LRANGE', KEYS[1], after - first + 1, -1)
""")
"""Returns the entries after a number, or the number after which all are kept; -1 if there is none."""

_TIME: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

_SET_DUE: Final = Script(f"""{_TIME}
for i = 3, #ARGV do
  if ARGV[1] == '1' or redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[i])
  end
end
return 1
""")
"""Sets when items are ready: ARGV = whether to add those that are not there, milliseconds from now, items."""

_TAKE: Final = Script(f"""{_TIME}
local items = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, item in ipairs(items) do redis.call('ZADD', KEYS[1], now + ARGV[2], item) end
return items
""")
"""Returns items that are ready, and hides them: ARGV = how many, for how many milliseconds."""

_HEADER_SIZE: Final = 16  # bytes in front of an entry: its number, and the bytes of all entries so far


class RedisStore:
    """A store on a Redis or Valkey server, with sentinels, or on a cluster.

    Args:
        url: `redis://host:6379/0`, `rediss://…`, `redis+sentinel://host1,host2/service/0` or
            `redis+cluster://host1,host2`. Options: `?prefix=`, `lease=` (seconds until a worker that is
            silent counts as dead), `timeout=` (seconds for a command), `fresh=` (seconds for which a worker
            may use settings of a session that it has read; 0 reads them for each request).
        name: servers with this name share data, unless the URL has a prefix.
        entries: how many entries a log keeps.
        size: how many bytes these may have together; a single one may have more.

    Raises:
        ValueError: the URL is not valid.
    """

    def __init__(
        self, url: str, name: str = "", *, entries: int = MAX_ENTRIES, size: int = MAX_LOG_BYTES
    ) -> None:
        address = RedisAddress(url)
        self._prefix = f"tp:{name}:" if address.prefix is None else address.prefix
        self.lease = address.lease
        self._commands = RedisCommands(address)
        self._worker: RedisWorker | None = None
        self.fresh = address.fresh
        self.records: RecordStore = _RedisRecords(self._commands, f"{self._prefix}r:")
        self.logs: LogStore = _RedisLogs(self._commands, f"{self._prefix}l:", entries, size)
        self.queues: QueueStore = _RedisQueues(self._commands, f"{self._prefix}q:")

    @asynccontextmanager
    async def join(self, receive: Receive) -> AsyncGenerator[int]:
        """Join as a worker until the context ends; its value is the number of the worker."""
        async with RedisWorker(self._commands, self._prefix, receive) as worker:
            self._worker = worker
            try:
                yield worker.number
            finally:
                self._worker = None

    async def send(self, worker: int, data: bytes) -> bool:
        """Send a message to one worker; return False if there is no such worker.

        Raises:
            StoreUnavailable: its inbox is full, or it may not have renewed its lease since Redis lost it.
        """
        keys = make_lease_key(self._prefix, worker), make_inbox_key(self._prefix, worker)
        sent = await self._commands.run(SEND, keys, data)
        if sent < 0:
            raise StoreUnavailable("the worker has too many unread messages")
        if not sent:
            if self._worker is not None:
                await self._worker.renew()  # finds out whether all leases are lost
            if self._commands.has_just_recovered:
                raise StoreUnavailable("the worker has no lease yet")
        return bool(sent)

    async def remove(self, worker: int) -> None:
        """Remove a worker that has died."""
        with suppress(StoreUnavailable):
            await self._commands.write("DEL", make_lease_key(self._prefix, worker))

    async def publish(self, data: bytes) -> None:
        """Send a message to all workers."""
        news = f"{self._prefix}news"
        await self._commands.write("XADD", news, "MAXLEN", "~", MAX_NEWS, "*", "d", data)

    async def close(self) -> None:
        """Close the connections; the data stays."""
        await self._commands.close()


def _to_milliseconds(ttl: float) -> int:
    if not 0 < ttl < inf:
        raise ValueError(f"ttl must be more than 0 seconds, or None for no expiry, not {ttl}")
    return max(1, round(ttl * 1000))


class _RedisRecords:
    def __init__(self, commands: RedisCommands, prefix: str) -> None:
        self._commands = commands
        self._prefix = prefix

    async def get(self, key: str) -> bytes | None:
        found: bytes | None = await self._commands.read("GET", self._prefix + key)
        return found

    async def put(self, key: str, value: bytes, ttl: float | None) -> None:
        expiry = () if ttl is None else ("PX", _to_milliseconds(ttl))
        await self._commands.write("SET", self._prefix + key, value, *expiry)

    async def swap(self, key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool:
        life = "" if ttl is None else _to_milliseconds(ttl)
        args = (int(old is not None), old or b"", int(new is not None), new or b"", life)
        return bool(await self._commands.run(_SWAP, (self._prefix + key,), *args))

    async def touch(self, key: str, ttl: float | None) -> bool:
        if ttl is not None:
            return bool(await self._commands.write("PEXPIRE", self._prefix + key, _to_milliseconds(ttl)))
        await self._commands.write("PERSIST", self._prefix + key)
        return bool(await self._commands.write("EXISTS", self._prefix + key))

    async def delete(self, key: str) -> bool:
        return bool(await self._commands.write("DEL", self._prefix + key))


class _RedisLogs:
    def __init__(self, commands: RedisCommands, prefix: str, entries: int, size: int) -> None:
        self._commands = commands
        self._prefix = prefix
        self._limits = entries, size

    async def append(self, log: str, data: bytes, ttl: float, *, number: int | None = None) -> int:
        args = (data, number or 0, _to_milliseconds(ttl), *self._limits)
        appended: int = await self._commands.run(_APPEND, (self._prefix + log,), *args)
        return appended

    async def read(self, log: str, after: int = 0) -> list[LogEntry]:
        found: Any = -1
        if after < 2**53:
            found = await self._commands.run(_READ, (self._prefix + log,), after)
        if found == -1:
            raise LogGap("the log does not exist, or is shorter")
        if isinstance(found, int):
            raise LogGap("entries after this number were removed", found)
        return [LogEntry(int.from_bytes(entry[:8], "big"), entry[_HEADER_SIZE:]) for entry in found]

    async def touch(self, log: str, ttl: float) -> bool:
        return bool(await self._commands.write("PEXPIRE", self._prefix + log, _to_milliseconds(ttl)))

    async def drop(self, log: str) -> None:
        await self._commands.write("DEL", self._prefix + log)


class _RedisQueues:
    def __init__(self, commands: RedisCommands, prefix: str) -> None:
        self._commands = commands
        self._prefix = prefix

    async def put(self, queue: str, item: str, delay: float = 0.0) -> None:
        await self._commands.run(_SET_DUE, (self._prefix + queue,), 1, round(delay * 1000), item)

    async def take(self, queue: str, count: int, lease: float) -> list[str]:
        found = await self._commands.run(_TAKE, (self._prefix + queue,), count, round(lease * 1000))
        return [item.decode() for item in found]

    async def renew(self, queue: str, items: Sequence[str], lease: float) -> None:
        if items:
            await self._commands.run(_SET_DUE, (self._prefix + queue,), 0, round(lease * 1000), *items)

    async def remove(self, queue: str, item: str) -> None:
        await self._commands.write("ZREM", self._prefix + queue, item)
