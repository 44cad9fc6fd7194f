"""The actors of a simulation: a server with every kind of tool, its clients, and a ledger of their actions.

Each call has a unique key; the messages to a client must contain its own keys and no
others. The ledger counts actions that must not happen twice. The checks after a simulation are here too,
because all scenarios share them.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from simulated_loop import World

from toolpost import Accepted, Client, Context, Server, ToolError
from toolpost.errors import ChannelClosed, MCPError
from toolpost.stores.memory import MemoryStore
from toolpost.types import ElicitParams, ToolAnnotations

__all__ = ["CALLS", "EXPECTED", "Ledger", "Player", "judge", "server_for"]

TIMEOUT = 4.0
"""Seconds that a client waits for an answer."""

CAP = 12.0
"""Seconds that a client waits in all, however much progress there is."""

CONNECT = 10.0
"""Seconds that a client takes to connect."""

PROBE = 2.0
"""Seconds that a client waits to hear whether a server is modern."""

BEHIND = 6.0
"""Seconds by which a call may end late: waits for callbacks, and slow iterations of the loop."""

CLOSING = 25.0
"""Seconds that closing a client may take, whatever its callbacks and its server do."""

WORK = (0.0, 0.0, 0.01, 0.02, 0.5, 3.99, 4.0)
"""Seconds that work takes: mostly none, sometimes as long as the caller waits."""

EXPECTED = re.compile(
    r"toolpost\.server: tool fail failed"
    r"|toolpost\.server: tool order failed: (Local|Remote)ProtocolError"
    r"|toolpost\.client: failed to answer elicitation/create: LocalProtocolError"
)
"""What our code may log as an error: a function was made to fail; a form is garbled."""


@dataclass
class Ledger:
    """The record of actions in a simulation."""

    owners: dict[str, str] = field(default_factory=dict[str, str])
    """Key → name of its client."""
    runs: Counter[str] = field(default_factory=Counter[str])
    """How often a tool ran to its effect, by key."""
    steps: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """How often a step ran, by key and name."""
    hanging: set[str] = field(default_factory=set[str])
    """Which calls hang in a tool right now."""
    sent: Counter[str] = field(default_factory=Counter[str])
    """How often a client sent a call, by key."""
    again: Counter[str] = field(default_factory=Counter[str])
    """How often the channel duplicated a call, by key."""
    busy: bool = True
    """Whether work may take long."""
    wrong: list[str] = field(default_factory=list[str])
    """The violations."""


class Boom(BaseException):
    """An exception that no function should raise."""


FAILURES: dict[str, Callable[[], BaseException]] = {
    "tool": lambda: ToolError("no"),
    "value": lambda: ValueError("no"),
    "exit": lambda: SystemExit(3),
    "cancelled": asyncio.CancelledError,
    "boom": Boom,
}


def server_for(world: World, ledger: Ledger) -> Server:  # noqa: C901 - many small functions
    """Create a server whose functions write to the ledger."""
    server = Server("stage", store=MemoryStore(clock=world.time))
    rng = world.rng

    async def work() -> None:
        await asyncio.sleep(rng.choice(WORK if ledger.busy else WORK[:3]))

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def add(a: int, b: int) -> int:
        await work()
        return a + b

    @server.tool
    async def sign(name: str, ctx: Context) -> str:
        """Return the old name of this session, and set the new one."""
        before = await ctx.state.get("name", "")
        await ctx.state.set("name", name)
        await work()
        return before

    @server.tool
    async def spend(key: str) -> str:
        """Perform an action that must not happen twice."""
        ledger.runs[key] += 1
        await work()
        return key

    @server.tool
    async def count(key: str, most: int, ctx: Context) -> str:
        for number in range(most):
            await ctx.progress(number + 1, most, key)
            if rng.random() < 0.3:
                await work()
        return key

    @server.tool
    async def story(key: str, most: int, ctx: Context) -> str:
        """Send numbered messages in order, each once."""
        for number in range(most):
            await ctx.info({"key": key, "number": number})
            if rng.random() < 0.5:
                await work()
        return key

    @server.tool
    async def order(key: str, ctx: Context) -> str:
        """Ask two questions, and run two steps once each."""

        async def step(name: str) -> str:
            ledger.steps[key, name] += 1
            await work()
            return f"{name} {key}"

        paid = await ctx.step("pay", step, "pay")
        first = await ctx.elicit(f"first {key}", str)
        sent = await ctx.step("send", step, "send")
        second = await ctx.elicit(f"second {key}", str)
        said = [each.data if isinstance(each, Accepted) else "no" for each in (first, second)]
        return "|".join([paid, sent, *said])

    @server.tool
    async def fail(how: str) -> str:
        await work()
        raise FAILURES[how]()  # noqa: RSE102 - it is a function that makes one

    @server.tool
    async def hang(key: str) -> str:
        ledger.hanging.add(key)
        try:
            await asyncio.Event().wait()
        finally:
            ledger.hanging.discard(key)
        return key

    @server.resource("note://{who}")
    async def note(who: str) -> str:
        await work()
        return who

    return server


class Player:
    """A client and its calls.

    Args:
        world: its event loop.
        ledger: the record of its actions.
        name: its unique name.
        exact: whether all messages arrive unchanged.
        whole: whether a successful call has received all its messages, once and in order.
        obeyed: whether the server gets all of its cancellations: none of its messages is lost.
    """

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        name: str,
        *,
        exact: bool = True,
        whole: bool = True,
        obeyed: bool = True,
    ) -> None:
        self.world = world
        self.ledger = ledger
        self.name = name
        self.exact = exact
        self.whole = whole
        self.obeyed = obeyed
        self.client: Client
        self.watched: set[str] = set()
        self.stories: dict[str, list[int]] = {}
        """The sent messages, by key."""
        self.ended: dict[str, int] = {}
        """Key → number of messages, for stories with a response."""
        self.heard: list[str] = []
        self.answering = 0.0
        """Seconds that the user took to answer."""
        self.outcomes: Counter[str] = Counter()

    def join(self, target: Any, **options: Any) -> None:
        """Create the client."""
        self.client = Client(
            target,
            name=self.name,
            timeout=TIMEOUT,
            max_timeout=CAP,
            connect_timeout=CONNECT,
            probe_timeout=PROBE,
            on_elicitation=self._asked,
            on_notification=self._noticed,
            on_log=self._logged,
            **options,
        )

    def key(self) -> str:
        """Return a unique key."""
        word = f"<{self.name}:{self.world.rng.getrandbits(48):012x}>"
        self.ledger.owners[word] = self.name
        return word

    def wrong(self, what: str) -> None:
        """Record a violation."""
        self.world.note(f"{self.name} WRONG {what}")
        self.ledger.wrong.append(f"{self.name}: {what}")

    # ----------------------------------------------------------------- what the server says

    async def _asked(self, question: ElicitParams) -> Any:
        self._private(question.message)
        began = self.world.time()
        try:
            await asyncio.sleep(self.world.rng.choice(WORK))
        finally:
            self.answering += self.world.time() - began
        if self.world.rng.random() < 0.1:
            return None
        return {"value": question.message.upper()}

    async def _noticed(self, method: str, params: Any) -> None:
        if method == "notifications/resources/updated":
            self.heard.append(params.uri)
            if self.exact and params.uri not in self.watched:
                self.wrong(f"heard of {params.uri}, which it does not watch")

    async def _logged(self, line: Any) -> None:
        if self.exact:
            self._private(str(line.data))
            self.stories.setdefault(line.data["key"], []).append(line.data["number"])

    def _private(self, text: str) -> None:
        """Check that the received messages are ours."""
        for word in re.findall(r"<\w+:[0-9a-f]{12}>", text.lower()):
            if self.ledger.owners.get(word, self.name) != self.name:
                self.wrong(f"heard what belongs to {self.ledger.owners[word]}: {text!r}")

    # ----------------------------------------------------------------- what it does

    async def act(self, name: str) -> str:
        """Make one call; return "ok", or the name of the error."""
        began, answering = self.world.time(), self.answering
        self.world.note(f"{self.name} {name}")
        try:
            await CALLS[name](self)
            outcome = "ok"
        except MCPError as error:
            outcome = type(error).__name__
        except asyncio.CancelledError:
            self.outcomes["cancelled"] += 1
            raise
        except Exception as error:  # noqa: BLE001 - it is the question whether there is any
            outcome = f"WRONG {error!r}"
            self.wrong(f"{name} ended with {error!r}")
        self.outcomes[outcome] += 1
        took = self.world.time() - began
        self.world.note(f"{self.name} {name} ended after {took:.3f}: {outcome}")
        # Two calls of one client can be held up by the same answer.
        if took > CAP + CONNECT + BEHIND + self.answering - answering:
            self.wrong(f"{name} took {took:.1f} s")
        return outcome

    def check_given_up(self) -> None:
        """Check that the server runs no work without a waiting client."""
        going_on = {key for key in self.ledger.hanging if self.ledger.owners[key] == self.name}
        if self.obeyed and going_on:
            self.wrong(f"goes on though it was given up: {going_on}")

    def check_stories(self) -> None:
        """Check that messages came once and in order, and all of them if the response came."""
        for key, told in self.stories.items():
            if self.whole and told != [*range(len(told))]:
                self.wrong(f"a story was told as {told}: {key}")
        for key, most in self.ended.items():
            if self.whole and len(self.stories.get(key, [])) != most:
                self.wrong(f"a story of {most} was told as {self.stories.get(key)}: {key}")

    async def leave(self) -> None:
        """Close the client, and check that nothing of it is left."""
        began, link = self.world.time(), self._link()
        await self.client.close()
        took = self.world.time() - began
        if took > CLOSING + self.answering:
            self.wrong(f"closing took {took:.1f} s")
        if link is not None:
            left = {
                "calls": link.calls,
                "requests of ours": link.connection.outgoing,
                "requests of the server's": link.connection.incoming,
                "tasks": link._tasks,
                "answers": link._router._client_request_tasks,
            }
            for what, some in left.items():
                if some:
                    self.wrong(f"{what} left: {some}")
        if self.client.connected:
            self.wrong("it is connected although it was closed")

    def _link(self) -> Any:
        try:
            return self.client._session.dispatcher
        except ChannelClosed:
            return self.client._session.reconnector.current


# --------------------------------------------------------------------- the judge


def judge(world: World, server: Server, ledger: Ledger) -> None:
    """Record leftovers after everything has ended, and actions that happened too often."""
    wrong = ledger.wrong
    if ledger.hanging:
        wrong.append(f"these calls hang: {ledger.hanging}")
    if server.broadcaster._subscribers or server._subscriptions._active:
        wrong.append(f"a client that has left is still subscribed: {server.broadcaster._subscribers}")
    if server._shared_lifespan.is_held:
        wrong.append("the lifespan of the server is still held")
    for key, runs in ledger.runs.items():
        if runs > 1 + ledger.again[key]:
            wrong.append(f"done {runs} times: {key}")
        if ledger.sent[key] > 1:
            wrong.append(f"sent {ledger.sent[key]} times, though it must not be done twice: {key}")
    for (key, name), runs in ledger.steps.items():
        if runs > 1 + ledger.again[key]:
            wrong.append(f"the step {name!r} ran {runs} times: {key}")
    left = asyncio.all_tasks(world) - {asyncio.current_task()}
    wrong += [f"left behind: {task}" for task in left]


# --------------------------------------------------------------------- the calls


def _same(player: Player, told: object, wanted: object) -> None:
    player._private(str(told))
    if player.exact and told != wanted:
        player.wrong(f"was told {told!r} instead of {wanted!r}")


async def _add(player: Player) -> None:
    a, b = player.world.rng.randrange(1000), player.world.rng.randrange(1000)
    _same(player, (await player.client.call_tool("add", {"a": a, "b": b})).text, str(a + b))


async def _sign(player: Player) -> None:
    told = (await player.client.call_tool("sign", {"name": player.key()})).text
    player._private(told)
    if told and player.client.era == "stateless" and player.exact:
        player.wrong("state outlives a request")


async def _spend(player: Player) -> None:
    key = player.key()
    _same(player, (await player.client.call_tool("spend", {"key": key})).text, key)


async def _count(player: Player) -> None:
    key, most, heard, over = player.key(), player.world.rng.randrange(1, 6), [0.0], False

    async def progress(step: Any) -> None:
        if over:
            player.wrong("heard of progress behind the answer")
        if step.progress <= heard[-1]:
            player.wrong(f"progress goes from {heard[-1]} to {step.progress}")
        heard.append(step.progress)
        _same(player, step.message, key)
        await asyncio.sleep(player.world.rng.choice((0.0, 0.01)))

    try:
        told = await player.client.call_tool("count", {"key": key, "most": most}, progress=progress)
    finally:
        over = True
    _same(player, told.text, key)
    if player.whole and heard != [*range(most + 1)]:
        player.wrong(f"heard of progress {heard[1:]} up to {most}")


async def _story(player: Player) -> None:
    key, most = player.key(), player.world.rng.randrange(1, 6)
    _same(player, (await player.client.call_tool("story", {"key": key, "most": most})).text, key)
    player.ended[key] = most


async def _order(player: Player) -> None:
    key = player.key()
    told = (await player.client.call_tool("order", {"key": key})).text
    player._private(told)
    if not player.exact:
        return
    paid, sent, *said = told.split("|")
    _same(player, (paid, sent), (f"pay {key}", f"send {key}"))
    for each, which in zip(said, ("first", "second"), strict=True):
        if each not in ("no", f"{which} {key}".upper()):
            player.wrong(f"{which} was answered with {each!r}")


async def _fail(player: Player) -> None:
    how = player.world.rng.choice([*FAILURES])
    told = await player.client.call_tool("fail", {"how": how}, raise_on_error=False)
    if player.exact and not told.is_error:
        player.wrong(f"a tool that failed by {how} says {told.text!r}")


async def _hang(player: Player) -> None:
    await player.client.call_tool("hang", {"key": player.key()})
    if player.exact:
        player.wrong("a tool that never ends has answered")


async def _read(player: Player) -> None:
    told = await player.client.read_resource(f"note://{player.name}")
    _same(player, told.contents[0].text, player.name)  # pyright: ignore[reportAttributeAccessIssue] - text it is


async def _watch(player: Player) -> None:
    uri = f"note://{player.name}"
    player.watched.add(uri)
    await player.client.subscribe(uri)


async def _unwatch(player: Player) -> None:
    await player.client.unsubscribe(f"note://{player.name}")


async def _list(player: Player) -> None:
    names = [tool.name for tool in await player.client.list_tools()]
    if player.exact and len(names) != 8:
        player.wrong(f"was told of {names}")


async def _ping(player: Player) -> None:
    await player.client.ping()


CALLS: dict[str, Callable[[Player], Awaitable[None]]] = {
    "add": _add,
    "sign": _sign,
    "spend": _spend,
    "count": _count,
    "story": _story,
    "order": _order,
    "fail": _fail,
    "hang": _hang,
    "read": _read,
    "watch": _watch,
    "unwatch": _unwatch,
    "list": _list,
    "ping": _ping,
}
"""The calls that a client makes, by name."""
