"""Our server on a real uvicorn, in the loop of the test, and messages to send to it.

Errors of uvicorn or the loop fail the test, and so do records that stay in the store.
"""

import asyncio
import contextlib
import json
import logging
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Annotated, Any

import uvicorn

from raw_http import Answer, Wire, wired
from revision_dates import DATES, LATEST, LATEST_SESSION, OLDEST_HTTP
from toolpost import Context, Header, Server, SyncContext
from toolpost.stores.memory import MemoryStore
from toolpost.types import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from waiting import until

__all__ = [
    "BOTH",
    "FIRST",
    "NEW",
    "OLD",
    "OLDER",
    "PATIENCE",
    "Site",
    "Stage",
    "call",
    "hosted",
    "kept",
    "kitchen",
    "legacy",
    "message",
    "modern",
    "opening",
    "run",
    "serving",
]

PATIENCE = 20.0
BOTH = "application/json, text/event-stream"
NEW = LATEST.date
OLD = LATEST_SESSION.date
OLDER = DATES[2]
FIRST = OLDEST_HTTP.date


def run(main) -> None:
    """Run a test in a new event loop, with a timeout."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())


# --------------------------------------------------------------------- messages


def message(method: str | None = None, params: Any = None, id: Any = None, **more: Any) -> bytes:  # noqa: A002 - the protocol's word
    """Return a message; without an id a notification."""
    said = {
        "jsonrpc": "2.0",
        **({} if id is None else {"id": id}),
        **({} if method is None else {"method": method}),
    }
    return json.dumps({**said, **({} if params is None else {"params": params}), **more}).encode()


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return the parameters of a tool call."""
    return {"name": name, "arguments": arguments}


