"""A server as a child process: its output, its exit, and no leftovers."""

import asyncio
import io
import logging
import os
import shlex
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from programs.blind import BlindLoop

import leak_check
from toolpost.channel import Channel
from toolpost.errors import ChannelClosed, ConnectFailed, LocalProtocolError
from toolpost.protocol.line_framing import OversizedLine
from toolpost.transports import pipes, stdio_client
from toolpost.transports import stdio_client as child_module
from toolpost.transports.stdio_client import Stdio, open_child
from waiting import eventually, list_children, list_descriptors, until

PROGRAMS = Path(__file__).parent / "programs"
PIPE = 64 * 1024
NOW = {"stdin_wait": 0.05, "term_wait": 0.05}
STUBBORN = (
    "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True)\nwhile True: signal.pause()"
)
LATE = """import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print('[]', flush=True)
signal.sigwait({signal.SIGUSR1})
"""
LOOPS = pytest.mark.parametrize("loop", [None, BlindLoop], ids=["loop", "threads"])


def run(main, loop=None):
    async def bounded():
        async with asyncio.timeout(20):
            return await main()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(bounded())


def python(code, **options: Any):
    """A server that runs this code. It gets our environment, so that its coverage counts."""
    options.setdefault("inherit_env", True)
    return Stdio(sys.executable, ["-c", code], **options)


def program(name, *args, **options: Any):
    options.setdefault("inherit_env", True)
    return Stdio(sys.executable, [str(PROGRAMS / f"{name}.py"), *args], **options)


@asynccontextmanager
async def opened(stdio):
    channel = await open_child(stdio)
    try:
        yield channel
    finally:
        await channel.close()


async def end_of(channel):
    """Return the error at the end of the channel, after all earlier messages."""
    messages = []
    try:
        while True:
            messages.append(await channel.receive())
    except ChannelClosed as error:
        return messages, str(error)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


# --------------------------------------------------------------------- messages


@pytest.mark.requirement("STDIO-5")
@LOOPS
def test_messages_of_all_sizes_come_back(loop):
    async def main():
        async with opened(program("echo", *(["--blind"] if loop else []))) as channel:
            assert isinstance(channel, Channel)
            big = b'"%s"' % (b"x" * 3 * 1024 * 1024)
            small = [b'{"n":%d}' % n for n in range(5000)]
            sending = asyncio.create_task(send_all(channel, [*small, big, b"[]"]))
            assert [await channel.receive() for _ in small] == small
            assert [await channel.receive(), await channel.receive()] == [big, b"[]"]
            await sending
            await asyncio.gather(*(channel.send(line, related=1) for line in small))
            assert [await channel.receive() for _ in small] == small
        assert (channel.returncode, channel.stderr_tail) == (
            0,
            ("ended: the client is gone: stdin was closed",),
        )

    run(main, loop)


async def send_all(channel, messages):
    for data in messages:
        await channel.send(data)


@pytest.mark.requirement("STDIO-1", "STDIO-3", "SSE-9")
def test_raw_line_breaks_in_a_message_do_not_split_it():
    async def main():
        async with opened(Stdio("cat")) as channel:
            await channel.send(b'{\n"a":\r\n1}\n')
            await channel.send(b"[]")
            assert [await channel.receive(), await channel.receive()] == [b'{ "a":  1} ', b"[]"]

    run(main)


def test_a_server_may_write_single_bytes_and_invalid_json():
    code = "import os\nfor byte in b'Starting…\\n{\"a\":1}\\r\\n\\n[2]': os.write(1, bytes([byte]))"
    code = code.replace("…", "...")

    async def main():
        async with opened(python(code)) as channel:
            messages, end = await end_of(channel)
        assert messages == [b"Starting...", b'{"a":1}', b"[2]"]
        assert "exited with code 0; it wrote nothing to stderr" in end

    run(main)


