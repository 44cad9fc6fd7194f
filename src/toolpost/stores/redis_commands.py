"""Commands to Redis or Valkey: those of one turn of the event loop travel in one pipeline.

Connects by a URL, limits the time and the number of waiting commands, and pauses after a failure. The
meaning of the commands is left to `redis_store` and `redis_worker`. The only module that imports redis-py.
"""

import asyncio
import logging
from collections import deque
from hashlib import sha1
from math import inf
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from toolpost.errors import MCPError, StoreUnavailable
from toolpost.stores.memory import FRESH

try:
    import redis.asyncio as redis
    from redis.asyncio.cluster import ClusterNode, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, RedisError, ResponseError
except ImportError as error:
    raise MCPError("a Redis store needs redis-py", hint="pip install 'toolpost[redis]'") from error

logger: Final = logging.getLogger("toolpost.stores")

READ_SHARE: Final = 1 / 8  # of the timeout, for a command that a request waits for: 0.25 s by default
PAUSE: Final = 1.0  # seconds after a failure in which commands fail at once
RECOVERY_TIME: Final = 5.0  # seconds after a failure in which all workers reconnect
MAX_BATCH: Final = 256  # commands of one pipeline
MAX_WAITING: Final = 10_000  # commands that wait for the pipeline before theirs
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
BLOCK_TIMEOUT: Final = 2.0  # seconds for which a reading connection waits for messages
DEFAULT_PORTS: Final = {"redis+sentinel": 26379}


class Script:
    """A Lua script, which is sent by its digest, and in full when the server does not know it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisAddress:
    """The parts of a store's URL.

    Args:
        url: `redis://`, `rediss://`, `redis+sentinel://a,b/service/db` or `redis+cluster://a,b`.

    Raises:
        ValueError: the URL is not valid. The message does not repeat it, since it may hold a password.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.scheme = parts.scheme.lower()
        options = dict(parse_qsl(parts.query))
        try:
            self.prefix = options.pop("prefix", None)
            self.lease = float(options.pop("lease", 10.0))
            self.timeout = float(options.pop("timeout", 2.0))
            self.fresh = float(options.pop("fresh", FRESH))
            credentials, _, hosts = parts.netloc.rpartition("@")
            self.nodes = [self._parse_node(node) for node in hosts.split(",") if node]
        except ValueError:
            raise ValueError("the Redis URL has an invalid port or option") from None
        if not (0 < self.lease < 3600 and 0 < self.timeout <= 60 and 0 <= self.fresh < 3600):
            raise ValueError("the Redis URL has an invalid option: lease=, timeout= and fresh= are seconds")
        username, _, password = credentials.partition(":")
        self.login = {"username": unquote(username) or None, "password": unquote(password) or None}
        self.path = parts.path.strip("/").split("/")
        self.plain = parts._replace(query=urlencode(options)).geturl()
        if self.is_sentinel and not (self.nodes and self.path[0]):
            raise ValueError("expected redis+sentinel://host1,host2/service-name/0")
        if self.is_cluster and not self.nodes:
            raise ValueError("expected redis+cluster://host1,host2")

    @property
    def is_sentinel(self) -> bool:
        """Whether sentinels name the primary."""
        return self.scheme == "redis+sentinel"

    @property
    def is_cluster(self) -> bool:
        """Whether the keys are spread over the nodes of a cluster."""
        return self.scheme == "redis+cluster"

    def _parse_node(self, node: str) -> tuple[str, int]:
        parts = urlsplit(f"//{node}")
        return parts.hostname or "localhost", parts.port or DEFAULT_PORTS.get(self.scheme, 6379)

    def connect(self, timeout: float) -> Any:
        """Return a client whose commands may take this long. It connects with its first command."""
        options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": self.timeout,
            "protocol": 2,
        }
        once = Retry(NoBackoff(), 0)  # a command must not run twice
        if self.is_cluster:
            nodes = [ClusterNode(host, port) for host, port in self.nodes]
            return RedisCluster(startup_nodes=nodes, **self.login, **options)
        if self.is_sentinel:
            sentinel_options = {"socket_timeout": self.timeout, "socket_connect_timeout": self.timeout}
            sentinel: Any = Sentinel(self.nodes, sentinel_kwargs=sentinel_options, retry=once, **options)
            database = self.path[1] if len(self.path) > 1 else "0"
            return sentinel.master_for(self.path[0], db=int(database), **self.login)
        client: Any = redis.Redis  # `from_url` is not typed
        return client.from_url(self.plain, retry=once, **options)


async def close_client(client: Any) -> None:
    """Close the connections of a client, those to sentinels included."""
    await client.aclose()
    sentinel = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for each in () if sentinel is None else sentinel.sentinels:
        await each.aclose()


