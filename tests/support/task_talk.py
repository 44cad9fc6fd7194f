"""A server with tools that become tasks, and a client that speaks raw JSON to it, of either kind of tasks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from revision_dates import DATES
from toolpost import Context, RPCError, Server, TaskOptions, ToolError
from toolpost.testing import ScriptedChannel
from toolpost.types import CLIENT_CAPABILITIES, PROTOCOL_VERSION

__all__ = ["ASKING", "EXTENSION", "NEW", "OLD", "Talk", "studio", "talk"]

OLD, NEW = DATES[-2:]
EXTENSION = "io.modelcontextprotocol/tasks"
ASKING = {"elicitation": {}, "sampling": {}}
PATIENCE = 20.0


class Talk:
    """One client. In a session, requests are those of 2025-11-25; otherwise they declare the extension."""

    def __init__(self, channel: ScriptedChannel, revision: str, capabilities: dict[str, Any]) -> None:
        self._channel = channel
        self._revision = revision
        self.capabilities = capabilities
        self.greeting: Any = None
        self._ids = 0
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self.notes: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.questions: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def read(self) -> None:
        """Sort the messages of the server."""
        while True:
            message = await self._channel.next_sent()
            if "method" not in message:
                self._waiting.pop(message["id"]).set_result(message)
            else:
                (self.questions if "id" in message else self.notes).put_nowait(message)

    def send(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> asyncio.Future[Any]:
        """Send a request; the future is the whole response."""
        self._ids += 1
        if self._revision == NEW and "capabilities" not in meta:
            meta["capabilities"] = {**self.capabilities, "extensions": {EXTENSION: {}}}
        about: dict[str, Any] = {}
        if self._revision == NEW:
            about = {PROTOCOL_VERSION: NEW, CLIENT_CAPABILITIES: meta.pop("capabilities")}
        whole = {**(params or {}), "_meta": {**about, **meta}}
        self._waiting[self._ids] = asyncio.get_running_loop().create_future()
        self.tell({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": whole})
        return self._waiting[self._ids]

    def tell(self, message: dict[str, Any]) -> None:
        """Send any message."""
        self._channel.feed(message)

    async def ask(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Send a request, and return the result; the error if it fails."""
        response = await self.send(method, params, **meta)
        return response["error"] if "error" in response else response["result"]

    async def call(self, tool: str, *, task: Any = None, **arguments: Any) -> Any:
        """Call a tool; in a session as a task."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if self._revision == OLD:
            params["task"] = {} if task is None else task
        created = await self.ask("tools/call", params)
        return created["task"] if self._revision == OLD and "task" in created else created

    async def get(self, created: dict[str, Any]) -> Any:
        """Return the state of a task."""
        return await self.ask("tasks/get", {"taskId": created["taskId"]})

    async def until(self, created: dict[str, Any], *statuses: str, text: str = "") -> Any:
        """Wait until a task has one of these statuses, and this text somewhere in its state."""
        while True:
            state = await self.get(created)
            if state["status"] in statuses and text in str(state):
                return state
            await asyncio.sleep(0.001)


@asynccontextmanager
async def talk(
    server: Server, revision: str = NEW, capabilities: dict[str, Any] | None = None, **serving: Any
) -> AsyncGenerator[Talk]:
    """Connect a raw client."""
    channel = ScriptedChannel()
    serves = asyncio.ensure_future(server.serve(channel, **serving))
    client = Talk(channel, revision, capabilities or {})
    reads = asyncio.ensure_future(client.read())
    async with asyncio.timeout(PATIENCE):
        if revision == OLD:
            about = {"name": "raw", "version": "1"}
            hello = {"protocolVersion": OLD, "capabilities": client.capabilities, "clientInfo": about}
            client.greeting = await client.ask("initialize", hello)
            client.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        try:
            yield client
        finally:
            reads.cancel()
            channel.end()
            await asyncio.wait([serves, reads])


class Stage:
    """What the tools of the studio do, under the control of a test."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.runs: list[str] = []
        self.cancelled = asyncio.Event()
        self.handed: list[Any] = []


def studio(stage: Stage | None = None, **options: Any) -> tuple[Server, Stage]:
    """Return a server with a tool for each situation."""
    stage = stage or Stage()
    server = Server("studio", **options)
    _work(server, stage)
    _ask(server, stage)
    return server, stage


AT_ONCE = TaskOptions(after=0, poll=0.1)


def _work(server: Server, stage: Stage) -> None:
    @server.tool
    def plain() -> str:
        return "plain"

    @server.tool(task=AT_ONCE)
    async def work(ctx: Context) -> str:
        stage.runs.append("work")
        stage.begun.set()
        try:
            await stage.go.wait()
        except asyncio.CancelledError:
            stage.cancelled.set()
            raise
        return "done"

    @server.tool(task=TaskOptions(required=True, after=0))
    async def demanding(ctx: Context) -> str:
        await ctx.background()
        return "demanded"

    @server.tool(task=AT_ONCE)
    async def fails(ctx: Context) -> str:
        await ctx.background()
        raise ToolError("the paint is dry")

    @server.tool(task=AT_ONCE)
    async def breaks(ctx: Context) -> str:
        await ctx.background()
        raise RPCError("out of paint", {"left": 0}, code=-31999)

    @server.tool(task=AT_ONCE)
    async def reports(ctx: Context) -> str:
        await ctx.progress(1, 3, "mixing")
        stage.begun.set()
        await stage.go.wait()
        await ctx.progress(2, 3)
        await ctx.info("no client hears this")
        return "reported"

    @server.tool(task=TaskOptions(required=True))
    async def render(scene: str, ctx: Context) -> str:
        await ctx.detach(stage.handed.append)
        return scene


def _ask(server: Server, stage: Stage) -> None:
    @server.tool(task=TaskOptions(after=None))
    async def asks(ctx: Context) -> str:
        await ctx.background()
        first, second = await asyncio.gather(ctx.elicit("Colour?", str), ctx.elicit("Size?", str))
        stage.runs.append("asked")
        third = await ctx.elicit("Frame?", bool)
        return f"{first.data} {second.data} {third.data}"  # type: ignore[union-attr] - all accepted

    @server.tool(task=TaskOptions(after=None))
    async def steps(ctx: Context) -> str:
        await ctx.step("first", stage.runs.append, "first")
        name = await ctx.elicit("Name?", str)
        await ctx.background()
        await ctx.step("second", stage.runs.append, "second")
        frame = await ctx.elicit("Frame?", str)
        return f"{name.data} {frame.data}"  # type: ignore[union-attr] - all accepted
