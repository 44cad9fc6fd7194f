"""A minimal server for clients: a `Connection` and a table of functions.

Also `run`, which runs a coroutine and checks for leaks, and a loop with a simulated clock, which advances
only when the loop is idle.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from revision_dates import DATES
from toolpost import Channel
from toolpost.errors import ChannelClosed, RPCError
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import (
    CancellationReceived,
    ConnectionEvent,
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    NotificationReceived,
    ResponseReceived,
)
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import Row
from toolpost.types import (
    Implementation,
    ListCapability,
    Raw,
    ResourcesCapability,
    Result,
    ServerCapabilities,
)

T = TypeVar("T")

ALL = ServerCapabilities(
    tools=ListCapability(list_changed=True),
    resources=ResourcesCapability(list_changed=True, subscribe=True),
    prompts=ListCapability(list_changed=True),
    completions={},
    logging={},
)


class Asked:
    """A request, as the functions of a `RawServer` receive it."""

    def __init__(self, server: "RawServer", incoming: InboundRequest) -> None:
        self.server = server
        self.incoming = incoming
        self.id = incoming.id
        self.params = incoming.params
        self.meta = incoming.meta

    @property
    def stateless(self) -> bool:
        """Whether the client uses a revision without sessions."""
        return self.incoming.peer.revision.stateless

    async def ask(self, method: str | Row, params: Any = None) -> Result:
        outgoing = self.server.connection.request(method, params)
        answer = self.server.answers[outgoing.id] = asyncio.get_running_loop().create_future()
        await self.server.channel.send(outgoing.data)
        return await answer

    async def progress(self, *arguments: Any) -> None:
        data = self.server.connection.report_progress(self.id, *arguments)
        if data is not None:
            await self.server.channel.send(data)

    async def log(self, level: Any, data: Any) -> None:
        line = self.server.connection.log(level, data, to=self.incoming)
        if line is not None:
            await self.server.channel.send(line)

    async def say(self, method: str | Row, params: Any = None) -> None:
        await self.server.channel.send(self.server.connection.notify(method, params, to=self.incoming))


Function = Callable[[Asked], Awaitable[Result | Raw]]


class RawServer:
    """Serves channels sequentially."""

    def __init__(
        self,
        functions: Mapping[str, Function] | None = None,
        *,
        capabilities: ServerCapabilities = ALL,
        supported: tuple[str, ...] = DATES,
        instructions: str | None = None,
        extra: Mapping[str, Row] | None = None,
    ) -> None:
        self.functions = dict(functions or {})
        self.party = LocalPeer(Implementation("raw", "1"), capabilities, supported=supported, rows=extra)
        self.instructions = instructions
        self.notices: list[str] = []
        self.cancelled: list[Any] = []
        self.methods: list[str] = []
        self.served = 0
        self.answers: dict[Any, asyncio.Future[Result]] = {}
        self.connection: Connection
        self.channel: Channel
        self.tasks: dict[Any, asyncio.Task[None]] = {}
        self.heard = asyncio.Condition()

    async def serve(self, channel: Channel) -> None:
        self.connection = Connection(self.party)
        self.channel = channel
        self.served += 1
        try:
            while True:
                for event in self.connection.receive(await channel.receive()):
                    await self._handle(event)
        except ChannelClosed:
            pass
        finally:
            tasks = list(self.tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(self, event: ConnectionEvent) -> None:
        if isinstance(event, InboundRequest):
            self.methods.append(event.row.name)
            self.tasks[event.id] = asyncio.create_task(self._answer(event))
        elif isinstance(event, NotificationReceived):
            self.notices.append(event.method)
        elif isinstance(event, CancellationReceived):
            self.cancelled.append((event.request.row.name, event.reason))
            self.tasks[event.request.id].cancel()
        elif isinstance(event, ResponseReceived):
            self.answers.pop(event.request.id).set_result(event.result)
        elif isinstance(event, ErrorReceived):
            self.answers.pop(event.request.id).set_exception(event.error)
        elif isinstance(event, InvalidMessageReceived) and event.data is not None:
            await self.channel.send(event.data)
        async with self.heard:
            self.heard.notify_all()

    async def _answer(self, incoming: InboundRequest) -> None:
        name = incoming.row.name
        try:
            function = self.functions.get(name)
            if function is not None:
                result = await function(Asked(self, incoming))
            elif name in {"initialize", "server/discover"}:
                result = self.connection.local_peer.introduce(incoming.peer.revision, self.instructions)
            else:
                result = Result()
            data = self.connection.reply(incoming.id, result)
        except RPCError as error:
            data = self.connection.fail(incoming.id, error)
        if data is not None:
            await self.channel.send(data)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a received message makes a condition true."""
        async with self.heard:
            await self.heard.wait_for(lambda: bool(condition()))


def run(
    main: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Run a test, and fail if it leaks a task."""

    async def checked() -> T:
        result = await main
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        assert not rest, f"left behind: {rest}"
        return result

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(checked())


class _Selector(selectors.DefaultSelector):
    """Never waits for a timer: it advances the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now += timeout
            timeout = 0
        return super().select(timeout)


class Clock(asyncio.SelectorEventLoop):
    """Create a loop with a clock that advances only when the loop is idle."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now