class RedisCommands:
    """Sends commands. Raises StoreUnavailable if Redis does not answer in time, or refuses to."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._queue: deque[tuple[tuple[Any, ...], asyncio.Future[Any]]] = deque()
        self._waiting_bytes = 0
        self._sender: asyncio.Task[None] | None = None
        self._paused_until = self._slow_until = 0.0
        self.is_available = True
        self._available_since = -inf

    @property
    def has_just_recovered(self) -> bool:
        """Whether Redis has just lost data, or may have: what workers write at intervals may be missing."""
        recovery = max(RECOVERY_TIME, self.address.lease / 2)
        return asyncio.get_running_loop().time() < self._available_since + recovery

    def note_loss(self) -> None:
        """Note that Redis has lost data."""
        self._available_since = asyncio.get_running_loop().time()

    async def read(self, *command: Any) -> Any:
        """Send a command that a request waits for. If one takes too long, others fail at once for a while."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._slow_until:
            raise StoreUnavailable("Redis is slow")
        reply = self.send(*command)
        try:
            return await self._wait(reply, self.address.timeout * READ_SHARE)
        except StoreUnavailable:
            if reply.cancelled():  # it took too long
                self._slow_until = loop.time() + PAUSE
            raise

    async def write(self, *command: Any) -> Any:
        """Send a command that changes something."""
        return await self._wait(self.send(*command), self.address.timeout)

    async def run(self, script: Script, keys: tuple[str, ...], *args: Any) -> Any:
        """Run a script."""
        try:
            return await self.write("EVALSHA", script.digest, len(keys), *keys, *args)
        except NoScriptError:
            return await self.write("EVAL", script.text, len(keys), *keys, *args)

    def send(self, *command: Any) -> "asyncio.Future[Any]":
        """Send a command with the next pipeline, and return its future reply."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a new loop, or a new process
            self._loop, self._client, self._sender = loop, None, None
            self._queue.clear()
            self._waiting_bytes, self._paused_until, self._slow_until = 0, 0.0, 0.0
        size = _count_bytes(command)
        if loop.time() < self._paused_until:
            raise StoreUnavailable("Redis is unreachable")
        if len(self._queue) >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise StoreUnavailable("too many commands are waiting for Redis")
        reply = loop.create_future()
        self._queue.append((command, reply))
        self._waiting_bytes += size
        if self._sender is None:
            self._sender = loop.create_task(self._send_all())
        return reply

    @staticmethod
    async def _wait(reply: "asyncio.Future[Any]", timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            raise StoreUnavailable(f"Redis did not answer within {timeout:g} s") from None

    async def _send_all(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
            self._waiting_bytes -= sum(_count_bytes(command) for command, _ in batch)
            batch = [(command, reply) for command, reply in batch if not reply.done()]  # one that is awaited
            if not batch:
                continue
            for (_, future), reply in zip(batch, await self._send_batch(batch), strict=True):
                if future.done():
                    continue
                if isinstance(reply, Exception):
                    future.set_exception(reply)
                    future.exception()  # marks it as retrieved: a caller may not wait
                else:
                    future.set_result(reply)
        self._sender = None

    async def _send_batch(self, batch: list[tuple[tuple[Any, ...], Any]]) -> list[Any]:
        if self._client is None:
            self._client = self.address.connect(self.address.timeout)
        pipeline = self._client.pipeline(transaction=False)
        for command, _ in batch:
            pipeline.execute_command(*command)
        try:
            replies = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError, TimeoutError) as error:
            self.pause(error)
            return [StoreUnavailable("Redis is unreachable")] * len(batch)
        if not self.is_available:
            self.is_available = True
            self.note_loss()
            logger.info("Redis answers again")
        return [_translate(reply) for reply in replies]

    def pause(self, error: Exception) -> None:
        """Let commands fail at once for a while, after a failure."""
        self._paused_until = asyncio.get_running_loop().time() + PAUSE
        if self.is_available:
            self.is_available = False
            logger.warning(
                "Redis is unreachable, so sessions continue without it: %s: %s", type(error).__name__, error
            )

    async def close(self) -> None:
        """Close the connections. The next command opens them again."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            if self._sender is not None:
                await self._sender
            await close_client(client)


def _count_bytes(command: tuple[Any, ...]) -> int:
    return sum(len(part) for part in command if isinstance(part, bytes))


def _translate(reply: Any) -> Any:
    """Return a reply, or the error that it stands for."""
    if isinstance(reply, NoScriptError) or not isinstance(reply, Exception):
        return reply
    problem = "Redis refused a command" if isinstance(reply, ResponseError) else "Redis is unreachable"
    return StoreUnavailable(f"{problem}: {reply}")