def test_a_message_that_is_too_long_is_dropped_alone_and_reported(caplog):
    async def main():
        lost = []
        for told in (True, False):
            async with opened(Stdio("cat", max_line=10)) as channel:
                if told:
                    channel.on_oversized(lost.append)
                await send_all(channel, [b"1", b"x" * 11, b"2"])
                assert await channel.receive() == b"1"
                assert len(lost) == (not told)  # it is delivered in order
                assert await channel.receive() == b"2"
        assert lost == [OversizedLine(11, 10, b"x" * 10, b"x" * 10)]
        assert caplog.messages == ["cat: dropped a message: message too long: 11 bytes (limit: 10)"]

    run(main)


@LOOPS
def test_a_server_that_is_not_read_has_to_wait_and_others_go_on(loop):
    code = (
        "import sys\n"
        "for n in range(400_000): sys.stdout.write(f'{n}\\n')\n"
        "sys.stdout.flush(); sys.stderr.write('done\\n'); sys.stdin.read()"
    )

    async def main():
        lines = asyncio.Queue()
        async with opened(python(code, stderr=lines.put_nowait)) as flood, opened(Stdio("cat")) as other:
            seen = -1
            while seen != len(flood._queue.arrived) or not seen:
                seen = len(flood._queue.arrived)
                for _ in range(100):  # the other server answers meanwhile
                    await other.send(b"[]")
                    assert await other.receive() == b"[]"
            held = sum(len(line) + 1 for line in flood._queue.arrived if isinstance(line, bytes))
            assert held <= pipes.READ_HIGH_WATER + 2 * PIPE
            assert lines.empty()
            for n in range(400_000):
                assert await flood.receive() == b"%d" % n
            assert await lines.get() == "done"

    run(main, loop)


@LOOPS
def test_a_server_that_does_not_read_blocks_only_its_senders(loop):
    async def main():
        async with (
            opened(python(f"{LATE}print(len(sys.stdin.read()))")) as slow,
            opened(Stdio("cat")) as other,
        ):
            assert await slow.receive() == b"[]"
            sent = 0

            async def flood():
                nonlocal sent
                for _ in range(3000):
                    await slow.send(b"x" * 1023)
                    sent += 1

            flooding = asyncio.create_task(flood())
            seen = -1
            while seen != sent:
                seen = sent
                for _ in range(100):
                    await other.send(b"[]")
                    assert await other.receive() == b"[]"
            assert sent * 1024 <= pipes.WRITE_HIGH_WATER + 2 * PIPE + 2048
            os.kill(slow.pid, signal.SIGUSR1)
            await flooding
            slow._stdin.finish("that was all")
            assert await slow.receive() == b"%d" % (3000 * 1024)

    run(main, loop)


def test_a_cancelled_receive_loses_no_message():
    async def main():
        async with opened(Stdio("cat")) as channel:
            received, cancelled = [], 0
            for n in range(500):
                await channel.send(b"%d" % n)
                while len(received) <= n:
                    receiving = asyncio.create_task(channel.receive())
                    for _ in range(n % 5):
                        await asyncio.sleep(0)
                    receiving.cancel()
                    await asyncio.wait({receiving})
                    cancelled += receiving.cancelled()
                    received += [] if receiving.cancelled() else [receiving.result()]
                    if not n % 5:  # a task that never starts receives nothing
                        received.append(await channel.receive())
            assert received == [b"%d" % n for n in range(500)]
            assert cancelled

    run(main)


def test_only_one_task_may_receive():
    async def main():
        async with opened(Stdio("cat")) as channel:
            receiving = asyncio.create_task(channel.receive())
            await asyncio.sleep(0)
            with pytest.raises(LocalProtocolError):
                await channel.receive()
            await channel.send(b"1")
            assert await receiving == b"1"

    run(main)


# --------------------------------------------------------------------- how the process ends

TRACEBACK = "import sys; print('loading', file=sys.stderr); raise ValueError('no such flag')"


