"""`toolpost run --reload`: the code changes, the clients stay."""

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from running_server import run, write
from toolpost import Client, Server
from toolpost.cli.errors import CommandError
from toolpost.cli.run.loader import FileWatcher, ServerSource, read_file_state
from toolpost.cli.run.reload import Reloader
from toolpost.server.reloading import ReloadableServer


async def told(client: Client) -> str:
    return (await client.call_tool("tell")).text


# --------------------------------------------------------------------- files


def test_a_watch_reports_changed_files(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    watch = FileWatcher()
    watch.follow([str(one), str(two)], {})
    assert watch.poll_changes() == set()
    two.write_text("2")
    assert watch.poll_changes() == {str(two)}
    write(one, "2")
    one.write_text("22")
    two.unlink()
    watch.follow([str(one)], {str(one): read_file_state(str(one))})
    assert watch.poll_changes() == {str(one)}
    assert watch.poll_changes() == set()
    before = read_file_state(str(tmp_path))
    two.write_text("2")
    watch.follow([str(one), str(tmp_path)], {str(tmp_path): before})
    assert watch.poll_changes() == {str(tmp_path)}


def test_code_is_reread_however_fast_it_changes(loading, tmp_path):
    path = tmp_path / "fast_code.py"
    path.write_text("import fast_words\nfrom toolpost import Server\nserver = Server(fast_words.NAME)\n")
    source = None
    for name in ("a", "b", "c"):
        (tmp_path / "fast_words.py").write_text(f"NAME = {name!r}\n")
        os.utime(tmp_path / "fast_words.py", (1, 1))
        if source is None:
            source = ServerSource("fast_code.py", fresh=True)
            server = source.load()
        else:
            server = source.reload()
        assert server.info.name == name
    assert not list(tmp_path.rglob("*.pyc"))


def test_own_files_exclude_installed_packages(loading, tmp_path):
    installed = tmp_path / "venv" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "own_third.py").write_text("")
    (tmp_path / "own_inner").mkdir()
    (tmp_path / "own_inner" / "own_part.py").write_text("")
    (tmp_path / "own_code.py").write_text(
        "import sys\nsys.path.append('venv/site-packages')\nimport own_third, own_inner.own_part\n"
        "from toolpost import Server\nserver = Server('a')\n"
    )
    source = ServerSource("own_code.py", fresh=True)
    source.load()
    third = sys.modules["own_third"]
    own = {str(tmp_path / "own_code.py"), str(tmp_path / "own_inner" / "own_part.py")}
    assert source.files() == own
    source.reload()
    assert sys.modules["own_third"] is third

    (tmp_path / "own_code.py").write_text("import own_inner.own_broken\n")
    (tmp_path / "own_inner" / "own_broken.py").write_text("1 +\n")
    before = sys.modules["own_inner.own_part"]
    with pytest.raises(CommandError, match="invalid syntax"):
        source.reload()
    assert source.files() == {*own, str(tmp_path / "own_inner" / "own_broken.py")}
    assert sys.modules["own_inner.own_part"] is before


