"""One suite for every revision and transport: a case is an async function that takes a `link`.

After each case nothing may be left behind: no task, no process, no descriptor, no temporary file.
"""

import asyncio
import gc
import inspect
import tempfile
from typing import Any

import pytest
from features import TRANSPORTS
from links import Holdings, Links, Shared

from toolpost.protocol.methods import DATES
from transports.leftovers import PATIENCE


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """A folder for temporary files that nobody else uses, for us and for the servers that we start."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="module")
def runner(temporary):
    """The loop of a module: clients that are shared live in it."""
    gc.collect()
    gc.freeze()  # all that is there now stays: looking through it after each case would take most of the time
    with asyncio.Runner() as runner:
        yield runner
    gc.unfreeze()


@pytest.fixture(scope="module")
def shared(runner):
    """The clients that the cases of a module share."""
    shared = Shared()
    yield shared
    runner.run(shared.stack.aclose())


@pytest.fixture(params=DATES)
def revision(request):
    """What is spoken, in every revision."""
    return request.param


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    """What lies between, memory or pipes."""
    return request.param


@pytest.fixture(autouse=True)
def held(runner):
    """What may be there after the case: what was there before, and what is shared."""
    loop = runner.get_loop()
    held = Holdings(loop)
    yield held
    gc.collect()
    left = runner.run(_left_over(loop, held))
    assert not any(left.values()), f"left behind: {left}"


async def _left_over(loop, held):
    """What is left once everything that ends by itself has ended."""
    deadline = loop.time() + PATIENCE
    ours = asyncio.current_task()
    while True:
        left = Holdings(loop) - held
        left["tasks"].discard(ours)
        if not any(left.values()) or loop.time() > deadline:
            return left
        await asyncio.sleep(0.005)


@pytest.fixture
def link(runner, shared, held, revision, transport):
    """Makes clients, and ends those that are not shared."""
    links = Links(shared, held, revision, transport)
    yield links
    runner.run(links.stack.aclose())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function):
    """Run a case that is a coroutine in the loop of its module."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    runner: Any = pyfuncitem.funcargs["runner"]
    runner.run(pyfuncitem.obj(**arguments))
    return True