@LOOPS
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "the server process exited with code 3; it wrote nothing to stderr"),
        (
            TRACEBACK,
            "the server process exited with code 1; last lines of stderr:\n    loading\n    Trace",
        ),
        (TRACEBACK, "\n    ValueError: no such flag"),
        ("import os; os.kill(os.getpid(), 9)", "the server process was killed by SIGKILL; it wrote"),
        ("import os; os.abort()", "the server process was killed by SIGABRT"),
        ("import os; os.kill(os.getpid(), 40)", "the server process was killed by signal 40"),
        (
            "import os; os.write(2, b'half a line'); os._exit(0)",
            "code 0; last lines of stderr:\n    half a line",
        ),
    ],
)
def test_the_exit_of_a_server_is_reported_with_its_last_stderr(code, said, loop):
    async def main():
        async with opened(python(code, name="example", stderr="discard")) as channel:
            messages, end = await end_of(channel)
            assert (messages, end[:9]) == ([], "example: ")
            assert said in end
            for _ in range(2):
                with pytest.raises(ChannelClosed) as caught:
                    await channel.send(b"[]")
                assert (str(caught.value), caught.value.sent) == (end, False)
            assert channel.returncode not in (None, 255)

    run(main, loop)


@LOOPS
def test_output_before_the_exit_is_read_first(loop):
    code = "import os; os.write(1, b'[1]\\n' * 10000 + b'[2]'); os.kill(os.getpid(), 9)"

    async def main():
        async with opened(python(code)) as channel:
            messages, end = await end_of(channel)
            assert messages == [b"[1]"] * 10000 + [b"[2]"]
            assert "SIGKILL" in end

    run(main, loop)


def test_a_killed_server_fails_its_waiters():
    async def main():
        async with opened(program("echo")) as channel:
            await channel.send(b"[]")
            assert await channel.receive() == b"[]"
            receiving = asyncio.create_task(end_of(channel))
            await asyncio.sleep(0)
            os.kill(channel.pid, signal.SIGKILL)
            assert "was killed by SIGKILL" in (await receiving)[1]

    run(main)


@LOOPS
def test_a_waiting_send_reports_how_the_server_exited(loop):
    code = "import os, sys; sys.stdin.buffer.raw.read(1); os.write(2, b'enough'); os._exit(7)"

    async def main():
        async with opened(python(code)) as channel:
            with pytest.raises(ChannelClosed, match=r"with code 7; last lines of stderr:\n    enough"):
                await send_all(channel, [b"x" * 1023] * 10_000)

    run(main, loop)


@pytest.mark.parametrize(
    ("fd", "said"),
    [
        (0, "the server closed its stdin but is still running"),
        (1, "closed its stdout but is still running"),
    ],
)
def test_a_server_that_closes_a_pipe_and_keeps_running_is_reported(fd, said, monkeypatch):
    monkeypatch.setattr(child_module, "EXIT_CODE_TIMEOUT", 0.05)
    code = f"import os, signal; os.close({fd}); os.write(2, b'closed\\n'); signal.pause()"

    async def main():
        lines = asyncio.Queue()
        async with opened(python(code, stderr=lines.put_nowait, **NOW)) as channel:
            assert await lines.get() == "closed"
            with pytest.raises(ChannelClosed, match=said):
                await (channel.send(b"[]") if fd == 0 else channel.receive())
            assert channel.returncode is None
        assert channel.returncode == -signal.SIGTERM

    run(main)


def test_a_grandchild_that_holds_the_pipes_does_not_hide_how_the_server_died(monkeypatch):
    monkeypatch.setattr(child_module, "EXIT_CODE_TIMEOUT", 0.2)
    code = (
        "import os, signal\nos.close(1)\nif os.fork() == 0: signal.pause()\nos.write(2, b'bye')\nos._exit(5)"
    )

    async def main():
        async with opened(python(code, **NOW)) as channel:
            assert "exited with code 5" in (await end_of(channel))[1]

    run(main, BlindLoop)