def test_namespace_packages_are_reread_too(loading, tmp_path):
    folder = tmp_path / "bare_folder" / "bare_inner"
    folder.mkdir(parents=True)
    (tmp_path / "bare_code.py").write_text(
        "from bare_folder.bare_inner import bare_words\n"
        "from toolpost import Server\nserver = Server(bare_words.NAME)\n"
    )
    (folder / "bare_words.py").write_text("NAME = 'a'\n")
    source = ServerSource("bare_code.py", fresh=True)
    assert source.load().info.name == "a"
    (folder / "bare_words.py").write_text("NAME = 'b'\n")
    assert source.reload().info.name == "b"

    before = sys.modules["bare_folder"]
    (folder / "bare_words.py").write_text("NAME = \n")
    with pytest.raises(CommandError, match="invalid syntax"):
        source.reload()
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
        source = ServerSource("forgotten_code.py", fresh=True)
        server = ReloadableServer(source.load())
        forms: list[weakref.ref[Any]] = []
        async with Client(server, on_elicitation=lambda _: {"word": "b"}) as client:
            for _ in range(4):
                await ask(client)
                forms.append(weakref.ref(sys.modules["forgotten_code"].Form))
                await server.replace(source.reload())
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
def test_the_package_of_an_installed_module_is_watched(loading, tmp_path, monkeypatch, name, files):
    there = tmp_path / "site-packages"
    (there / "far_package").mkdir(parents=True)
    for file in ("far_package/__init__.py", "far_package/inside.py", "far_alone.py"):
        (there / file).write_text("import far_other\nfrom toolpost import Server\nserver = Server('a')\n")
    (there / "far_other.py").write_text("")
    monkeypatch.syspath_prepend(there)
    source = ServerSource(name, fresh=True)
    source.load()
    assert source.files() == {str(there / each) for each in files}
    assert source.reload().info.name == "a"


# --------------------------------------------------------------------- odd cases


class Told:
    """An output whose reader has gone."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._any = asyncio.Event()

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        self._loop.call_soon_threadsafe(self._any.set)
        raise BrokenPipeError

    async def anything(self) -> str:
        """Return the last text, once there is a new one."""
        await self._any.wait()
        self._any.clear()
        return self.texts[-1]


@asynccontextmanager
async def reloading(name: str, told: Told) -> AsyncGenerator[Client]:
    """A client of a server in this process, which is reloaded."""
    source = ServerSource(name, fresh=True)
    reload = Reloader(source, source.load(), told)
    async with Client(reload.server) as client:
        yield client


def test_a_server_that_is_made_elsewhere_stays(loading, tmp_path, monkeypatch):
    async def main():
        monkeypatch.setattr(sys, "odd_server", Server("odd"), raising=False)
        path, said = tmp_path / "odd_code.py", Told()
        path.write_text("import sys\nserver = sys.odd_server\n")
        async with reloading("odd_code.py", said):
            write(path, "import sys\n\nserver = sys.odd_server\n")
            assert (
                "odd_code.py changed, but its server is created in another module." in await said.anything()
            )
            write(path, "from toolpost import Server\nserver = Server('b')\n")
            assert await said.anything() == "Reloaded odd_code.py: changed odd_code.py"
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
            assert await said.anything() == "Reloaded stuck_code.py: changed stuck_code.py"
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
        monkeypatch.setattr("toolpost.cli.run.reload.POLL_INTERVAL", 0.001)
        monkeypatch.setattr("toolpost.cli.run.reload.SETTLE_TIME", 0.001)
        path, said = tmp_path / "littering_code.py", Told()
        path.write_text(FAST)
        async with reloading("littering_code.py", said):
            write(path, LITTERING)
            assert "'nothing'" in await said.anything()
            write(path, LITTERING.replace("nothing", "nobody"))
            assert "'nobody'" in await said.anything()
            with pytest.raises(TimeoutError):  # no further output
                async with asyncio.timeout(0.2):
                    await said.anything()

    run(main)


def test_code_that_never_finishes_loading_does_not_block(loading, tmp_path, monkeypatch):
    begins, goes_on = threading.Event(), threading.Event()

    async def main():
        path, said = tmp_path / "long_code.py", Told()
        path.write_text(FAST)
        async with reloading("long_code.py", said) as client:
            write(path, LONG + FAST)
            await asyncio.to_thread(begins.wait)
            assert await client.list_tools() == []
        assert said.texts == []

    monkeypatch.setattr("toolpost.cli.run.reload.THREAD_STOP_TIMEOUT", 0.01)
    monkeypatch.setattr(sys, "long_begins", begins, raising=False)
    monkeypatch.setattr(sys, "long_goes_on", goes_on, raising=False)
    try:
        run(main)
    finally:
        goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "toolpost-reload":
            thread.join()
