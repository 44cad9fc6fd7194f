"""Connected clients for the cases: over any transport, in one revision, shared where state allows.

A shared client lives as long as its module, with all that belongs to it: it is held `on_purpose`, so that
everything else is reported as a leak. `features` describes how a case is chosen.
"""

import asyncio
import importlib.util
import inspect
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from leak_check import Holdings
from toolpost import Client, Handler, Stdio
from toolpost.client.connection.negotiate import REVISION_CACHE
from toolpost.server.http import serve as web
from toolpost.testing import in_process
from toolpost.types import ClientCapabilities, ElicitationCapability, SamplingCapability

__all__ = [
    "PATIENCE",
    "PROGRAMS",
    "Desk",
    "Links",
    "Shared",
    "hosted",
    "listeners",
    "server_of",
    "stdio",
    "until",
]

PROGRAMS = Path(__file__).with_name("programs")
PATIENCE = 20.0


async def until(condition) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.001)


def server_of(program: str) -> Handler:
    """Create the server of a program again."""
    spec = importlib.util.spec_from_file_location(f"programs_{program}", PROGRAMS / f"{program}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # annotations are looked up there
    spec.loader.exec_module(module)
    return module.server


def listeners(server: Handler) -> int:
    """Return the number of clients that receive changes."""
    return len(server.broadcaster._subscribers)


def stdio(program: str, *arguments: str, **options: Any) -> Stdio:
    """Return the command of a program."""
    handed_on = [name for name in os.environ if name.startswith("COV")]
    command = [str(PROGRAMS / f"{program}.py"), *arguments]
    return Stdio(sys.executable, command, inherit_env=handed_on, name=program, **options)


@asynccontextmanager
async def served(server: Handler, transport: str) -> AsyncGenerator[dict[str, Any]]:
    """Return the target and options of a client of a server in this process."""
    if transport == "memory":
        yield {"target": server}
    elif transport == "asgi":
        yield {"target": in_process(server)}
    else:
        async with hosted(server) as origin:
            sse = {"url": f"{origin}/sse", "type": "sse"}
            yield {"target": sse if transport == "sse" else f"{origin}/mcp"}


@asynccontextmanager
async def hosted(server: Handler) -> AsyncGenerator[str]:
    """Run a server on a socket; yield its origin."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = server.asgi()
        await app.start()
        host: Any = web._make_uvicorn_server(cast("Any", app))
        serving = asyncio.create_task(host.serve(sockets=[listening]))
        await until(lambda: host.started or serving.done())
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            host.should_exit = True
            await serving
            REVISION_CACHE.clear()  # the next server on this port may be another one


class Desk:
    """The callbacks of a shared client in the current test."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset the callbacks for the next test."""
        self.elicited: Any = None
        self.sampled: Any = None
        self.roots: Any = []
        self.asked: list[Any] = []
        self.logs: list[Any] = []
        self.notices: list[tuple[str, Any]] = []

    async def _answer(self, how: Any, params: Any) -> Any:
        self.asked.append(params)
        said = how(params) if callable(how) else how
        return await said if inspect.isawaitable(said) else said

    def options(self) -> dict[str, Any]:
        """The callbacks of a client."""

        async def elicit(params):
            return await self._answer(self.elicited, params)

        async def sample(params):
            return await self._answer(self.sampled, params)

        async def roots():
            return self.roots

        async def log(params):
            self.logs.append(params)

        async def notice(method, params):
            self.notices.append((method, params))

        return {
            "on_elicitation": elicit,
            "on_sampling": sample,
            "on_roots": roots,
            "on_log": log,
            "on_notification": notice,
            "capabilities": ClientCapabilities(
                elicitation=ElicitationCapability(form={}, url={}), sampling=SamplingCapability(tools={})
            ),
        }


class Shared:
    """The shared clients, by program, revision and transport."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.clients: dict[tuple[str, str, str], tuple[Client, Desk]] = {}
        self.servers: dict[tuple[str, str], tuple[Handler, dict[str, Any]]] = {}

    async def get(self, program: str, revision: str, transport: str) -> tuple[Client, Desk]:
        """Return the client, connected."""
        key = (program, revision, transport)
        if key not in self.clients:
            way = {"target": stdio(program)} if transport == "stdio" else await self.way(program, transport)
            desk = Desk()
            client = Client(revision=revision, timeout=PATIENCE, **way, **desk.options())
            await self.stack.enter_async_context(client)
            self.clients[key] = (client, desk)
        client, desk = self.clients[key]
        desk.clear()
        return client, desk

    async def way(self, program: str, transport: str) -> dict[str, Any]:
        """Return the target of a server in this process, which all revisions share."""
        key = (program, transport)
        if key not in self.servers:
            server = server_of(program)
            self.servers[key] = server, await self.stack.enter_async_context(served(server, transport))
        return self.servers[key][1]

    def rest(self) -> None:
        """End the threads of shared clients and servers: they belong to the case that needed them."""
        for server, _ in self.servers.values():
            server.worker_threads.close()
        for client, _ in self.clients.values():
            client._session.request_callbacks.threads.close()


class Links:
    """Creates the clients of one case."""

    def __init__(self, shared: Shared, held: Holdings, revision: str, transport: str) -> None:
        self.revision = revision
        self.transport = transport
        self.stack = AsyncExitStack()
        self.desk = Desk()
        self._shared = shared
        self._held = held

    async def __call__(self, program: str = "kitchen") -> Client:
        """Return a client of a shared server, shared if possible, with the callbacks of this case."""
        with self._held.on_purpose():
            if self.transport in {"memory", "stdio"}:
                client, self.desk = await self._shared.get(program, self.revision, self.transport)
                return client
            way = await self._shared.way(program, self.transport)
        # Streams and connections come and go, so that a client of HTTP belongs to its case.
        client = Client(revision=self.revision, timeout=PATIENCE, **way, **self.desk.options())
        return await self.stack.enter_async_context(client)

    async def fresh(self, program: str | Handler, *arguments: str, **options: Any) -> Client:
        """Return a new client with its own server."""
        options.setdefault("timeout", PATIENCE)
        way = await self.way(program, *arguments)
        return await self.stack.enter_async_context(Client(revision=self.revision, **way, **options))

    async def attended(self, program: str | Handler, *arguments: str) -> Client:
        """Return a new client with the callbacks of this case."""
        return await self.fresh(program, *arguments, **self.desk.options())

    async def way(self, program: str | Handler, *arguments: str) -> dict[str, Any]:
        """Return the target and options of a new server."""
        if self.transport == "stdio":
            assert isinstance(program, str), "only a program can be started over stdio"
            return {"target": stdio(program, *arguments)}
        server = program if isinstance(program, Handler) else server_of(program)
        return await self.stack.enter_async_context(served(server, self.transport))