def test_a_server_that_closes_stderr_goes_on():
    code = "import os, sys; os.close(2); print(sys.stdin.readline(), end='', flush=True); sys.stdin.read()"

    async def main():
        async with opened(python(code)) as channel:
            await channel.send(b"[1]")
            assert await channel.receive() == b"[1]"

    run(main)


# --------------------------------------------------------------------- how it is ended


@pytest.mark.requirement("LIFE-17", "STDIO-12")
@pytest.mark.parametrize(
    ("code", "fate"),
    [
        ("import sys; print(flush=True); print(1, flush=True); sys.stdin.read()", 0),
        ("import signal; print(1, flush=True); signal.pause()", -signal.SIGTERM),
        (STUBBORN, -signal.SIGKILL),
        ("import signal; signal.signal(15, lambda *_: exit(4)); print(1, flush=True); signal.pause()", 4),
    ],
    ids=["leaves", "is asked", "is killed", "is asked and cleans up"],
)
def test_closing_ends_a_server_with_as_much_force_as_it_takes(code, fate):
    async def main():
        # A process that exits or cleans up gets the time for it.
        patient = {"stdin_wait": 0.05 if fate else 20, "term_wait": 20 if fate == 4 else 0.05}
        async with opened(python(code, **patient)) as channel:
            assert await channel.receive() == b"1"
        assert channel.returncode == fate
        assert not alive(channel.pid)
        with pytest.raises(ChannelClosed, match="the channel was closed"):
            await channel.receive()
        with pytest.raises(ChannelClosed, match="the channel was closed") as caught:
            await channel.send(b"[]")
        assert not caught.value.sent

    run(main)


@pytest.mark.requirement("LIFE-17", "STDIO-12")
@pytest.mark.parametrize("manner", [[], ["stubborn"], ["leave"], ["leave", "stubborn"]], ids=str)
def test_closing_ends_the_grandchildren_as_well(manner):
    async def main():
        # Without a handler it ends immediately, however busy the machine is.
        patience = NOW if manner else {"stdin_wait": 30.0}
        async with opened(program("family", *manner, **patience)) as channel:
            grandchild = int(await channel.receive())
            if "leave" in manner:
                # It holds the pipes of the server, and yet the end of the server is the end.
                assert "exited with code 0" in (await end_of(channel))[1]
            assert alive(grandchild)
        assert channel.returncode == (0 if "leave" in manner or not manner else -signal.SIGKILL)
        return grandchild

    grandchild = run(main)
    eventually(lambda: not alive(grandchild), "the grandchild lives")


def test_orphaned_grandchildren_are_reaped():
    result = subprocess.run(
        [sys.executable, PROGRAMS / "adopt.py"], capture_output=True, check=True, timeout=20
    )
    assert result.stdout == b"nobody is left\n"


def test_a_server_that_is_stuck_in_a_write_can_still_leave():
    code = "import sys\nprint('x' * 10_000_000, flush=True)\nsys.stdin.read()"

    async def main():
        async with opened(python(code, stdin_wait=20, max_line=1000)) as channel:
            await until(lambda: channel._feed._fed)
        assert channel.returncode == 0

    run(main)


def test_messages_sent_before_closing_still_arrive(tmp_path):
    async def main():
        target = tmp_path / "sent"
        channel = await open_child(python(f"{LATE}open({str(target)!r}, 'w').write(sys.stdin.read())"))
        assert await channel.receive() == b"[]"
        await send_all(channel, [b"x" * 100_000, b"y" * 100_000])
        closing = asyncio.create_task(channel.close())
        await asyncio.sleep(0)
        os.kill(channel.pid, signal.SIGUSR1)
        await closing
        assert (channel.returncode, target.read_bytes()) == (
            0,
            b"x" * 100_000 + b"\n" + b"y" * 100_000 + b"\n",
        )

    run(main)


