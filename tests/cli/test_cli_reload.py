"""`toolpost run --reload`: the code changes, the clients stay."""

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from launched import run, running, started, write

from toolpost import Client, Server
from toolpost.cli.exits import Quit
from toolpost.cli.found import Source
from toolpost.cli.reload import Reload
from toolpost.cli.watch import Watch, look
from toolpost.protocol.methods import DATES
from toolpost.server.generations import Generations

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
    """A call that goes on when its gate is written to and closed; it waits there already."""
    os.mkfifo(gate)
    call = asyncio.create_task(client.call_tool("gated", {"gate": str(gate)}))
    while True:
        try:
            return call, os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            await asyncio.sleep(0.001)


# --------------------------------------------------------------------- processes


@pytest.mark.parametrize("revision", [DATES[0], DATES[-2], DATES[-1]])
def test_over_stdio_a_client_stays_and_hears_of_it(place: Place, revision: str):
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
            assert "changing.py is served anew: changed words.py" in await server.hears("served anew")
            assert {await told(client) for client in clients} == {"old, other"}
            place.write(name="new")
            assert "changed changing.py" in await server.hears("served anew")
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


def test_what_cannot_be_loaded_is_told_and_the_old_code_serves_on(place: Place):
    async def main():
        async with running(str(place.server), "--reload") as server, Client(server.url) as client:
            write(place.words, "WORD = nothing\n")
            said = await server.hears("serves on")
            assert f'File "{place.words}", line 1, in <module>' in said
            assert f'File "{place.server}", line 4, in <module>' in said
            assert "NameError: name 'nothing' is not defined" in said
            assert said.count("File ") == 2
            assert await told(client) == "old, first"

            write(place.words, "WORD = (\n")
            assert "SyntaxError: '(' was never closed" in await server.hears("serves on")
            assert await told(client) == "old, first"

            write(place.words, "from more import WORD\n")
            assert "No module named 'more'" in await server.hears("serves on")
            write(place.folder / "more.py", "WORD = 'more'\n")  # which was not even there
            await server.hears("served anew")
            assert await told(client) == "old, more"

            write(place.server, "from toolpost import Server\n")
            assert "changing.py has no server" in await server.hears("serves on")
            place.server.unlink()
            place.write(name="back")
            await server.hears("served anew")
            assert await told(client) == "back, more"

            write(place.folder / "later.py", "WORD = 'late'\n")  # which is imported by a call
            assert (await client.call_tool("lazy")).text == "late"
            write(place.folder / "later.py", "WORD = 'later'\n")
            assert "changed later.py" in await server.hears("served anew")
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
            said = await server.hears("serves on")
            assert "package.living has changed, but cannot be served:" in said
            assert said.count("File ") == 1
            assert await told(client) == "one"
            write(module, LIVING.format(name="two", problem=""))
            await server.hears("served anew")
            assert await told(client) == "two"
            assert await server.end() == 0

    run(main)


# --------------------------------------------------------------------- files


def test_a_watch_tells_what_looks_different(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    watch = Watch()
    watch.follow([str(one), str(two)], {})
    assert watch.changed() == set()
    two.write_text("2")
    assert watch.changed() == {str(two)}
    write(one, "2")
    one.write_text("22")
    two.unlink()
    watch.follow([str(one)], {str(one): look(str(one))})
    assert watch.changed() == {str(one)}
    assert watch.changed() == set()
    before = look(str(tmp_path))
    two.write_text("2")
    watch.follow([str(one), str(tmp_path)], {str(tmp_path): before})
    assert watch.changed() == {str(tmp_path)}


def test_code_is_read_anew_however_fast_it_changes(loading, tmp_path):
    path = tmp_path / "fast_code.py"
    path.write_text("import fast_words\nfrom toolpost import Server\nserver = Server(fast_words.NAME)\n")
    source = None
    for name in ("a", "b", "c"):
        (tmp_path / "fast_words.py").write_text(f"NAME = {name!r}\n")
        os.utime(tmp_path / "fast_words.py", (1, 1))
        if source is None:
            source = Source("fast_code.py", fresh=True)
            server = source.load()
        else:
            server = source.load_again()
        assert server.info.name == name
    assert not list(tmp_path.rglob("*.pyc"))


def test_its_own_files_are_those_below_that_nobody_has_installed(loading, tmp_path):
    installed = tmp_path / "venv" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "own_third.py").write_text("")
    (tmp_path / "own_inner").mkdir()
    (tmp_path / "own_inner" / "own_part.py").write_text("")
    (tmp_path / "own_code.py").write_text(
        "import sys\nsys.path.append('venv/site-packages')\nimport own_third, own_inner.own_part\n"
        "from toolpost import Server\nserver = Server('a')\n"
    )
    source = Source("own_code.py", fresh=True)
    source.load()
    third = sys.modules["own_third"]
    own = {str(tmp_path / "own_code.py"), str(tmp_path / "own_inner" / "own_part.py")}
    assert source.files() == own
    source.load_again()
    assert sys.modules["own_third"] is third

    (tmp_path / "own_code.py").write_text("import own_inner.own_broken\n")
    (tmp_path / "own_inner" / "own_broken.py").write_text("1 +\n")
    before = sys.modules["own_inner.own_part"]
    with pytest.raises(Quit, match="invalid syntax"):
        source.load_again()
    assert source.files() == {*own, str(tmp_path / "own_inner" / "own_broken.py")}
    assert sys.modules["own_inner.own_part"] is before


