"""The state of a connection, its watchers, and the statistics of a client.

Notifies watchers and callbacks of each transition, and counts. Deciding what to do about a lost connection is
left to `reconnect`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from weakref import WeakSet

from toolpost.client.connection.incoming import CallbackQueue

State: TypeAlias = Literal["connecting", "ready", "backoff", "closed"]

MAX_QUEUED_TRANSITIONS: Final = 100
"""How many transitions wait for a reader that is slow; the oldest are dropped then."""


class Transition(NamedTuple):
    """The connection has come into another state.

    Attributes:
        state: "connecting"; "ready" for requests; "backoff", lost and to be tried again; or "closed".
        cause: why the connection was lost or did not come about.
        delay: in "backoff", the seconds until the next try.
        attempts: in "backoff", how often it has failed in a row.

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
    """The state of one client. `tell` is called for each transition, one after the other."""

    def __init__(self, tell: Callable[[Transition], Awaitable[object]] | None = None) -> None:
        self.state: State = "closed"
        self._on_transition = tell
        self._callback_queue = CallbackQueue(self._spawn)
        self._watchers: WeakSet[ConnectionEvents] = WeakSet()
        self._next_transition: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

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

    async def wait_callbacks(self, patience: float) -> None:
        """Wait until all callbacks have run, up to a time-out."""
        if self._tasks and not self._callback_queue.is_in_callback:
            await asyncio.wait(self._tasks, timeout=patience)

    def watch(self) -> ConnectionEvents:
        """Return the transitions from now on."""
        events = ConnectionEvents()
        self._watchers.add(events)
        return events

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


@dataclass(slots=True)
class Stats:
    """The numbers of one client, over all its connections.

    Attributes:
        requests: requests of ours that were handed to the channel.
        timeouts: those of them that got no answer in time.
        retries: requests that were sent once more.
        connections: how often the client has connected.
        client_requests: requests of the server's that were taken up.
        notifications: notices of the server's.
        skipped: items of lists that could not be read and were left out.
        cached: requests that needed no sending, because the server lets its last answer be kept.
        gaps: times that changes may have been missed, because a subscription or a connection was lost.
        unchecked: structured results that were not validated, because jsonschema-rs is not installed.
        discarded: messages that were thrown away, by reason: most meant nothing (any more), such as a "late
            answer". A "message over the limit" did; the request that it answers, as far as that is known,
            has failed.
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
