"""One client of the soak test: makes random calls and checks the results.

Defines the calls, the expected results, and which errors are expected: those of calls that must fail, and
those during a fault of the server. Independent of processes.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from soak_ledger import Ledger
from toolpost import Client, MCPError, RequestTimeout, ToolError
from toolpost.errors import InvalidParams, TransportError
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS

PAUSE: Final = (0.01, 0.12)
"""Minimum and maximum of seconds between two calls of a client: two cores must suffice."""

VISIT: Final = (20, 150)
"""Minimum and maximum of calls after which a client reconnects."""

MERCY: Final = 3.0
"""Seconds after a fault in which new calls may fail: not every client has noticed it yet."""

TIMEOUT: Final = 30.0
"""Timeout in seconds of a call that must succeed, generous for a busy machine."""

SIZE: Final = 200_000
HASTE: Final = 0.15


class WrongAnswer(Exception):
    """A response does not match its request."""


class Faults:
    """The times of the last fault of each server or connection."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def note(self, place: str) -> None:
        """Record a fault."""
        self.last[place] = time.monotonic()

    def excuse(self, place: str, began: float) -> bool:
        """Return whether a fault explains the failure of a call that started at this time."""
        return place in self.last and self.last[place] > began - MERCY


@dataclass(frozen=True)
class Lane:
    """A connection to a server.

    Args:
        transport: its name in the report.
        place: the server or relay that gets faults; empty for none.
        revision: the protocol revision.
        target: the target of the client.
        sessions: whether the server keeps sessions, where the revision has them.
        stays: whether the client never disconnects, so that a stdio server lives as long as the soak.
    """

    transport: str
    place: str
    revision: str
    target: Any
    sessions: bool = True
    stays: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """The key of its counters."""
        return self.transport, self.revision

    @property
    def asks(self) -> bool:
        """Whether the server can send elicitations."""
        stateless = REVISIONS[self.revision].stateless
        return stateless or (self.sessions and self.revision in DATES[2:])