def test_closing_twice_at_once_and_from_another_task_is_fine():
    async def main():
        channel = await open_child(program("echo"))
        receiving = asyncio.create_task(end_of(channel))
        await asyncio.sleep(0)
        await asyncio.gather(*(asyncio.create_task(channel.close()) for _ in range(3)))
        await channel.close()
        assert channel.returncode == 0
        assert (await receiving)[1].endswith("the channel was closed")

    run(main)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 10])
@pytest.mark.parametrize("times", [1, 3])
def test_cancelling_the_closing_kills_at_once_and_leaves_nothing(turns, times):
    async def main():
        channel = await open_child(python(STUBBORN, stdin_wait=60, term_wait=60))
        assert await channel.receive() == b"1"
        closing = asyncio.create_task(channel.close())
        waiting = asyncio.create_task(channel.close())
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        for _ in range(times):
            closing.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({closing, waiting})
        assert closing.cancelled()
        assert (channel.returncode, waiting.exception()) == (-signal.SIGKILL, None)

    run(main)


def test_a_time_limit_for_closing_is_kept():
    async def main():
        channel = await open_child(python(STUBBORN, stdin_wait=60, term_wait=60))
        assert await channel.receive() == b"1"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await channel.close()
        assert channel.returncode == -signal.SIGKILL

    run(main)


def test_cancelling_after_sigkill_waits_for_the_process():
    async def main():
        channel = await open_child(python(STUBBORN, stdin_wait=0, term_wait=0))
        assert await channel.receive() == b"1"
        closing = asyncio.create_task(channel.close())
        while channel.returncode is None and not closing.done():
            await asyncio.sleep(0)
            closing.cancel()
        await asyncio.wait({closing})
        assert (closing.cancelled(), channel.returncode) == (True, -signal.SIGKILL)

    run(main)


def test_a_loop_that_shuts_down_ends_the_servers_of_its_tasks():
    channels = []

    async def hold():
        async with opened(python(STUBBORN, **NOW)) as channel:
            await channel.receive()
            channels.append(channel)
            await channel.receive()

    async def main():
        holding = [asyncio.create_task(hold()) for _ in range(3)]
        await until(lambda: len(channels) == 3)
        assert not any(task.done() for task in holding)

    run(main)
    leak_check.cut_off.clear()
    assert [channel.returncode for channel in channels] == [-signal.SIGKILL] * 3
    assert not any(alive(channel.pid) for channel in channels)


def test_an_unclosed_channel_ends_its_server():
    result = subprocess.run(
        [sys.executable, PROGRAMS / "abandon.py"], capture_output=True, check=True, timeout=20
    )
    pid = int(result.stdout)
    eventually(lambda: not alive(pid), "the server lives")
    assert f"ResourceWarning: sleep 60 (process {pid}) was never closed" in result.stderr.decode()


def test_a_process_that_does_not_go_is_reported(monkeypatch, caplog):
    monkeypatch.setattr(child_module, "KILL_TIMEOUT", 0)

    async def main():
        async with opened(python(STUBBORN, name="stuck", stdin_wait=0, term_wait=0)) as channel:
            assert await channel.receive() == b"1"
        assert f"stuck: could not stop process {channel.pid}" in caplog.text
        await until(lambda: channel.returncode is not None)

    run(main)


def test_a_loop_in_another_thread_does_as_well():
    async def main():
        async with opened(Stdio("cat")) as channel:
            await channel.send(b"[]")
            assert await channel.receive() == b"[]"
        codes.append(channel.returncode)

    codes = []
    thread = Thread(target=run, args=(main,))
    thread.start()
    thread.join()
    assert codes == [0]


def test_opening_and_closing_many_times_leaves_nothing_behind():
    async def main():
        for _ in range(3):
            async with opened(Stdio("cat")):
                pass
        before = list_descriptors()
        for n in range(30):
            async with opened(Stdio("cat")) as channel:
                await channel.send(b"%d" % n)
                assert await channel.receive() == b"%d" % n
        channels = await asyncio.gather(*(open_child(Stdio("cat")) for _ in range(10)))
        await asyncio.gather(*(channel.close() for channel in channels))
        assert (list_descriptors().keys(), list_children()) == (before.keys(), set())

    run(main)


