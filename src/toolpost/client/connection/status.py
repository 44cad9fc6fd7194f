"""The state of a connection, its watchers, and the statistics of a client.

Notifies watchers and callbacks of each transition, and counts. Deciding what to do about a lost connection is
left to `reconnect`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple, TypeAlias
from weakref import WeakSet

from toolpost.client.connection.incoming import CallbackQueue

State: TypeAlias = Literal["connecting", "ready", "backoff", "closed"]

STATE_CALLBACK_TIMEOUT: Final = 5.0  # seconds to wait for `on_state` callbacks when the client is closed
MAX_QUEUED_TRANSITIONS: Final = 100  # for a slow reader; the oldest are dropped


class Transition(NamedTuple):
    """A change of the state of the connection.

    Attributes:
        state: "connecting", "ready", "backoff" (lost, will be retried) or "closed".
        cause: why the connection was lost or could not be opened.
        delay: in "backoff", the seconds until the next attempt.
        attempts: in "backoff", the number of failures in a row.

    Examples:
        >>> client = Client(["python", "server.py"], on_state=lambda transition: print(transition.state))
    """

    state: State
    cause: Exception | None = None
    delay: float = 0.0
    attempts: int = 0


StateCallback: TypeAlias = Callable[[Transition], object]


class ConnectionEvents:
    """The transitions of a connection from now on: `async for event in client.events():`.

    It ends with the transition to "closed".
    """

    def __init__(self) -> None:
        self._queue: deque[Transition] = deque(maxlen=MAX_QUEUED_TRANSITIONS)
        self._available = asyncio.Event()
        self._is_over = False

    def put(self, transition: Transition) -> None:
        """Queue a transition."""
        self._queue.append(transition)
        self._available.set()

    def __aiter__(self) -> "ConnectionEvents":
        return self

    async def __anext__(self) -> Transition:
        if self._is_over:
            raise StopAsyncIteration
        while not self._queue:
            self._available.clear()
            await self._available.wait()
        transition = self._queue.popleft()
        self._is_over = transition.state == "closed" and not self._queue
        return transition


class ConnectionState:
    """The state of one client. `on_transition` is called for each transition, one after the other."""

    def __init__(self, on_transition: Callable[[Transition], Awaitable[object]] | None = None) -> None:
        self.state: State = "closed"
        self._on_transition = on_transition
        self._callback_queue = CallbackQueue(lambda work: asyncio.get_running_loop().create_task(work))
        self._watchers: WeakSet[ConnectionEvents] = WeakSet()
        self._next_transition: asyncio.Future[None] | None = None

    def enter(self, transition: Transition) -> None:
        """Enter a state; the same one again only for another backoff."""
        if transition.state == self.state != "backoff":
            return
        self.state = transition.state
        for events in list(self._watchers):
            events.put(transition)
        if self._on_transition is not None:
            self._callback_queue.put(partial(self._on_transition, transition))
        turn, self._next_transition = self._next_transition, None
        if turn is not None and not turn.done() and not turn.get_loop().is_closed():
            turn.set_result(None)

    async def wait_for_change(self) -> None:
        """Wait for the next transition."""
        loop = asyncio.get_running_loop()
        if self._next_transition is None or self._next_transition.get_loop() is not loop:
            self._next_transition = loop.create_future()
        await asyncio.shield(self._next_transition)

    async def wait_callbacks(self) -> None:
        """Wait until all callbacks have run, up to a timeout."""
        if not self._callback_queue.is_in_callback:
            with suppress(TimeoutError):
                async with asyncio.timeout(STATE_CALLBACK_TIMEOUT):
                    await self._callback_queue.wait_idle()

    def watch(self) -> ConnectionEvents:
        """Return the transitions from now on."""
        events = ConnectionEvents()
        self._watchers.add(events)
        return events


@dataclass(slots=True)
class Stats:
    """The numbers of one client, over all its connections.

    Attributes:
        requests: requests of the client that were handed to the channel.
        timeouts: those of them that got no answer in time.
        retries: requests that were sent again.
        connections: how often the client has connected.
        client_requests: requests of the server that were accepted.
        notifications: notifications of the server.
        skipped: parts of lists that could not be decoded and were left out, and cursors that lead nowhere.
        cached: requests that were answered from the cache.
        gaps: how often changes may have been missed, because a subscription or a connection was lost.
        unchecked: structured results that were not validated, because jsonschema-rs is not installed, or
            the schema cannot be used or is too complex.
        discarded: discarded messages, by reason. Most came too late, such as a "late response". If a
            "message over the limit" answered a request that can be identified, the request has failed.
    """

    requests: int = 0
    timeouts: int = 0
    retries: int = 0
    connections: int = 0
    client_requests: int = 0
    notifications: int = 0
    skipped: int = 0
    cached: int = 0
    gaps: int = 0
    unchecked: int = 0
    discarded: dict[str, int] = field(default_factory=dict[str, int])

    def record_discard(self, why: str) -> None:
        """Count a discarded message."""
        self.discarded[why] = self.discarded.get(why, 0) + 1