class Visitor:
    """Calls a server in a loop until it is stopped.

    Args:
        lane: the connection.
        ledger: the counters.
        faults: the times of faults.
        dice: the random generator.
    """

    def __init__(self, lane: Lane, ledger: Ledger, faults: Faults, dice: random.Random) -> None:
        self._lane = lane
        self._ledger = ledger
        self._faults = faults
        self._dice = dice
        self._count = 0
        self._mcp: Client
        self._deeds: Mapping[Callable[[], Awaitable[None]], int] = {
            self._echo: 30,
            self._add: 10,
            self._steps: 10,
            self._big: 3,
            self._read: 10,
            self._list: 5,
            self._news: 2,
            self._fail: 5,
            self._miss: 3,
            self._cancel: 10,
            self._hurry: 2,
            **({self._asked: 10} if lane.asks else {}),
        }

    async def run(self, over: asyncio.Event) -> None:
        """Connect and call until the end of the run."""
        while not over.is_set():
            await self._visit(over)
            await self._pause()

    async def _visit(self, over: asyncio.Event) -> None:
        async def hear(*_: object) -> None:
            """Listen to changes, and ignore them."""

        self._mcp = Client(
            self._lane.target,
            revision=self._lane.revision,
            timeout=TIMEOUT,
            on_elicitation=lambda _: {"value": 7},
            on_notification=hear,
            on_log=hear,
        )
        calls = repeat(0) if self._lane.stays else range(self._dice.randint(*VISIT))
        try:
            await self._judged(self._open)
            for _ in calls:
                if over.is_set() or self._mcp.state == "closed":  # it never connected
                    break
                [deed] = self._dice.choices([*self._deeds], [*self._deeds.values()])
                await self._judged(deed)
                await self._pause()
        finally:
            await self._judged(self._mcp.close)

    async def _pause(self) -> None:
        await asyncio.sleep(self._dice.uniform(*PAUSE))

    async def _judged(self, deed: Callable[[], Awaitable[None]]) -> None:
        """Make one call, and classify its error as expected or not."""
        key, began = self._lane.key, time.monotonic()
        self._ledger.calls[key] += 1
        try:
            await deed()
        except (TransportError, InvalidParams) as error:
            kind = type(error).__name__
            # A server that dies between two rounds loses the key of its request states.
            own = isinstance(error, TransportError) or "requestState" in error.message
            if own and self._faults.excuse(self._lane.place, began):
                self._ledger.expect(key, kind)
            else:
                self._blame(kind, error)
        except (MCPError, WrongAnswer) as error:
            self._blame(type(error).__name__, error)
        except Exception as error:  # noqa: BLE001 - the test is that nothing else is raised
            self._blame(type(error).__name__, error)

    def _blame(self, kind: str, error: Exception) -> None:
        self._ledger.blame(f"{kind} on {' '.join(self._lane.key)}", str(error))

    async def _failing(self, kind: type[MCPError], call: Awaitable[object]) -> None:
        """Wait for a call that must fail."""
        try:
            answer = await call
        except kind:
            self._ledger.expect(self._lane.key, f"{kind.__name__} (intended)")
        else:
            raise WrongAnswer(f"{answer!r} instead of {kind.__name__}")

    def _check(self, got: object, wanted: object) -> None:
        if got != wanted:
            raise WrongAnswer(f"{str(got)[:100]!r} instead of {str(wanted)[:100]!r}")

    # ----------------------------------------------------------------- calls

    async def _open(self) -> None:
        await self._mcp.connect()
        await self._mcp.subscribe("soak://page")

    async def _echo(self) -> None:
        self._count += 1
        text = f"{self._lane.key} {id(self)} {self._count}"
        self._check((await self._mcp.call_tool("echo", {"text": text})).text, text)

    async def _add(self) -> None:
        a, b = self._dice.randrange(10**6), self._dice.randrange(10**6)
        self._check((await self._mcp.call_tool("add", {"a": a, "b": b}, result_type=int)).data, a + b)

    async def _steps(self) -> None:
        heard: list[float] = []

        async def hear(step: Any) -> None:
            heard.append(step.progress)

        self._check((await self._mcp.call_tool("steps", {"count": 5}, progress=hear)).text, "done")
        self._check(heard, sorted(set(heard)))

    async def _big(self) -> None:
        self._check(len((await self._mcp.call_tool("big", {"size": SIZE})).text), SIZE)

    async def _read(self) -> None:
        [page] = (await self._mcp.read_resource("soak://page")).contents
        self._check(page.text, "a page")
        prompt = await self._mcp.get_prompt("greet", {"name": "Ann"})
        self._check(getattr(prompt.messages[0].content, "text", None), "Hello, Ann")

    async def _list(self) -> None:
        self._check(len(await self._mcp.list_tools()), 9)
        await self._mcp.ping()

    async def _news(self) -> None:
        await self._mcp.call_tool("news")

    async def _asked(self) -> None:
        self._check((await self._mcp.call_tool("ask")).text, "7")

    async def _fail(self) -> None:
        await self._failing(ToolError, self._mcp.call_tool("fail"))

    async def _miss(self) -> None:
        await self._failing(InvalidParams, self._mcp.call_tool("nothing"))

    async def _hurry(self) -> None:
        await self._failing(RequestTimeout, self._mcp.call_tool("hang", timeout=HASTE))

    async def _cancel(self) -> None:
        """Cancel a call at a random moment."""
        deeds: list[tuple[str, dict[str, Any]]] = [
            ("hang", {}),
            ("steps", {"count": 50}),
            ("big", {"size": SIZE}),
        ]
        tool, arguments = self._dice.choice(deeds)
        call = asyncio.create_task(self._mcp.call_tool(tool, arguments))
        await asyncio.wait([call], timeout=self._dice.choice([0, 0.001, 0.01, 0.1]) * self._dice.random())
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._ledger.expect(self._lane.key, "cancelled (intended)")