@pytest.mark.parametrize("turns", range(8))
def test_opening_may_be_cancelled_at_any_await(turns):
    async def main():
        opening = asyncio.create_task(open_child(python(STUBBORN, **NOW)))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening})
        if not opening.cancelled():
            await opening.result().close()

    run(main)


@pytest.mark.parametrize(("code", "hint"), [(0, "does the script call `server.run()`?"), (3, None)])
def test_a_server_that_ends_in_peace_may_have_forgotten_to_serve(code, hint):
    async def main():
        channel = await open_child(python(f"raise SystemExit({code})"))
        try:
            await end_of(channel)
            assert channel.early_exit_hint == hint
        finally:
            await channel.close()

    run(main)


@pytest.mark.parametrize(
    ("stderr", "level", "unheard"),
    [("log", "WARNING", True), ("log", "INFO", False), ("discard", "WARNING", False)],
)
def test_a_log_without_handlers_is_named(stderr, level, unheard, caplog):
    caplog.set_level(level, "toolpost.child")

    async def main():
        channel = await open_child(python("input()", stderr=stderr, name="quiet"))
        try:
            told = "stderr of quiet goes to the logger 'toolpost.child', at level INFO"
            assert channel.stderr_hint == (told if unheard else None)
        finally:
            await channel.close()

    run(main)


# --------------------------------------------------------------------- how it is not started