def test_folders_that_are_no_packages_are_read_anew_too(loading, tmp_path):
    folder = tmp_path / "bare_folder" / "bare_inner"
    folder.mkdir(parents=True)
    (tmp_path / "bare_code.py").write_text(
        "from bare_folder.bare_inner import bare_words\n"
        "from toolpost import Server\nserver = Server(bare_words.NAME)\n"
    )
    (folder / "bare_words.py").write_text("NAME = 'a'\n")
    source = Source("bare_code.py", fresh=True)
    assert source.load().info.name == "a"
    (folder / "bare_words.py").write_text("NAME = 'b'\n")
    assert source.load_again().info.name == "b"

    before = sys.modules["bare_folder"]
    (folder / "bare_words.py").write_text("NAME = \n")
    with pytest.raises(Quit, match="invalid syntax"):
        source.load_again()
    assert sys.modules["bare_folder"] is before


FORGOTTEN = """
from dataclasses import dataclass
from toolpost import Context, Server

server = Server("forgotten")


@dataclass
class Form:
    word: str = ""


@server.tool
async def tell(ctx: Context, form: Form | None = None) -> list[Form]:
    return [await ctx.elicit("Which word?", Form)]
"""


def test_nothing_is_left_of_code_that_was_replaced(loading, tmp_path):
    async def ask(client: Client) -> None:
        await client.call_tool("tell", {"form": {"word": "a"}})

    async def main():
        (tmp_path / "forgotten_code.py").write_text(FORGOTTEN)
        source = Source("forgotten_code.py", fresh=True)
        server = Generations(source.load())
        forms: list[weakref.ref[Any]] = []
        async with Client(server, on_elicitation=lambda _: {"word": "b"}) as client:
            for _ in range(4):
                await ask(client)
                forms.append(weakref.ref(sys.modules["forgotten_code"].Form))
                await server.replace(source.load_again())
            await ask(client)
        gc.collect()
        assert [form() for form in forms] == [None] * 4

    run(main)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("far_package.inside", {"far_package/inside.py", "far_package/__init__.py"}),
        ("far_package", {"far_package/__init__.py"}),
        ("far_alone", {"far_alone.py"}),
    ],
)
def test_of_what_is_installed_its_package_is_its_own(loading, tmp_path, monkeypatch, name, files):
    there = tmp_path / "site-packages"
    (there / "far_package").mkdir(parents=True)
    for file in ("far_package/__init__.py", "far_package/inside.py", "far_alone.py"):
        (there / file).write_text("import far_other\nfrom toolpost import Server\nserver = Server('a')\n")
    (there / "far_other.py").write_text("")
    monkeypatch.syspath_prepend(there)
    source = Source(name, fresh=True)
    source.load()
    assert source.files() == {str(there / each) for each in files}
    assert source.load_again().info.name == "a"


# --------------------------------------------------------------------- odd cases


