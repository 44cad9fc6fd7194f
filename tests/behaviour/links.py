"""Connected clients for the cases: over memory or stdio, in one revision, shared where state allows.

A shared client lives as long as its module, with all that belongs to it: `Holdings` knows what that is, so
that everything else can be found to be left behind. How a case is chosen is told in `features`.
"""

import asyncio
import importlib.util
import inspect
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from toolpost import Client, Handler, Stdio
from toolpost.types import ClientCapabilities, ElicitationCapability, SamplingCapability
from transports.leftovers import children, descriptors

__all__ = ["PROGRAMS", "Desk", "Holdings", "Links", "Shared", "server_of", "stdio", "until"]

PROGRAMS = Path(__file__).with_name("programs")
PATIENCE = 20.0


async def until(condition) -> None:
    """Return as soon as the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for is not ours to tell
            await asyncio.sleep(0.001)


def server_of(program: str) -> Handler:
    """The server of a program, made anew."""
    spec = importlib.util.spec_from_file_location(f"programs_{program}", PROGRAMS / f"{program}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # annotations are looked up there
    spec.loader.exec_module(module)
    return module.server


def stdio(program: str, *arguments: str, **options: Any) -> Stdio:
    """How to start a program."""
    handed_on = [name for name in os.environ if name.startswith("COV")]
    command = [str(PROGRAMS / f"{program}.py"), *arguments]
    return Stdio(sys.executable, command, inherit_env=handed_on, name=program, **options)


class Holdings:
    """What this process holds: tasks, children, descriptors and temporary files."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.tasks = {task for task in asyncio.all_tasks(loop) if not task.done()}
        self.children = children()
        self.descriptors = set(descriptors().items())
        self.files = set(os.listdir(tempfile.gettempdir()))  # noqa: PTH208 - a set of names is all it takes

    def __sub__(self, other: "Holdings") -> dict[str, set[Any]]:
        return {name: held - vars(other)[name] for name, held in vars(self).items()}

    def add(self, more: dict[str, set[Any]]) -> None:
        """Expect these as well."""
        for name, held in more.items():
            vars(self)[name] |= held


class Desk:
    """What a shared client's user, model and log do in the test of the moment."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nobody is there."""
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
    """The clients that tests share, by program, revision and transport."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.clients: dict[tuple[str, str, str], tuple[Client, Desk]] = {}
        self.servers: dict[str, Handler] = {}

    async def get(self, program: str, revision: str, transport: str) -> tuple[Client, Desk]:
        """The client, connected."""
        key = (program, revision, transport)
        if key not in self.clients:
            if program not in self.servers and transport == "memory":
                self.servers[program] = server_of(program)
            target = self.servers[program] if transport == "memory" else stdio(program)
            desk = Desk()
            client = Client(target, revision=revision, timeout=PATIENCE, **desk.options())
            await self.stack.enter_async_context(client)
            self.clients[key] = (client, desk)
        client, desk = self.clients[key]
        desk.clear()
        return client, desk


class Links:
    """Makes the clients of one case."""

    def __init__(self, shared: Shared, held: Holdings, revision: str, transport: str) -> None:
        self.revision = revision
        self.transport = transport
        self.stack = AsyncExitStack()
        self.desk = Desk()
        self._shared = shared
        self._held = held

    async def __call__(self, program: str = "kitchen") -> Client:
        """The shared client of a program; its desk is ours for the length of the case."""
        loop = asyncio.get_running_loop()
        before = Holdings(loop)
        client, self.desk = await self._shared.get(program, self.revision, self.transport)
        self._held.add(Holdings(loop) - before)
        return client

    async def fresh(self, program: str | Handler, *arguments: str, **options: Any) -> Client:
        """A client of its own, with a server of its own."""
        options.setdefault("timeout", PATIENCE)
        client = Client(self.target(program, *arguments), revision=self.revision, **options)
        return await self.stack.enter_async_context(client)

    async def attended(self, program: str | Handler, *arguments: str) -> Client:
        """A client of its own, with the callbacks of our desk."""
        return await self.fresh(program, *arguments, **self.desk.options())

    def target(self, program: str | Handler, *arguments: str) -> Any:
        """What to connect to."""
        if isinstance(program, Handler):
            assert self.transport == "memory", "only a program can be started over stdio"
            return program
        return server_of(program) if self.transport == "memory" else stdio(program, *arguments)
