"""Runs one suite over every revision and transport. A case is an async function that takes a `link`.

The loop and the clients that cases share last as long as a module.
"""

import asyncio
import inspect
from typing import Any

import pytest

import leak_check
from connected_clients import Links, Shared
from features import SPOKEN, TRANSPORTS
from revision_dates import DATES


@pytest.fixture(autouse=True, scope="module")
def runner():
    """The event loop of a module, for shared clients."""
    with asyncio.Runner() as runner, leak_check.lasting(runner):
        yield runner


@pytest.fixture(scope="module")
def shared(runner):
    """The shared clients of a module."""
    shared = Shared()
    yield shared
    runner.run(shared.stack.aclose())


@pytest.fixture(params=DATES)
def revision(request):
    """The protocol revision."""
    return request.param


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    """The transport: memory, pipes, HTTP on a socket or in this process, HTTP+SSE."""
    return request.param


@pytest.fixture
def link(runner, shared, held, revision, transport):
    """Creates clients, and closes those that are not shared."""
    links = Links(shared, held, revision, transport)
    yield links
    runner.run(links.stack.aclose())
    shared.rest()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out combinations of transport and revision that do not exist."""
    items[:] = [item for item in items if _goes_together(getattr(item, "callspec", None))]


def _goes_together(callspec: Any) -> bool:
    params = {} if callspec is None else callspec.params
    transport, revision = params.get("transport"), params.get("revision")
    return None in {transport, revision} or transport not in SPOKEN or revision in SPOKEN[transport]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function):
    """Run an async case in the loop of its module."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    runner: Any = pyfuncitem.funcargs["runner"]
    runner.run(pyfuncitem.obj(**arguments))
    return True
