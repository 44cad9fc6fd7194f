"""The pytest plugin: fixtures for clients, a transcript of their messages, and a check for leaks.

pytest loads it wherever toolpost is installed, so it imports toolpost lazily. Also runs async tests with
these fixtures if no other plugin does.
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
"""The transport between a client and a server in the same process: none, Streamable HTTP, or HTTP+SSE."""

MAX_LINE_LENGTH: Final = 500  # characters of a message in the report of a failure
MAX_LINES: Final = 200  # messages in the report of a failure: the last ones
_ASYNC_FIXTURES: Final = frozenset({"client", "every_revision", "mcp_client", "no_leaks", "transcript"})
"""Fixtures whose async tests we run if no other plugin does."""

_TRANSCRIPT_KEY: Final = pytest.StashKey["Transcript"]()


class ClientFactory(Protocol):
    """The fixture `client`: creates clients, for `async with`."""

    def __call__(
        self, target: "Target", *, revision: str | None = None, over: Over = "memory", **options: Any
    ) -> "Client":
        """Create a client that is not connected yet.

        Args:
            target: a server object, or any other target of `Client`.
            revision: the protocol revision to use. By default it is negotiated.
            over: the transport, if the target is a server object. HTTP needs no socket here.
            options: other options of `Client`.
        """
        ...


class SyncClientFactory(Protocol):
    """The fixture `sync_client`: creates connected clients, and closes them after the test."""

    def __call__(
        self, target: "Target", *, revision: str | None = None, over: Over = "memory", **options: Any
    ) -> "SyncClient":
        """Create a connected client. Takes the arguments of `ClientFactory`."""
        ...


def _make_target(transcript: "Transcript", target: Any, over: Over) -> Any:
    """Wrap the target for the transcript, over HTTP if required."""
    from toolpost.testing.channel import in_process  # noqa: PLC0415 - see the module's docstring

    if over not in get_args(Over):
        raise ValueError(f"over: {over!r} is not one of {', '.join(map(repr, get_args(Over)))}")
    return transcript.wrap(target if over == "memory" else in_process(target, over))


# --------------------------------------------------------------------- fixtures


@pytest.fixture
def transcript(request: pytest.FixtureRequest) -> "Transcript":
    """The messages of the clients of a test; shown if the test fails."""
    from toolpost.testing.transcript import Transcript  # noqa: PLC0415 - see the module's docstring

    return request.node.stash.setdefault(_TRANSCRIPT_KEY, Transcript())


@pytest.fixture
def mcp_client(transcript: "Transcript") -> ClientFactory:
    """The fixture `client` under another name, if another plugin has one of that name."""
    from toolpost.client.client import Client  # noqa: PLC0415 - see the module's docstring

    def make(target: Any, *, over: Over = "memory", **options: Any) -> Client:
        return Client(_make_target(transcript, target, over), **options)

    return make


class _ClientFixture:
    """The fixture `client`, a name that other plugins use too."""

    @pytest.fixture
    def client(self, mcp_client: ClientFactory) -> ClientFactory:
        """Creates clients of a server, for `async with`, in any revision, in memory or over HTTP."""
        return mcp_client


@pytest.fixture
def sync_client(request: pytest.FixtureRequest, transcript: "Transcript") -> Iterator[SyncClientFactory]:
    """Creates clients for synchronous tests, connected until the test ends: `sync_client(server)`."""
    from toolpost.client.sync import SyncClient  # noqa: PLC0415 - see the module's docstring

    if "no_leaks" in request.fixturenames:
        request.getfixturevalue("no_leaks")  # first, so that it checks after our clients are closed
    with ExitStack() as stack:

        def make(target: Any, *, over: Over = "memory", **options: Any) -> SyncClient:
            return stack.enter_context(SyncClient(_make_target(transcript, target, over), **options))

        yield make


@pytest.fixture
def every_revision(request: pytest.FixtureRequest) -> str:
    """The protocol revision of this run: the test runs once in each."""
    return request.param


@pytest.fixture
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaks a task, thread, process, socket or file, unless it has failed already."""
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
    """Register the fixture `client`, unless another plugin has one, such as Django's or Flask's."""
    plugins = config.pluginmanager.list_name_plugin()
    # Fixtures in a conftest.py take precedence over ours anyway.
    others = [getattr(each, "client", None) for name, each in plugins if not name.endswith("conftest.py")]
    if not any(
        hasattr(each, "_pytestfixturefunction") or type(each).__name__ == "FixtureFunctionDefinition"
        for each in others
    ):
        config.pluginmanager.register(_ClientFixture(), "toolpost-client")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with `every_revision` once in each revision."""
    if "every_revision" in metafunc.fixturenames:
        from toolpost.protocol.methods import DATES  # noqa: PLC0415 - see the module's docstring

        metafunc.parametrize("every_revision", DATES, indirect=True)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test with one of our fixtures, if no other plugin has run or wrapped it."""
    test: Callable[..., Any] = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or _ASYNC_FIXTURES.isdisjoint(pyfuncitem.fixturenames):
        return None
    import asyncio  # noqa: PLC0415 - rarely needed

    # Other parameters have a default, or come from a decorator such as `mock.patch`.
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
        before = [f"… {len(lines) - MAX_LINES} earlier messages"] if len(lines) > MAX_LINES else []
        report.sections.append(("transcript", "\n".join(before + lines[-MAX_LINES:])))
    return report
