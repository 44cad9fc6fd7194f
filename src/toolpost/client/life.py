"""Where a connection stands, and who hears when that changes.

Owns the state, what it has changed for, and those who watch it. Decides nothing: what is done about a lost
connection is told in `supervise`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from weakref import WeakSet

from toolpost.client.lane import Lane

__all__ = ["Events", "Life", "State", "StateCallback", "Transition"]

State: TypeAlias = Literal["connecting", "ready", "backoff", "closed"]

MAX_UNSEEN: Final = 100
"""How many transitions wait for a reader that is slow; the oldest are dropped then."""


class Transition(NamedTuple):
    """The connection has come into another state.

    Attributes:
        state: "connecting"; "ready" for requests; "backoff", lost and to be tried again; or "closed".
        cause: why the connection was lost or did not come about.
        pause: in "backoff", the seconds until the next try.
        tries: in "backoff", how often it has failed in a row.

    Examples:
        >>> client = Client(["python", "server.py"], on_state=lambda transition: print(transition.state))
    """

    state: State
    cause: Exception | None = None
    pause: float = 0.0
    tries: int = 0


StateCallback: TypeAlias = Callable[[Transition], object]


class Events:
    """The transitions of a connection from now on: `async for event in client.events():`.

    It ends with the transition to "closed".
    """

    def __init__(self) -> None:
        self._unseen: deque[Transition] = deque(maxlen=MAX_UNSEEN)
        self._news = asyncio.Event()
        self._over = False

    def take(self, transition: Transition) -> None:
        """Keep a transition for whoever iterates."""
        self._unseen.append(transition)
        self._news.set()

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> Transition:
        if self._over:
            raise StopAsyncIteration
        while not self._unseen:
            self._news.clear()
            await self._news.wait()
        transition = self._unseen.popleft()
        self._over = transition.state == "closed" and not self._unseen
        return transition


class Life:
    """The state of one client.

    Args:
        tell: hears of each transition, one after the other; its errors are logged.
    """

    def __init__(self, tell: Callable[[Transition], Awaitable[object]] | None = None) -> None:
        self.state: State = "closed"
        self._tell = tell
        self._lane = Lane(self._spawn)
        self._watching: WeakSet[Events] = WeakSet()
        self._turn: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def enter(self, transition: Transition) -> None:
        """Come into a state; into the same one only to back off once more."""
        if transition.state == self.state != "backoff":
            return
        self.state = transition.state
        for events in list(self._watching):
            events.take(transition)
        if self._tell is not None:
            self._lane.put(partial(self._tell, transition))
        turn, self._turn = self._turn, None
        if turn is not None and not turn.done() and not turn.get_loop().is_closed():
            turn.set_result(None)

    async def change(self) -> None:
        """Return at the next transition."""
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn.get_loop() is not loop:
            self._turn = loop.create_future()
        await asyncio.shield(self._turn)

    async def told(self, patience: float) -> None:
        """Return when all transitions were told, or when that takes too long."""
        if self._tasks and not self._lane.busy_with_us:
            await asyncio.wait(self._tasks, timeout=patience)

    def watch(self) -> Events:
        """The transitions from now on."""
        events = Events()
        self._watching.add(events)
        return events

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