def modern(
    method: str,
    params: dict[str, Any] | None = None,
    id: Any = 1,  # noqa: A002 - as above
    *,
    meta: Any = None,
    capabilities: Any = None,
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a stateless request."""
    params = params or {}
    about = {PROTOCOL_VERSION: NEW, CLIENT_CAPABILITIES: capabilities or {}, **(meta or {})}
    headers = {
        "Content-Type": "application/json",
        "Accept": BOTH,
        "MCP-Protocol-Version": NEW,
        "Mcp-Method": method,
    }
    name = params.get("name") or params.get("uri")
    if name is not None:
        headers["Mcp-Name"] = name
    return headers, message(method, {**params, "_meta": about}, id)


def legacy(session: str | None = None, revision: str | None = OLD) -> dict[str, str]:
    """Return the headers of a POST of the session era."""
    headers = {"Content-Type": "application/json", "Accept": BOTH}
    if revision is not None:
        headers["MCP-Protocol-Version"] = revision
    if session is not None:
        headers["Mcp-Session-Id"] = session
    return headers


def opening(revision: str = OLD, capabilities: Any = None, id: Any = 0) -> bytes:  # noqa: A002 - as above
    """Return an `initialize` request."""
    about = {"name": "raw", "version": "1"}
    params = {"protocolVersion": revision, "capabilities": capabilities or {}, "clientInfo": about}
    return message("initialize", params, id)


# --------------------------------------------------------------------- a server


class Stage:
    """The state of the server's functions, controlled by the test."""

    def __init__(self) -> None:
        self.loop: Any = None
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.ended = asyncio.Event()
        self.thread_saw_cancel = asyncio.Event()
        self.log: list[Any] = []
        self.lives: list[str] = []


def kitchen(stage: Stage | None = None, **options: Any) -> Server:
    """Create a server with a tool for each situation."""
    stage = stage or Stage()
    with contextlib.suppress(RuntimeError):
        stage.loop = asyncio.get_running_loop()
    server = Server("kitchen", **options)
    _plain(server)
    _waiting(server, stage)
    _speaking(server, stage)
    return server


def _plain(server: Server) -> None:
    @server.tool
    def echo(text: str) -> str:
        return text

    @server.tool
    def routed(
        region: Annotated[str, Header("Region")],
        floor: Annotated[int | None, Header("Floor")] = None,
        open: Annotated[bool | None, Header("Open")] = None,  # noqa: A002 - a word of the test's
    ) -> str:
        return f"{region} {floor} {open}"

    @server.tool
    def big(size: int) -> str:
        return "x" * size

    @server.tool
    async def news() -> str:
        server.notify_resource_updated("kitchen://menu")
        return "told"

    @server.resource("kitchen://menu")
    def menu() -> str:
        return "soup"


def _waiting(server: Server, stage: Stage) -> None:
    @server.tool
    async def wait(ctx: Context) -> str:
        """Signal the start, and continue when the test allows it."""
        stage.begun.set()
        try:
            await stage.go.wait()
        except asyncio.CancelledError:
            stage.log.append("cancelled")
            raise
        finally:
            stage.ended.set()
        await ctx.progress(99)
        return "waited"

    @server.tool
    async def quiet() -> str:
        """The same without messages."""
        stage.begun.set()
        try:
            await stage.go.wait()
        finally:
            stage.ended.set()
        return "waited"

    @server.tool
    async def stubborn() -> str:
        """Ignore cancellation."""
        stage.begun.set()
        try:
            await stage.go.wait()
        except asyncio.CancelledError:
            stage.log.append("cancelled")
            await stage.go.wait()
        return "late"

    @server.tool
    def blocked(ctx: SyncContext) -> str:
        """Work in a thread until the call is cancelled."""
        loop = stage.loop
        loop.call_soon_threadsafe(stage.begun.set)
        while not ctx.cancelled:
            time.sleep(0.001)
        loop.call_soon_threadsafe(stage.thread_saw_cancel.set)
        return "never"


def _speaking(server: Server, stage: Stage) -> None:
    @server.tool
    async def steps(count: int, ctx: Context) -> str:
        for number in range(count):
            await ctx.progress(number + 1, count)
        return "done"

    @server.tool
    async def noisy(ctx: Context) -> str:
        """Send a message first."""
        await ctx.progress(1)
        stage.begun.set()
        try:
            await stage.go.wait()
        finally:
            stage.ended.set()
        return "said"

    @server.tool
    async def polled(ctx: Context) -> str:
        """Close the stream, and send the rest when the test allows it."""
        await ctx.progress(1)
        await ctx.close_stream()
        stage.begun.set()
        await stage.go.wait()
        await ctx.progress(2)
        return "polled"

    @server.tool
    async def asked(ctx: Context) -> str:
        answer = await ctx.elicit("how many?", int)
        return repr(answer)


# --------------------------------------------------------------------- uvicorn


class Site:
    """A running server."""

    def __init__(self, app: Any, port: int, stack: AsyncExitStack | None = None) -> None:
        self.app = app
        self.port = port
        self._stack = stack

    async def wire(self) -> Wire:
        """Open a connection, which is closed with the server at the latest."""
        assert self._stack is not None, "use it as a context manager"
        return await self._stack.enter_async_context(wired(self.port))

    async def ask(
        self, method: str, target: str, headers: Any = (), body: bytes | None = None, **more: Any
    ) -> Answer:
        """Send one request on a new connection, and return the whole response."""
        async with wired(self.port) as wire:
            await wire.ask(method, target, headers, body, **more)
            return await wire.answer(head=method == "HEAD")

    async def post(self, headers: Any, body: bytes, target: str = "/mcp") -> Answer:
        """POST, and return the whole response."""
        return await self.ask("POST", target, headers, body)

    async def begin(
        self, method: str, headers: Any, body: bytes | None = None, target: str = "/mcp"
    ) -> tuple[Wire, Answer]:
        """Send a request that gets an event stream. Returns the connection and the head of the response."""
        wire = await self.wire()
        await wire.ask(method, target, headers, body)
        return wire, await wire.head()

    async def open(self, revision: str = OLD, capabilities: Any = None, headers: Any = None) -> str:
        """Complete a handshake, and return the id of the session."""
        more = headers or {}
        answer = await self.post({**legacy(revision=None), **more}, opening(revision, capabilities))
        assert answer.status == 200, answer
        session = answer.headers["mcp-session-id"]
        told = await self.post({**legacy(session, revision), **more}, message("notifications/initialized"))
        assert (told.status, told.body) == (202, b"")
        return session


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(self.format(record))


@asynccontextmanager
async def serving(app: Any, *, lifespan: str = "on", **config: Any):
    """Serve an ASGI application on 127.0.0.1, and shut it down cleanly."""
    complaints = _Complaints()
    log = logging.getLogger("uvicorn.error")
    log.addHandler(complaints)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.heard.append(str(context)))
    settings: dict[str, Any] = {
        "lifespan": lifespan,
        "http": "httptools",
        "ws": "none",
        "log_config": None,
        "access_log": False,
        **config,
    }
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # As in `server.run`: otherwise asyncio delays the second half of a response by 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await server.startup(sockets=[listening])
        try:
            async with AsyncExitStack() as stack:
                yield Site(app, listening.getsockname()[1], stack)
        finally:
            for each in server.servers:
                each.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()
            await server.lifespan.shutdown()
            if lifespan == "off":
                await app.stop()
            await until(lambda: not (server.server_state.connections or server.server_state.tasks))
            log.removeHandler(complaints)
    assert complaints.heard == []


@asynccontextmanager
async def hosted(server: Server, **web: Any):
    """Serve at /mcp, and check that nothing stays in the store."""
    app = server.asgi(**web)
    async with serving(app) as site:
        yield site
    assert kept(server.store) == []


def kept(store: Any) -> list[str]:
    """Return the records of an in-memory store that would never expire."""
    assert isinstance(store, MemoryStore)
    held: Any = store
    # The key that seals request states and sessions is created once and kept.
    records = [key for key, item in held.records._values._items.items() if item.expires == inf]
    return [key for key in records if key != "keys/states"] + [str(each) for each in held._workers]
