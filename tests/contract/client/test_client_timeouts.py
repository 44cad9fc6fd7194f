"""Combined timeouts of a client, and its errors about slow servers."""

import asyncio
import math
import sys

import pytest

from raw_server import Asked, Clock, RawServer, run
from toolpost import Client, Stdio
from toolpost.errors import ConnectFailed, RequestTimeout
from toolpost.testing import ScriptedChannel
from toolpost.types import CallToolResult, Result


async def late(asked: Asked) -> Result:
    for step in range(10):
        await asyncio.sleep(100)
        await asked.progress(step + 1)
    return CallToolResult(content=[])


@pytest.mark.requirement("TIME-4")
@pytest.mark.parametrize(
    ("options", "timeout", "waited"),
    [
        ({"timeout": None, "max_timeout": 1.0}, None, 1.0),
        ({"timeout": None, "max_timeout": 250.0}, None, 250.0),
        ({"timeout": None, "max_timeout": 300.0}, None, 300.0),
        ({"timeout": None, "max_timeout": 1.0}, 2.0, 2.0),
        ({"timeout": None}, 150.0, 300.0),  # the call has a time-out, and with it the usual cap
        ({"timeout": None}, None, None),
        ({"timeout": None, "max_timeout": None}, None, None),
        ({"timeout": None, "max_timeout": math.inf}, None, None),
        ({"timeout": None, "max_timeout": 1.0}, math.inf, None),
        ({"max_timeout": 0.5}, None, 0.5),  # below the usual time-out
        ({"timeout": 5.0, "max_timeout": 2.0}, None, 2.0),
        ({"max_timeout": 0.5}, 2.0, 2.0),  # the caller knows better
    ],
)
def test_a_cap_holds_without_a_time_out_and_below_it(options, timeout, waited):
    async def main() -> None:
        async with Client(RawServer({"tools/call": late}), **options) as client:
            if waited is None:
                await client.call_tool("t", timeout=timeout)
            else:
                with pytest.raises(RequestTimeout):
                    await client.call_tool("t", timeout=timeout)
                assert asyncio.get_running_loop().time() == waited

    run(main(), Clock)


class Process(ScriptedChannel):
    """A channel to a process that writes only to stderr."""

    returncode: int | None = None
    stderr_tail: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("code", "words", "text"),
    [
        (None, (), "within 30 s; the server process is still running"),
        (
            None,
            ("waiting for the database", "still waiting"),
            "is still running; last lines of stderr:\n    waiting for the database\n    still waiting",
        ),
        (-9, (), "within 30 s; the server process exited with code -9"),
    ],
)
def test_a_slow_handshake_reports_the_state_of_the_process(code, words, text):
    async def main() -> None:
        channel = Process()
        channel.returncode, channel.stderr_tail = code, words
        with pytest.raises(ConnectFailed) as caught:
            await Client(channel).connect()
        assert caught.value.message.endswith(text)

    run(main(), Clock)


def test_a_handshake_that_takes_too_long_without_a_process_is_just_that():
    async def main() -> None:
        with pytest.raises(ConnectFailed) as caught:
            await Client(ScriptedChannel()).connect()
        assert caught.value.message.endswith("within 30 s")

    run(main(), Clock)


SILENT = "import sys; print('no licence yet', file=sys.stderr, flush=True); sys.stdin.read()"


def test_a_child_that_prints_instead_of_speaking_is_reported():
    async def main() -> None:
        stdio = Stdio(
            sys.executable, ["-IS", "-c", "print('Starting …', flush=True); input(); input(); input()"]
        )
        with pytest.raises(
            ConnectFailed, match=r"1 line\(s\) to stdout that are not messages: does it print"
        ):
            await Client(stdio, connect_timeout=4.0).connect()

    run(main())


def test_a_child_that_is_silent_is_quoted():
    async def main() -> None:
        stdio = Stdio(sys.executable, ["-IS", "-c", SILENT])
        with pytest.raises(ConnectFailed, match=r"(?s)is still running; .*stderr:\n    no licence yet"):
            await Client(stdio, connect_timeout=4.0).connect()

    run(main())
