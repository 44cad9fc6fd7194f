"""The pytest plugin: its fixtures, and its reports of failing tests in a separate pytest."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from calculator import calculator
from toolpost import Http
from toolpost.testing import ClientFactory, SyncClientFactory, Transcript

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("over", ["memory", "http"])
async def test_a_client_in_every_revision(client: ClientFactory, every_revision, over):
    async with client(calculator(), revision=every_revision, over=over) as mcp:
        assert mcp.revision == every_revision
        assert (await mcp.call_tool("add", {"a": 1, "b": 2})).text == "3"


async def test_a_client_over_http_and_sse(client: ClientFactory, no_leaks, transcript: Transcript):
    async with client(calculator(), over="sse", name="me") as mcp:
        assert mcp.era == "session"
        assert (await mcp.call_tool("add", {"a": 1, "b": 2})).data == 3
    transcript.assert_like('...\n-> 1 initialize {..."name":"me"...}\n...\n<- 2 result ...')


def test_a_client_without_await(sync_client: SyncClientFactory, no_leaks, transcript: Transcript):
    mcp = sync_client(calculator(), revision="2025-06-18")
    assert mcp.call_tool("add", {"a": 1, "b": 2}).data == 3
    other = sync_client(calculator(), over="http")
    assert other.call_tool("add", {"a": 1, "b": 2}).data == 3
    assert any(line.startswith("2→") for line in transcript.lines())


class TestInAClass:
    async def test_a_method_is_run(self, mcp_client: ClientFactory):
        async with mcp_client(calculator()) as mcp:
            assert mcp.connected


def test_http_is_for_servers(sync_client):
    with pytest.raises(TypeError, match="requires a server object, not Http"):
        sync_client(Http("http://127.0.0.1/mcp"), over="http")


def test_a_way_that_there_is_not(sync_client):
    with pytest.raises(ValueError, match="over: 'htttp' is not one of 'memory', 'http', 'sse'"):
        sync_client(calculator(), over="htttp")


async def test_a_parameter_with_a_default_is_not_a_fixture(client: ClientFactory, b: int = 2):  # noqa: PT028 - it is tested
    async with client(calculator()) as mcp:
        assert (await mcp.call_tool("add", {"a": 1, "b": b})).data == 3


@mock.patch("os.getlogin", return_value="ann")
async def test_a_parameter_of_a_decorator_is_not_a_fixture(getlogin: mock.Mock, client: ClientFactory):
    assert os.getlogin() == getlogin() == "ann"
    assert callable(client)


def test_the_plugin_loads_nothing_before_it_is_needed():
    """Every run of pytest loads it; what is measured by coverage must not be loaded before that begins."""
    script = (
        "import sys, pytest; before = set(sys.modules); import toolpost.testing.plugin; "
        "print(*(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {name for name in run.stdout.split() if name.startswith(("asyncio", "msgspec", "toolpost"))} == {
        "toolpost",
        "toolpost.version",
        "toolpost.testing",
        "toolpost.testing.plugin",
    }


# --------------------------------------------------------------------- in a pytest of its own

TESTS = """
import asyncio, threading
from toolpost import Server

server = Server("calculator")

@server.tool
def add(a: int, b: int) -> int:
    return a + b

async def test_passes(client):
    async with client(server) as mcp:
        assert (await mcp.call_tool("add", {"a": 1, "b": 2})).data == 3

async def test_fails(client):
    async with client(server) as mcp:
        assert (await mcp.call_tool("add", {"a": 1, "b": 2})).data == 4

def test_fails_late(transcript):
    for n in range(300):
        transcript.add("client", b'{"method":"n%d"}' % n)
    assert not "late"

async def test_leaves_a_task(no_leaks):
    asyncio.create_task(asyncio.sleep(60), name="mine")

def test_fails_and_leaves_a_thread(no_leaks):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    assert not "mine"

async def test_is_none_of_ours():
    pass
"""

DJANGO = """
import pytest

@pytest.fixture
def client():
    return "theirs"
"""

OTHERS = """
def test_client(client):
    assert client == "theirs"

async def test_mcp_client(mcp_client):
    assert callable(mcp_client)
"""


@pytest.fixture
def bare(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A pytest whose only plugin is ours."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    return pytester


def test_the_outcome_of_tests_with_the_plugin(bare: pytest.Pytester):
    bare.makepyfile(TESTS)
    result = bare.runpytest_subprocess("-p", "toolpost.testing.plugin")
    result.assert_outcomes(passed=2, failed=4, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_leaves_a_task*",
            "leaked resources:",
            "task <Task pending name='mine' *",
            "*_ test_fails _*",
            "*- transcript -*",
            "* → 1 server/discover",
            "* ← 1 result *",
            '* → 2 tools/call {"name":"add","arguments":{"a":1,"b":2}}',
            "* ← 2 result *",
            "*_ test_fails_late _*",
            "*- transcript -*",
            "… 100 earlier messages",
            "* → n100",
            "* → n299",
            "*_ test_is_none_of_ours _*",
            "async def functions are not natively supported.",
        ]
    )


@pytest.mark.parametrize(
    "order", [("django", "toolpost.testing.plugin"), ("toolpost.testing.plugin", "django")]
)
def test_a_client_of_another_plugin_stays_theirs(bare: pytest.Pytester, order):
    bare.makepyfile(django=DJANGO, test_others=OTHERS)
    result = bare.runpytest_subprocess("-p", order[0], "-p", order[1])
    result.assert_outcomes(passed=2)


def test_a_client_of_the_users_own_stays_theirs(bare: pytest.Pytester):
    Path(bare.path, "conftest.py").write_text(DJANGO)
    bare.makepyfile(OTHERS)
    bare.runpytest_subprocess("-p", "toolpost.testing.plugin").assert_outcomes(passed=2)


def test_anyio_runs_its_marked_tests(bare: pytest.Pytester):
    bare.makepyfile(
        """
        import pytest

        @pytest.mark.anyio
        async def test_it(client, anyio_backend):
            assert anyio_backend == "asyncio"

        @pytest.fixture
        def anyio_backend():
            return "asyncio"
        """
    )
    result = bare.runpytest_subprocess("-p", "toolpost.testing.plugin", "-p", "anyio.pytest_plugin")
    result.assert_outcomes(passed=1)