@pytest.mark.parametrize(
    ("stdio", "said"),
    [
        (
            Stdio("no-such-program"),
            "no-such-program: program 'no-such-program' not found (install it, or pass its full path)",
        ),
        (Stdio("no-such-program"), "install it, or pass its full path)"),
        (Stdio("hello.py"), "(start a script with Python: [sys.executable, 'hello.py'])"),
        (Stdio("./no/hello.py", cwd="/"), "[sys.executable, './no/hello.py']"),
        (Stdio("hello.py", cwd="/no/such/folder"), "folder '/no/such/folder' does not exist (create"),
        (Stdio("hello.py", ["a\0b"]), "'hello.py' could not be started: embedded null byte"),
        (Stdio("./no/such"), "program './no/such' not found (install it"),
        (Stdio("python server.py"), "(pass its arguments separately, in `args`)"),
        (
            Stdio("cat", cwd="/no/such/folder"),
            "folder '/no/such/folder' does not exist (create it, or correct `cwd`)",
        ),
        (Stdio("cat", cwd="/dev/null"), "folder '/dev/null' does not exist"),
        (Stdio("/dev/null"), "'/dev/null' is not executable (if it is a program, try chmod +x)"),
        (Stdio("cat", ["a\0b"]), "'cat' could not be started: embedded null byte"),
        (Stdio("cat", stderr=Path("/no/such/file")), "cannot open the file for stderr: [Errno 2]"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_command_that_cannot_be_started_is_explained(stdio, said):
    async def main():
        with pytest.raises(ConnectFailed) as caught:
            await open_child(stdio)
        assert said in str(caught.value)
        assert caught.value.retry_safe

    run(main)


@pytest.mark.parametrize(
    ("first_line", "said"),
    [
        ("#!/no/such/interpreter", "the interpreter of '{}' does not exist"),
        ("words", "'{}' is not a program (a script"),
    ],
)
def test_a_script_that_cannot_be_started_is_explained(first_line, said, tmp_path):
    script = tmp_path / "script"
    script.write_text(f"{first_line}\n")
    script.chmod(0o755)

    async def main():
        with pytest.raises(ConnectFailed) as caught:
            await open_child(Stdio(str(script)))
        assert said.format(script) in str(caught.value)

    run(main)


# --------------------------------------------------------------------- the environment

SHOW = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"


def environment_of(**options):
    async def main():
        async with opened(Stdio(sys.executable, ["-c", SHOW], **options)) as channel:
            return await channel.receive()

    return eval(run(main))  # plain strings in JSON are plain strings in Python


def test_a_server_gets_only_harmless_and_given_variables(monkeypatch):
    monkeypatch.setenv("API_KEY", "hush")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("TERM", "() { run me; }")
    monkeypatch.setenv("USER", "somebody")
    given = environment_of(env={"LEVEL": "5", "USER": "someone else"})
    # Python itself may add LC_CTYPE, and measuring coverage in child processes its own.
    assert {"PATH", "HOME", "USER", "LC_TIME", "LEVEL"} <= given.keys()
    assert (given["PATH"], given["USER"], given["LEVEL"]) == (os.environ["PATH"], "someone else", "5")
    assert {"API_KEY", "TERM"} & given.keys() == set()


def test_a_server_gets_more_only_if_asked_for(monkeypatch):
    monkeypatch.setenv("API_KEY", "hush")
    monkeypatch.setenv("OTHER_KEY", "hush")
    named = environment_of(inherit_env=["API_KEY", "NOT_SET"])
    assert named["API_KEY"] == "hush"
    assert {"OTHER_KEY", "NOT_SET"} & named.keys() == set()
    everything = environment_of(inherit_env=True, env={"API_KEY": "x"})
    assert (everything["API_KEY"], everything["OTHER_KEY"]) == ("x", "hush")


def test_the_program_is_found_along_the_path_that_it_gets(tmp_path):
    script = tmp_path / "my-server"
    script.write_text("#!/bin/sh\npwd\necho $0\n")
    script.chmod(0o755)

    async def main():
        stdio = Stdio("my-server", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, cwd=tmp_path)
        async with opened(stdio) as channel:
            assert [await channel.receive(), await channel.receive()] == [bytes(tmp_path), bytes(script)]

    run(main)


# --------------------------------------------------------------------- stderr

NOISE = r"import os; os.write(2, b'one\n\xff two\r\nthree')"


def words_of(sink, code=NOISE):
    async def main():
        async with opened(python(code, stderr=sink, name="noisy")) as channel:
            _, end = await end_of(channel)
            return end, channel.stderr_tail

    return run(main)


@pytest.mark.requirement("STDIO-4")
def test_stderr_goes_to_the_log_and_is_not_an_error(caplog):
    caplog.set_level(logging.DEBUG, "toolpost.child")
    _, words = words_of("log")
    assert words == ("one", "\ufffd two", "three")
    assert [
        (line.levelname, line.getMessage()) for line in caplog.records if line.name == "toolpost.child"
    ] == [("INFO", f"noisy: {word}") for word in words]


def test_stderr_goes_to_a_function_or_a_file_or_nowhere(tmp_path):
    lines, file, path = [], io.StringIO(), tmp_path / "log"
    path.write_text("before\n")
    for sink in (lines.append, file, path, "discard"):
        end, words = words_of(sink)
        assert words == ("one", "\ufffd two", "three")
        assert end.endswith("last lines of stderr:\n    one\n    \ufffd two\n    three")
    assert lines == ["one", "\ufffd two", "three"]
    assert file.getvalue() == "one\n\ufffd two\nthree\n"
    assert path.read_text("utf-8") == "before\none\n\ufffd two\nthree\n"


def test_stderr_may_be_ours(capfd):
    end, words = words_of("inherit")
    assert (words, end) == ((), "noisy: the server process exited with code 0")
    assert capfd.readouterr().err.startswith("one\n")


def test_a_function_that_fails_does_not_stop_the_reading(caplog):
    _, words = words_of(lambda line: 1 / 0)
    assert words == ("one", "\ufffd two", "three")
    assert caplog.text.count("failed to forward a line of stderr") == 3


def test_of_much_stderr_only_the_end_is_kept_and_the_server_is_never_stuck():
    code = (
        "import sys\n"
        "for n in range(50_000): print('x' * 100, n, file=sys.stderr)\n"
        f"print('y' * {stdio_client.MAX_STDERR_LINE + 1}, file=sys.stderr)\n"
        f"print('z' * {stdio_client.MAX_KEPT_LINE_LENGTH + 1}, file=sys.stderr)"
    )
    lines = []
    _, words = words_of(lines.append, code)
    assert len(lines) == 50_002
    assert len(words) == stdio_client.MAX_KEPT_LINES
    assert words[-3:] == (
        "x" * 100 + " 49999",
        f"(a line of {stdio_client.MAX_STDERR_LINE + 1} bytes was omitted)",
        "z" * stdio_client.MAX_KEPT_LINE_LENGTH + "…",
    )
    assert lines[-1] == "z" * (stdio_client.MAX_KEPT_LINE_LENGTH + 1)


# --------------------------------------------------------------------- the description


@pytest.mark.parametrize(
    ("target", "command", "args"),
    [
        (["python", "server.py"], "python", ("server.py",)),
        (("cat",), "cat", ()),
        ("python 'my server.py' --flag", "python", ("my server.py", "--flag")),
        ({"command": "npx", "args": ["-y", "x"], "disabled": False, "type": "stdio"}, "npx", ("-y", "x")),
        (Stdio("cat", ["-u"]), "cat", ("-u",)),
    ],
)
def test_a_command_may_be_given_in_many_ways(target, command, args):
    stdio = Stdio.from_target(target)
    assert (stdio.command, stdio.args) == (command, args)


def test_an_entry_of_a_configuration_is_taken_whole():
    stdio = Stdio.from_target({"command": "x", "env": {"A": "1"}, "cwd": "/tmp"})
    assert stdio == Stdio("x", (), {"A": "1"}, "/tmp")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ([], "the command is empty (pass a program)"),
        ("", "the command is empty"),
        ([""], "the command is empty"),
        ("python 'server", "the command cannot be split into words: No closing quotation (pass a list"),
        ({}, "invalid entry for a command: Object missing required field `command` (it requires"),
        ({"command": "x", "args": [1]}, "Expected `str`, got `int` - at `$.args[0]`"),
        ({"command": "x", "type": "http"}, "Invalid enum value 'http' - at `$.type`"),
        ({"command": ""}, "the command is empty"),
    ],
)
def test_an_invalid_command_is_explained(target, said):
    with pytest.raises(ConnectFailed) as caught:
        Stdio.from_target(target)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"args": "server.py"}, "args must be a list of strings: write ['server.py'], not 'server.py'"),
        ({"args": [1]}, "int"),
        ({"stderr": "err.log"}, "stderr must be a Path, such as Path('err.log'), not a string"),
    ],
)
def test_a_slip_in_the_description_is_explained(options: Any, said):
    with pytest.raises(TypeError) as caught:
        Stdio("python", **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("stdio", "label"),
    [
        (Stdio("/usr/bin/python3", ["-u", "server.py", "--key", "hush"]), "python3 server.py"),
        (Stdio("npx", ["-y", "@scope/server@latest"]), "npx @scope/server@latest"),
        (Stdio("cat"), "cat"),
        (Stdio("cat", name="files"), "files"),
        (Stdio("my-db", ["postgres://me:hush@host/db", "KEY=hush"]), "my-db"),
        (Stdio("sh", ["-c", "x" * 100]), "sh " + "x" * 57),
    ],
)
def test_a_server_is_called_by_a_name_that_a_person_knows(stdio, label):
    assert stdio.label == label


def test_the_values_of_the_environment_are_not_shown():
    assert repr(Stdio("cat", ["-u"], {"KEY": "hush"})) == "Stdio('cat', ['-u'], env={'KEY': '…'}, cwd=None)"
    assert repr(Stdio("cat")) == "Stdio('cat', [], env=None, cwd=None)"


def test_a_command_that_was_joined_is_split_again():
    words = ["python", "a b", "c'd", 'e"f', ""]
    assert [Stdio.from_target(shlex.join(words)).command, *Stdio.from_target(shlex.join(words)).args] == words
