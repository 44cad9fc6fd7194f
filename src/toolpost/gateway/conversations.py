"""The connections to one upstream server: which calls share one, and when it is closed.

A stateless server needs one. A server with sessions may keep state of its client, so by default each session
of ours has its own connection, while a process is shared.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from toolpost.client.client import Client
from toolpost.errors import MCPError, RateLimited
from toolpost.gateway.bridge import ALL_CAPABILITIES, Relay, make_callbacks, select_capabilities
from toolpost.protocol import jsonrpc
from toolpost.types.initialize import ClientCapabilities, LogLevel

if TYPE_CHECKING:
    from toolpost.server.context import Context

Share: TypeAlias = Literal["all", "principal", "session"]

_Key: TypeAlias = tuple[tuple[str, object], bytes]
"""Who shares a connection, and the capabilities that it declares."""

IDLE_TIMEOUT: Final = 300.0
"""Seconds after which an unused connection of one session or principal is closed."""

MAX_CONVERSATIONS: Final = 1000
"""Connections to one upstream server; the oldest unused one goes first."""

MAX_IN_FLIGHT: Final = 256
"""Calls of one connection that run at once."""

MAX_QUEUED: Final = 1024
"""Calls of one connection that wait for their turn."""


class Conversation:
    """One connection to an upstream server. `make_client` gets the callbacks of the client."""

    def __init__(
        self,
        make_client: Callable[[dict[str, Any]], Client],
        capabilities: ClientCapabilities,
        idle: float | None,
        *,
        is_of_one: bool = False,
    ) -> None:
        self.client = make_client(make_callbacks(self._find_relay, capabilities))
        self.relays: set[Relay] = set()
        """The calls in flight that may be asked something."""
        self.holds = 0  # subscriptions, for which the connection has to stay
        self.log_level: LogLevel | None = None
        self.on_idle: Callable[[], object] | None = None
        self._idle = idle
        self._is_of_one = is_of_one
        self._in_flight = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_used(self) -> bool:
        """Whether a call runs, or something has to stay open."""
        return bool(self._in_flight or self.holds)

    def _find_relay(self) -> Relay | None:
        """Return the call that a message without a call belongs to, if there is only one client to get it."""
        if self.relays and (self._is_of_one or len(self.relays) == 1):
            return next(iter(self.relays))
        return None

    async def enter(self, label: str) -> None:
        """Begin a call. Raises RateLimited if too many wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._in_flight < MAX_IN_FLIGHT:
            self._in_flight += 1
            return
        if len(self._queue) >= MAX_QUEUED:
            raise RateLimited(f"{label} is busy: {MAX_QUEUED} calls wait already", {"retryAfter": 1})
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn  # the call before passes its place on
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """End a call."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._in_flight -= 1
        self.release()

    def release(self) -> None:
        """Close the connection later if nothing uses it any more."""
        if not self.is_used and self._idle is not None and self.on_idle is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if not self.is_used and self.on_idle is not None:
            self.on_idle()

    async def close(self) -> None:
        """Close the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self.on_idle = None
        with suppress(MCPError):
            await self.client.close()


class Conversations:
    """The connections to one upstream server, in one event loop. `common` reads lists and serves the rest."""

    def __init__(
        self,
        make_client: Callable[..., Client],
        share: Share,
        idle: float | None,
    ) -> None:
        self._make_client = make_client
        self._share = share
        self.common = Conversation(make_client, ALL_CAPABILITIES, idle)
        self._by_key: OrderedDict[_Key, Conversation] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, context: "Context") -> Conversation:
        """Return the connection for a call, to a server with sessions."""
        who = self._find_sharer(context)
        if who is None:
            return self.common
        key = (who, jsonrpc.encode(select_capabilities(context)))
        found = self._by_key.get(key)
        if found is None:
            self._make_room()
            found = Conversation(
                self._make_client, select_capabilities(context), IDLE_TIMEOUT, is_of_one=who[0] == "session"
            )
            found.on_idle = lambda: self._drop(key)
            self._by_key[key] = found
        self._by_key.move_to_end(key)
        return found

    def _find_sharer(self, context: "Context") -> tuple[str, object] | None:
        """Return who shares a connection with this client; None for everybody."""
        if self._share == "all":
            return None
        has_session = context.incoming is not None and not context.incoming.peer.revision.stateless
        if self._share == "session" and has_session:
            return "session", context.client_connection.identity
        if context.principal is not None:
            return "principal", context.principal.key
        return ("session", context.client_connection.identity) if has_session else None

    def _make_room(self) -> None:
        if len(self._by_key) < MAX_CONVERSATIONS:
            return
        unused = next((key for key, each in self._by_key.items() if not each.is_used), None)
        if unused is None:
            raise RateLimited("too many connections to the upstream server are in use", {"retryAfter": 5})
        self._drop(unused)

    def end_session(self, identity: object) -> None:
        """Close the connections of a session that has ended."""
        for key in [key for key in self._by_key if key[0] == ("session", identity)]:
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        task = asyncio.get_running_loop().create_task(self._by_key.pop(key).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        for key in list(self._by_key):
            self._drop(key)
        while self._closing:
            await asyncio.wait(self._closing)
        await self.common.close()
