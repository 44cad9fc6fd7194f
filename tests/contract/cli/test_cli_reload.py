"""`toolpost run --reload`: the code changes, the clients stay."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from revision_dates import DATES
from running_server import run, running, started, write
from toolpost import Client

SERVER = """
from pathlib import Path

import words
from toolpost import Server

server = Server("changing", instructions="{name}")


@server.tool
def tell() -> str:
    return "{name}, " + words.WORD


@server.tool
def gated(gate: str) -> str:
    return Path(gate).read_text() + "{name}"


@server.tool
def lazy() -> str:
    import later

    return later.WORD


@server.tool
def {name}() -> None: ...
"""


class Place:
    """A folder with a server in two files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = folder / "changing.py"
        self.words = folder / "words.py"
        self.write("old", "first")

    def write(self, name: str | None = None, word: str | None = None) -> None:
        """Change one of the files, or both."""
        if word is not None:
            write(self.words, f"WORD = {word!r}\n")
        if name is not None:
            write(self.server, SERVER.format(name=name))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def told(client: Client) -> str:
    return (await client.call_tool("tell")).text


async def begun(client: Client, gate: Path) -> tuple[asyncio.Task[Any], int]:
    """A running call that continues when its gate is written to and closed."""
    os.mkfifo(gate)
    call = asyncio.create_task(client.call_tool("gated", {"gate": str(gate)}))
    while True:
        try:
            return call, os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no reader yet
            await asyncio.sleep(0.001)


# --------------------------------------------------------------------- processes


@pytest.mark.parametrize("revision", [DATES[0], DATES[-2], DATES[-1]])
def test_over_stdio_a_client_stays_connected_and_is_notified(place: Place, revision: str):
    async def main():
        target = started(f"{place.server}:server", "--reload")
        async with (
            Client(target, revision=revision) as client,
            client.listen(tools=True) as changes,
        ):
            assert await told(client) == "old, first"
            place.write(name="new")
            async for change in changes:
                assert not change.missed
                if await told(client) == "new, first":
                    break
            assert [tool.name for tool in await client.list_tools()] == ["tell", "gated", "lazy", "new"]
            assert client.stats.connections == 1

    run(main)


def test_over_http_clients_of_all_revisions_stay(place: Place):
    async def main():
        async with running(str(place.server), "--reload") as server, AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(Client(server.url, revision=date)) for date in DATES[1:]
            ]
            sse = server.url.replace("/mcp", "/sse")
            clients.append(await stack.enter_async_context(Client(sse, revision=DATES[0])))
            changes = [
                await stack.enter_async_context(client.listen(tools=True, prompts=True)) for client in clients
            ]
            calls = [await begun(client, place.folder / str(number)) for number, client in enumerate(clients)]
            assert {await told(client) for client in clients} == {"old, first"}

            place.write(word="other")
            assert "changing.py: changed words.py" in await server.hears("Reloaded")
            assert {await told(client) for client in clients} == {"old, other"}
            place.write(name="new")
            assert "changed changing.py" in await server.hears("Reloaded")
            assert {await told(client) for client in clients} == {"new, other"}
            for each in changes:
                async for change in each:
                    assert (change.kind, change.missed) == ("tools", False)
                    break

            for call, gate in calls:  # they are finished by the code that has begun them
                os.write(gate, b"finished by ")
                os.close(gate)
                assert (await call).text == "finished by old"
            assert {client.stats.connections for client in clients} == {1}
            assert await server.end(signal.SIGINT) == 0

    run(main)


def test_code_that_does_not_load_is_reported_and_the_old_code_keeps_running(place: Place):
    async def main():
        async with running(str(place.server), "--reload") as server, Client(server.url) as client:
            write(place.words, "WORD = nothing\n")
            said = await server.hears("Still running")
            assert f'File "{place.words}", line 1, in <module>' in said
            assert f'File "{place.server}", line 4, in <module>' in said
            assert "NameError: name 'nothing' is not defined" in said
            assert said.count("File ") == 2
            assert await told(client) == "old, first"

            write(place.words, "WORD = (\n")
            assert "SyntaxError: '(' was never closed" in await server.hears("Still running")
            assert await told(client) == "old, first"

            write(place.words, "from more import WORD\n")
            assert "No module named 'more'" in await server.hears("Still running")
            write(place.folder / "more.py", "WORD = 'more'\n")  # which was not even there
            await server.hears("Reloaded")
            assert await told(client) == "old, more"

            write(place.server, "from toolpost import Server\n")
            assert "changing.py has no server" in await server.hears("Still running")
            place.server.unlink()
            place.write(name="back")
            await server.hears("Reloaded")
            assert await told(client) == "back, more"

            write(place.folder / "later.py", "WORD = 'late'\n")  # which is imported by a call
            assert (await client.call_tool("lazy")).text == "late"
            write(place.folder / "later.py", "WORD = 'later'\n")
            assert "changed later.py" in await server.hears("Reloaded")
            assert (await client.call_tool("lazy")).text == "later"
            assert await server.end() == 0

    run(main)


LIVING = """
from contextlib import asynccontextmanager
from toolpost import Context, Server


@asynccontextmanager
async def life(server):
    {problem}
    print("+{name}", flush=True)
    yield "{name}"
    print("-{name}", flush=True)


def make() -> Server:
    server = Server("living", lifespan=life)

    @server.tool
    async def tell(ctx: Context) -> str:
        return ctx.lifespan

    return server
"""


def test_lifespans_change_with_the_code_in_a_package_too(tmp_path: Path):
    async def main():
        package = tmp_path / "package"
        package.mkdir()
        (package / "__init__.py").write_text("")
        module = package / "living.py"
        write(module, LIVING.format(name="one", problem=""))
        words = ["package.living:make", "--reload"]
        async with running(*words, cwd=tmp_path) as server, Client(server.url) as client:
            assert await told(client) == "one"
            write(module, LIVING.format(name="two", problem="raise OSError('no database')"))
            said = await server.hears("Still running")
            assert "package.living changed, but could not be served:" in said
            assert said.count("File ") == 1
            assert await told(client) == "one"
            write(module, LIVING.format(name="two", problem=""))
            await server.hears("Reloaded")
            assert await told(client) == "two"
            assert await server.end() == 0

    run(main)
