"""Server processes that misbehave: they die, hang, flood, send fragments, or do not end.

If a process has ended, a new client makes the valid call that follows (`afresh`).
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from byte_server import said
from hostile_transports import LIMIT, PROGRAM, REVISIONS, child, meeting, run
from toolpost import Client, Stdio
from toolpost.errors import ChannelClosed, ConnectFailed, MCPError, RemoteProtocolError, RequestTimeout

GOOD = '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"x"}],"resultType":"complete"}}'
ERAS = ["session", "stateless"]
GROWTH = 64 * 1024 * 1024
"""Bytes by which this process may grow while a server writes without end: far less than the server writes."""


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def odd(code: str, **options: Any) -> Stdio:
    """A server that runs some code first."""
    rest = f"import runpy; sys.argv = ['x', 'session']; runpy.run_path({PROGRAM!r}, run_name='__main__')"
    head = f"import os, signal, sys, time\n{code}\n{rest}"
    given: dict[str, Any] = {"max_line": LIMIT, "stderr": "discard", **options}
    return Stdio(sys.executable, ["-I", "-S", "-c", head], **given)


async def afresh(era: str = "session") -> None:
    """Make a valid call with a new client."""
    async with Client(child(era), revision=REVISIONS[era], timeout=10) as client:
        assert (await client.call_tool("good")).text == "ok"


# --------------------------------------------------------------------- ends

ENDS = {
    "killed": ("os.kill(os.getpid(), 9)", "SIGKILL"),
    "a fault": ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "aborted": ("os.kill(os.getpid(), signal.SIGABRT)", "SIGABRT"),
    "an exit": ("os._exit(3)", "3"),
    "an exit that says all is well": ("os._exit(0)", "0"),
    "an exception": ("raise RuntimeError('out of cheese')", "out of cheese"),
    "half an answer": ('write(b\'{"jsonrpc":"2.0","id":1,\'); os._exit(4)', "4"),
}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", list(ENDS))
def test_a_process_that_ends_in_a_call_is_reported_with_its_exit_code(name, era):
    code, told = ENDS[name]

    async def main():
        async with Client(child(era, stderr="discard"), revision=REVISIONS[era], timeout=10) as client:
            calls = [client.call_tool("do", {"code": code}), client.call_tool("good")]
            first, _ = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(first, MCPError)
            assert told in str(first)
        await afresh(era)

    run(main)


@pytest.mark.parametrize("code", ["os._exit(7)", "os.kill(os.getpid(), 9)", "os.close(1); time.sleep(60)"])
def test_a_process_that_ends_before_its_first_message_cannot_be_connected_to(code):
    async def main():
        with pytest.raises(ConnectFailed):
            await Client(
                odd(code, term_wait=0.05, stdin_wait=0.05), revision=REVISIONS["session"], connect_timeout=5
            ).connect()
        await afresh()

    run(main)


# --------------------------------------------------------------------- sends nothing


@pytest.mark.requirement("TIME-1")
@pytest.mark.parametrize("revision", [None, *REVISIONS.values()])
def test_a_process_that_never_sends_anything_times_out(revision):
    async def main():
        silent = odd("time.sleep(60)", term_wait=0.05, stdin_wait=0.05)
        with pytest.raises(MCPError, match=r"within|answer"):
            await Client(silent, revision=revision, connect_timeout=0.3, probe_timeout=0.1).connect()

    run(main)


def test_a_process_that_sends_half_a_line_and_stops():
    async def main():
        code = 'write(b\'{"jsonrpc":"2.0","id":1,"result":{\')'
        async with Client(child(), revision=REVISIONS["session"], timeout=10) as client:
            with pytest.raises(RequestTimeout):
                await client.call_tool("do", {"code": code}, timeout=0.1)
            # The response to the call is part of that line and is lost; the next one is read.
            assert (await client.call_tool("good")).text == "ok"

    run(main)


def test_a_process_that_closes_stdout_and_lives_on():
    async def main():
        code = "os.close(1); time.sleep(60)"
        target = child(term_wait=0.05, stdin_wait=0.05)
        async with Client(target, revision=REVISIONS["session"], timeout=10) as client:
            with pytest.raises(ChannelClosed):
                await client.call_tool("do", {"code": code})
        await afresh()

    run(main)


def test_a_process_that_does_not_read_its_stdin():
    async def main():
        async with Client(
            child(term_wait=0.05, stdin_wait=0.05), revision=REVISIONS["session"], timeout=0.3
        ) as client:
            stuck = asyncio.create_task(client.call_tool("do", {"code": "time.sleep(60)"}))
            large = {"code": "#" * 200_000}
            told = await asyncio.gather(
                *(client.call_tool("do", large) for _ in range(20)), stuck, return_exceptions=True
            )
            assert all(isinstance(each, RequestTimeout) for each in told), told
        await afresh()

    run(main)


@pytest.mark.parametrize("ignored", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_process_that_ignores_the_end_of_stdin_is_killed(ignored):
    async def main():
        pids: list[str] = []
        stays = "import atexit; atexit.register(time.sleep, 60)"
        code = f"{ignored}\n{stays}\nsys.stderr.write(f'{{os.getpid()}}\\n')"
        target = odd(code, term_wait=0.05, stdin_wait=0.05, stderr=pids.append)
        async with Client(target, revision=REVISIONS["session"], timeout=10) as client:
            assert (await client.call_tool("good")).text == "ok"
        with pytest.raises(ProcessLookupError):
            os.kill(int(pids[0]), 0)

    run(main)


# --------------------------------------------------------------------- sends too much


@pytest.mark.parametrize(
    "code",
    [
        "print('Starting…', flush=True)",
        "os.write(1, bytes(range(256)) + b'\\n\\n\\r\\n')",
        "os.write(1, b'\\xef\\xbb\\xbf\\n')",
        'os.write(1, b\'{"level":"info"}\\n[]\\n7\\n\')',
        "os.write(1, b'\\x1b[32mready\\x1b[0m\\n')",
    ],
    ids=["words", "bytes", "mark", "JSON", "colours"],
)
def test_output_before_the_first_message_is_skipped(code):
    async def main():
        async with Client(odd(code), revision=REVISIONS["session"], timeout=10) as client:
            assert (await client.call_tool("good")).text == "ok"
            noise = ["debug: here", "", "\x1b[2J", "{}"]
            assert (await client.call_tool("say", said(*noise, GOOD, *noise))).text == "x"
            assert (await client.call_tool("good")).text == "ok"

    run(main)


def test_a_line_over_the_limit_fails_its_call_and_the_next_is_read():
    async def main():
        async with meeting("stdio session", timeout=10) as client:
            with pytest.raises(RemoteProtocolError, match="too long"):
                await client.call_tool("say", said(GOOD.replace('"x"', f'"{"x" * LIMIT}"')))
            assert (await client.call_tool("good")).text == "ok"

    run(main)


@pytest.mark.parametrize("start", ['"id":%d,', ""], ids=["id first", "id last"])
def test_a_line_over_the_limit_fails_its_call_before_it_ends(start, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = f'{{"jsonrpc":"2.0",{start}"result":{{"content":[{{"type":"text","text":"{"x" * LIMIT}'
    code = (
        "key = sys._getframe(1).f_locals['key']\n"
        f"write(({text!r} % key if '%' in {start!r} else {text!r}).encode())\n"
        f"open({str(gate)!r}).close()"
    )

    async def main():
        async with meeting("stdio session", timeout=20) as client:
            with pytest.raises(RemoteProtocolError, match="too long"):
                await client.call_tool("do", {"code": code})
            next_call = asyncio.create_task(client.call_tool("good"))
            gate.write_text("")  # the server continues, ends the line and reads the next call
            assert (await next_call).text == "ok"

    run(main)


@pytest.mark.parametrize(
    "code",
    [
        "while True: write(b'x' * 65536)",
        "while True: write(b'[' * 65536)",
        'write(b\'{"jsonrpc":"2.0","id":1,"result":"\')\nwhile True: write(b\'x\' * 65536)',
        "while True: write(b'\\n' * 65536)",
        "while True: write(b'rubbish\\n' * 8192)",
        'while True: write(b\'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\\n\' * 999)',
        'while True: write(b\'{"jsonrpc":"2.0","id":"1","method":"acme/x"}\\n\' * 999)',
        "while True: os.write(2, b'x' * 65536)",
        "while True: os.write(2, b'x\\n' * 30000)",
    ],
    ids=[
        "line",
        "nesting",
        "answer",
        "empty lines",
        "rubbish",
        "notices",
        "requests",
        "stderr line",
        "stderr lines",
    ],
)
def test_an_endless_line_does_not_fill_the_memory(code):
    async def main():
        target = child(term_wait=0.05, stdin_wait=0.05, stderr="discard")
        async with Client(target, revision=REVISIONS["session"], on_notification=lambda *_: None) as client:
            before = memory()
            with pytest.raises(MCPError):
                await client.call_tool("do", {"code": code}, timeout=0.4)
            assert memory() - before < GROWTH
        await afresh()

    run(main)


# --------------------------------------------------------------------- schemas


@pytest.mark.requirement("JSCH-10")
@pytest.mark.parametrize("era", ERAS)
def test_a_schema_that_explodes_or_has_remote_references(era):
    async def main():
        async with meeting(f"stdio {era}", timeout=10) as client:
            await client.list_tools()
            # `(a+)+$` against 200 000 letters and a mismatch: a backtracking engine never ends.
            with pytest.raises(MCPError, match=r"does not match|violates its output schema"):
                await client.call_tool("explode")
            assert client.stats.unchecked == 0
            await client.call_tool("gone")
            assert client.stats.unchecked == 1
            assert (await client.call_tool("good")).text == "ok"

    run(main)