class Told:
    """What is told; and nobody is there to read it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._any = asyncio.Event()

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        self._loop.call_soon_threadsafe(self._any.set)
        raise BrokenPipeError

    async def anything(self) -> str:
        """The next text."""
        await self._any.wait()
        self._any.clear()
        return self.texts[-1]


@asynccontextmanager
async def reloading(name: str, told: Told) -> AsyncGenerator[Client]:
    """A client of a server in this process, which is loaded anew."""
    source = Source(name, fresh=True)
    reload = Reload(source, source.load(), told)
    async with Client(reload.server) as client:
        yield client


def test_a_server_that_is_made_elsewhere_stays(loading, tmp_path, monkeypatch):
    async def main():
        monkeypatch.setattr(sys, "odd_server", Server("odd"), raising=False)
        path, said = tmp_path / "odd_code.py", Told()
        path.write_text("import sys\nserver = sys.odd_server\n")
        async with reloading("odd_code.py", said):
            write(path, "import sys\n\nserver = sys.odd_server\n")
            assert "odd_code.py has changed, but its server is made elsewhere." in await said.anything()
            write(path, "from toolpost import Server\nserver = Server('b')\n")
            assert await said.anything() == "odd_code.py is served anew: changed odd_code.py"
        assert len(said.texts) == 2

    run(main)


SLOW = """
from contextlib import asynccontextmanager
import sys
from toolpost import Server

@asynccontextmanager
async def life(server):
    await sys.slow_life()
    yield

server = Server("slow", lifespan=life)
"""
FAST = """
from toolpost import Server

server = Server("fast")
"""
LONG = """
import sys

sys.long_begins.set()
sys.long_goes_on.wait()
"""


def test_a_server_that_is_about_to_serve_is_given_up_in_the_end(loading, tmp_path, monkeypatch):
    async def main():
        begins = asyncio.Event()

        async def life() -> None:
            begins.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(sys, "slow_life", life, raising=False)
        path, said = tmp_path / "slow_code.py", Told()
        path.write_text(FAST)
        async with reloading("slow_code.py", said):
            write(path, SLOW)
            await begins.wait()
        assert said.texts == []

    run(main)


def test_a_server_that_never_begins_is_given_up_when_its_code_changes(loading, tmp_path, monkeypatch):
    async def main():
        begins = asyncio.Event()

        async def life() -> None:
            begins.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(sys, "slow_life", life, raising=False)
        path, said = tmp_path / "stuck_code.py", Told()
        path.write_text(FAST)
        async with reloading("stuck_code.py", said) as client:
            write(path, SLOW)
            await begins.wait()
            write(path, FAST.replace("fast", "faster"))
            assert await said.anything() == "stuck_code.py is served anew: changed stuck_code.py"
            await client.list_tools()
        assert len(said.texts) == 1

    run(main)


LITTERING = """
import sys
from pathlib import Path

Path("litter").touch()
Path("litter").unlink()
sys.litter_more()
nothing
"""


def test_code_that_writes_beside_itself_and_fails_is_not_tried_forever(loading, tmp_path, monkeypatch):
    async def main():
        times = 0

        def more() -> None:
            nonlocal times
            times += 1
            if times > 2:
                raise AssertionError("nothing has changed but what it writes itself")

        monkeypatch.setattr(sys, "litter_more", more, raising=False)
        monkeypatch.setattr("toolpost.cli.reload.INTERVAL", 0.001)
        monkeypatch.setattr("toolpost.cli.reload.SETTLE", 0.001)
        path, said = tmp_path / "littering_code.py", Told()
        path.write_text(FAST)
        async with reloading("littering_code.py", said):
            write(path, LITTERING)
            assert "'nothing'" in await said.anything()
            write(path, LITTERING.replace("nothing", "nobody"))
            assert "'nobody'" in await said.anything()
            with pytest.raises(TimeoutError):  # nothing more is said
                async with asyncio.timeout(0.2):
                    await said.anything()

    run(main)


def test_code_that_is_never_done_loading_holds_up_nobody(loading, tmp_path, monkeypatch):
    begins, goes_on = threading.Event(), threading.Event()

    async def main():
        path, said = tmp_path / "long_code.py", Told()
        path.write_text(FAST)
        async with reloading("long_code.py", said) as client:
            write(path, LONG + FAST)
            await asyncio.to_thread(begins.wait)
            assert await client.list_tools() == []
        assert said.texts == []

    monkeypatch.setattr("toolpost.cli.reload.PATIENCE", 0.01)
    monkeypatch.setattr(sys, "long_begins", begins, raising=False)
    monkeypatch.setattr(sys, "long_goes_on", goes_on, raising=False)
    try:
        run(main)
    finally:
        goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "toolpost-reload":
            thread.join()
