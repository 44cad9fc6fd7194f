"""The pytest plugin: clients for tests, a transcript of what they say, and a look at what is left running.

pytest loads it wherever toolpost is installed, so that it imports nothing of toolpost before a test needs it.
Owns the fixtures, and that an async test with one of them runs where no other plugin runs it.
"""

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, get_args

import pytest

if TYPE_CHECKING:
    from toolpost.client.client import Client
    from toolpost.client.sync import SyncClient
    from toolpost.connect import Target
    from toolpost.testing.transcript import Transcript


Over: TypeAlias = Literal["memory", "http", "sse"]
"""What lies between a client and a server in the same process: nothing, Streamable HTTP, or HTTP+SSE."""

MAX_LINE_LENGTH: Final = 500  # how many characters of a message the report of a failure shows
MAX_LINES: Final = 200  # messages in the report of a failure: the last, nearest to what went wrong
_ASYNC_FIXTURES: Final = frozenset({"client", "every_revision", "mcp_client", "no_leaks", "transcript"})
"""Fixtures whose tests we run if they are async and nobody else does."""

_TRANSCRIPT_KEY: Final = pytest.StashKey["Transcript"]()


class ClientFactory(Protocol):
    """What the fixture `client` is: makes clients, for `async with`."""

    def __call__(
        self, target: "Target", *, revision: str | None = None, over: Over = "memory", **options: Any
    ) -> "Client":
        """A client that is not connected yet.

        Args:
            target: a server object, or whatever else `Client` takes.
            revision: the protocol revision to speak. By default it is found out.
            over: what lies between, if the target is a server object. HTTP needs no socket here.
            options: whatever else `Client` takes.
        """
        ...


class SyncClientFactory(Protocol):
    """What the fixture `sync_client` is: makes clients that are connected, and closes them after the test."""

    def __call__(
        self, target: "Target", *, revision: str | None = None, over: Over = "memory", **options: Any
    ) -> "SyncClient":
        """A client that is connected. Takes what `ClientFactory` takes."""
        ...


def _make_target(transcript: "Transcript", target: Any, over: Over) -> Any:
    """The target as a client is given it: overheard, and over HTTP if that is wanted."""
    from toolpost.testing.channel import in_process  # noqa: PLC0415 - see the module's docstring

    if over not in get_args(Over):
        raise ValueError(f"over: {over!r} is none of {', '.join(map(repr, get_args(Over)))}")
    return transcript.wrap(target if over == "memory" else in_process(target, over))


# --------------------------------------------------------------------- fixtures


@pytest.fixture
def transcript(request: pytest.FixtureRequest) -> "Transcript":
    """What the clients of the test say and hear; it is shown if the test fails."""
    from toolpost.testing.transcript import Transcript  # noqa: PLC0415 - see the module's docstring

    kept = request.node.stash[_TRANSCRIPT_KEY] = Transcript()
    return kept


@pytest.fixture
def mcp_client(transcript: "Transcript") -> ClientFactory:
    """What makes clients, as `client` does; for where another plugin has a fixture of that name."""
    from toolpost.client.client import Client  # noqa: PLC0415 - see the module's docstring

    def make(target: Any, *, revision: str | None = None, over: Over = "memory", **options: Any) -> Client:
        return Client(_make_target(transcript, target, over), revision=revision, **options)

    return make


class _ClientFixture:
    """The fixture whose name others like as well."""

    @pytest.fixture
    def client(self, mcp_client: ClientFactory) -> ClientFactory:
        """What makes clients: `async with` one of a server, in any revision, in memory or over HTTP."""
        return mcp_client


@pytest.fixture
def sync_client(request: pytest.FixtureRequest, transcript: "Transcript") -> Iterator[SyncClientFactory]:
    """What makes clients for tests without await, connected until the test ends: `sync_client(server)`."""
    from toolpost.client.sync import SyncClient  # noqa: PLC0415 - see the module's docstring

    if "no_leaks" in request.fixturenames:
        request.getfixturevalue("no_leaks")  # first, so that it looks when our clients are closed
    with ExitStack() as stack:

        def make(
            target: Any, *, revision: str | None = None, over: Over = "memory", **options: Any
        ) -> SyncClient:
            client = SyncClient(_make_target(transcript, target, over), revision=revision, **options)
            return stack.enter_context(client)

        yield make


@pytest.fixture
def every_revision(request: pytest.FixtureRequest) -> str:
    """The protocol revision of this run: the test is run in each of them."""
    return request.param


@pytest.fixture
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a task, thread, process, socket or file behind, unless it failed before."""
    from toolpost.testing import leaks  # noqa: PLC0415 - see the module's docstring

    failures = request.session.testsfailed
    check = leaks.no_leaks()
    check.__enter__()
    yield
    failed = request.session.testsfailed > failures
    try:
        check.__exit__(None, AssertionError() if failed else None, None)
    except AssertionError as error:
        pytest.fail(str(error), pytrace=False)


# --------------------------------------------------------------------- hooks


def pytest_configure(config: pytest.Config) -> None:
    """Offer `client`, unless another plugin does, as those of Django and Flask: theirs has to stay theirs."""
    plugins = config.pluginmanager.list_name_plugin()
    # Those of the user come before ours in any case.
    others = [plugin for name, plugin in plugins if not name.endswith("conftest.py")]
    if not any(_is_fixture(getattr(plugin, "client", None)) for plugin in others):
        config.pluginmanager.register(_ClientFixture(), "toolpost-client")


def _is_fixture(value: object) -> bool:
    return hasattr(value, "_pytestfixturefunction") or type(value).__name__ == "FixtureFunctionDefinition"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `every_revision` in each of them."""
    if "every_revision" in metafunc.fixturenames:
        from toolpost.protocol.methods import DATES  # noqa: PLC0415 - see the module's docstring

        metafunc.parametrize("every_revision", DATES, indirect=True)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that takes one of our fixtures, if no other plugin does.

    Those that do are asked earlier, or have made a function of it that is not async.
    """
    test: Callable[..., Any] = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or _ASYNC_FIXTURES.isdisjoint(pyfuncitem.fixturenames):
        return None
    import asyncio  # noqa: PLC0415 - most runs of pytest need none

    # The others have a default, or are given by a decorator such as `mock.patch`.
    wanted = inspect.signature(test).parameters.keys() & pyfuncitem.funcargs.keys()
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the transcript of a test that failed."""
    report = yield
    kept = item.stash.get(_TRANSCRIPT_KEY, None)
    if report.failed and kept:
        lines = kept.lines(times=True, width=MAX_LINE_LENGTH)
        before = [f"… {len(lines) - MAX_LINES} before these"] if len(lines) > MAX_LINES else []
        report.sections.append(("transcript", "\n".join(before + lines[-MAX_LINES:])))
    return report
