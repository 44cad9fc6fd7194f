"""The stdio channel of a server, tested from the client process."""

import asyncio
import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import tty
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from programs.blind import BlindLoop

from toolpost.errors import ChannelClosed
from toolpost.transports import pipes
from toolpost.transports.memory import MessageQueue
from toolpost.transports.pipes import LineFeed, LineWriter
from waiting import eventually, until

PROGRAMS = Path(__file__).parent / "programs"
PIPE = 64 * 1024
# What is printed and not flushed is the hard case.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
BOTH = pytest.mark.parametrize("mode", [[], ["--blind"]], ids=["loop", "threads"])
EOF = "ended: the client is gone: stdin was closed\n"


@contextmanager
def start(program, *args, env: Any = None, **ends: Any) -> Generator[Any]:
    """Start a program, with pipes for its three streams unless `ends` says otherwise."""
    for end in ("stdin", "stdout", "stderr"):
        ends.setdefault(end, subprocess.PIPE)
    command = [sys.executable, PROGRAMS / f"{program}.py", *map(str, args)]
    with subprocess.Popen(command, bufsize=0, env={**BUFFERED, **(env or {})}, **ends) as process:
        try:
            yield process
        finally:
            process.kill()


def talk(program, *args, messages=(), **options):
    """Return stdout, stderr and exit code of the program, for these lines and then the end of stdin."""
    with start(program, *args, **options) as process:
        out, err = process.communicate(b"".join(line + b"\n" for line in messages))
        return out, err.decode(), process.returncode


def read_exactly(fd, size):
    data = b""
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        assert chunk, "the stream ended early"
        data += chunk
    return data


def is_blocking(fd):
    return not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK


# --------------------------------------------------------------------- messages


@BOTH
@pytest.mark.requirement("STDIO-1", "STDIO-13")
def test_messages_come_back_and_the_end_of_stdin_is_the_end(mode):
    messages = [b'{"n":%d}' % n for n in range(5000)] + [b'"%s"' % (b"x" * 3 * 1024 * 1024), b"[]"]
    out, err, code = talk("echo", *mode, messages=messages)
    assert (out.split(b"\n"), err, code) == ([*messages, b""], EOF, 0)


@BOTH
def test_the_last_line_may_lack_its_end(mode):
    with start("echo", *mode) as process:
        assert process.communicate(b"[1]\n[2]") == (b"[1]\n[2]\n", EOF.encode())


def test_single_bytes_make_messages_as_well():
    with start("echo") as process:
        for byte in b'{"a":1}\r\n\n  \n[2]\n':
            process.stdin.write(bytes([byte]))
        assert read_exactly(process.stdout.fileno(), 12) == b'{"a":1}\n[2]\n'
        process.communicate()


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"},
        {"PYTHONUNBUFFERED": "1"},
    ],
)
def test_bytes_are_unchanged_in_any_locale(locale):
    messages = ['"grüße ☃ \U0001f600"'.encode(), b'"\xff\xfe"', "\u2028\x85".encode()]
    out, err, code = talk("echo", messages=messages, env=locale)
    assert (out, err, code) == (b"".join(line + b"\n" for line in messages), EOF, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "the peer: dropped a message: message too long: 101 bytes (limit: 100)\n"),
        (["--tell"], "dropped 101\n"),
    ],
)
def test_a_line_that_is_too_long_is_dropped_alone_and_reported(options, said):
    out, err, code = talk("echo", "--limit=100", *options, messages=[b"1", b"x" * 101, b"x" * 100, b"2"])
    assert (out, code) == (b"1\n" + b"x" * 100 + b"\n2\n", 0)
    assert said in err


# --------------------------------------------------------------------- output of other code


@pytest.mark.requirement("STDIO-2")
def test_other_code_cannot_reach_stdout_or_stdin():
    out, err, code = talk("stray", messages=[b"[1]", b"[2]"])
    assert (out, code) == (b"[1]\n[2]\nafter the channel\n", 0)
    assert "second: stdin and stdout are in use by another channel" in err
    strays = [
        "before the channel, not flushed yet",
        "print",
        "descriptor 1",
        "another program",
        "thread",
        "half a line",
    ]
    assert [stray for stray in strays if f"stray: {stray}" not in err] == []


@pytest.mark.requirement("STDIO-2")
@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_without_a_stderr_stray_output_is_lost_and_the_stream_is_whole(closed):
    with subprocess.Popen(
        ["sh", "-c", f'exec "$0" "$1" {closed}', sys.executable, PROGRAMS / "quiet.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=BUFFERED,
    ) as process:
        assert process.communicate(b"[1]\n")[0] == b"[1]\nafter the channel\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_process_without_stdin_or_stdout_gets_an_error(closed):
    with subprocess.Popen(
        ["sh", "-c", f'exec "$0" "$1" {closed}', sys.executable, PROGRAMS / "echo.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, err = process.communicate()
    assert (out, process.returncode) == (b"", 0)
    assert err.startswith(b"refused: this process has no stdin or no stdout (start it from an MCP client")


# --------------------------------------------------------------------- other things than pipes


def test_regular_files_do(tmp_path):
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_bytes(b"[1]\n" * 10_000 + b"[2]")
    with (
        asked.open("rb") as stdin,
        answered.open("wb") as stdout,
        start("echo", stdin=stdin, stdout=stdout) as process,
    ):
        assert process.communicate()[1] == EOF.encode()
    assert answered.read_bytes() == b"[1]\n" * 10_000 + b"[2]\n"


def test_nothing_does_as_well():
    with start("echo", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        assert process.communicate() == (None, EOF.encode())


def test_sockets_do_and_keep_their_flags():
    # What Node gives to its child processes.
    ours, theirs = socket.socketpair()
    big = b"x" * 3 * 1024 * 1024 + b"\n"
    with ours, theirs, start("echo", stdin=theirs, stdout=theirs) as process:
        ours.sendall(b"[1]\n")
        assert read_exactly(ours.fileno(), 4) == b"[1]\n"
        assert is_blocking(theirs.fileno())
        sending = Thread(target=ours.sendall, args=(big,))
        sending.start()
        assert read_exactly(ours.fileno(), len(big)) == big
        sending.join()
        ours.shutdown(socket.SHUT_WR)
        assert process.communicate()[1] == EOF.encode()


def test_a_socket_whose_other_end_is_gone_ends_quietly():
    ours, theirs = socket.socketpair()
    with theirs, start("flood", "--count=100", "--size=100000", stdin=theirs, stdout=theirs) as process:
        with ours:
            read_exactly(ours.fileno(), 10)
        assert "the client is gone: stdout was closed" in process.communicate()[1].decode()


def test_pipes_keep_their_flags_although_others_hold_them():
    with ExitStack() as stack:
        (in_reader, in_writer), (out_reader, out_writer) = os.pipe(), os.pipe()
        for fd in (in_reader, in_writer, out_reader, out_writer):
            stack.callback(os.close, fd)
        process = stack.enter_context(start("echo", stdin=in_reader, stdout=out_writer))
        os.write(in_writer, b"[1]\n")
        assert read_exactly(out_reader, 4) == b"[1]\n"
        assert is_blocking(in_reader)
        assert is_blocking(out_writer)
        process.terminate()
        process.communicate()


@BOTH
def test_a_terminal_does_and_keeps_its_flags(mode):
    ours, theirs = pty.openpty()
    try:
        tty.setraw(theirs)
        with start("echo", *mode, stdin=theirs, stdout=theirs) as process:
            os.write(ours, b"[1]\n")
            assert read_exactly(ours, 4) == b"[1]\n"
            assert is_blocking(theirs)
            os.close(theirs)
            os.close(ours)  # hang up: no end of file, but an error
            assert process.communicate()[1].startswith(b"ended: the client is gone: std")
            ours = theirs = -1
    finally:
        for fd in (ours, theirs):
            if fd >= 0:
                os.close(fd)


# --------------------------------------------------------------------- clients that do not read, or leave


@BOTH
@pytest.mark.parametrize(("size", "senders"), [(100, 1), (10_000, 20)])
def test_a_client_that_does_not_read_blocks_only_the_senders(mode, size, senders):
    count = 3 * 1024 * 1024 // size // senders
    with start("flood", *mode, f"--count={count}", f"--size={size}", f"--senders={senders}") as process:
        sent, finished = process.stderr.read(1000).split()
        assert finished == b"False"
        assert size * int(sent) <= pipes.WRITE_HIGH_WATER + 2 * PIPE + size * (senders + 2)
        lines = process.communicate()[0].splitlines()
    assert {len(line) for line in lines} == {size}
    numbers = [tuple(map(int, line.split()[:2])) for line in lines]
    assert sorted(numbers) == [(sender, number) for sender in range(senders) for number in range(count)]
    for sender in range(senders):
        assert [number for of, number in numbers if of == sender] == [*range(count)]


@BOTH
def test_a_server_whose_client_does_not_read_takes_no_more_either(mode):
    with start("echo", *mode) as process:
        os.set_blocking(process.stdin.fileno(), False)
        line, taken = b"x" * 1023 + b"\n", 0

        def stuck():
            nonlocal taken
            before = taken
            while size := process.stdin.write(line):
                taken += size
            return taken == before and taken > 4 * PIPE

        eventually(stuck, "the server takes everything")
        assert taken <= pipes.WRITE_HIGH_WATER + pipes.READ_HIGH_WATER + 8 * PIPE
        os.set_blocking(process.stdin.fileno(), True)
        rest = taken % len(line)
        out = process.communicate(line[rest:] if rest else b"")[0]
        assert out == line * (len(out) // len(line))
        assert len(out) >= taken


@BOTH
def test_a_client_that_stops_listening_ends_the_channel_without_noise(mode):
    with start("quiet", *mode) as process:
        process.stdin.write(b"[1]\n")
        read_exactly(process.stdout.fileno(), 4)
        process.stdout.close()
        process.stdin.write(b"[2]\n[3]\n")
        err = process.stderr.read()
        assert (process.wait(), err) == (
            0,
            b"stray\nended: the client is gone: stdout was closed\nafter the channel\n",
        )


def test_a_disk_that_is_full_is_named():
    with Path("/dev/full").open("wb") as full, start("echo", stdout=full) as process:
        process.stdin.write(b"[1]\n")
        assert process.stderr.read() == b"ended: writing failed: No space left on device\n"
        assert process.wait() == 0


def test_the_parents_death_is_the_end_even_if_stdin_stays_open():
    with start("launcher") as process:
        process.stdin.write(b"[1]\n")
        assert read_exactly(process.stdout.fileno(), 4) == b"[1]\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert process.stderr.read() == b"ended: the client is gone: the parent process has ended\n"
        assert process.stdout.read() == b""


def test_every_way_of_closing_gives_the_descriptors_back():
    with start("ending") as process:
        err = [process.stderr.readline().decode().strip() for _ in range(6)]
        out = process.communicate()[0]
    assert err == [
        "the channel was closed (sent: True)",
        "the channel was closed (sent: True)",
        "the channel was closed (sent: False)",
        "cancel True",
        "time out False",
        "True",
    ]
    assert process.returncode == 0
    assert out.startswith(b"last words\n" + bytes(1000))


# --------------------------------------------------------------------- one descriptor


def run(main, loop_factory=None):
    async def bounded():
        async with asyncio.timeout(20):
            await main(asyncio.get_running_loop())

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(bounded())


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


@contextmanager
def pipe(mine):
    """The ends of a pipe that does not block. The test closes its own, 0 or 1; the other is given away."""
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    try:
        yield ends
    finally:
        if is_open(ends[mine]):
            os.close(ends[mine])


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def gone(reason):
    raise AssertionError(reason)


def test_what_is_sent_in_one_turn_is_written_at_once_or_together():
    async def main(loop):
        with pipe(0) as (ours, theirs):
            out = LineWriter(loop, theirs, "gone", gone)
            for n in range(100):
                await out.send(b"%d" % n)
            assert os.read(ours, PIPE) == b"0\n"  # the first without delay
            await asyncio.sleep(0)
            assert os.read(ours, PIPE) == b"".join(b"%d\n" % n for n in range(1, 100))
            await asyncio.sleep(0)
            await out.send(b"100")
            assert os.read(ours, PIPE) == b"100\n"
            out.finish("done")
            assert out.closed.done()

    run(main)


@BOTH
def test_a_cancelled_send_is_not_sent_and_the_others_are_in_order(mode):
    async def main(loop):
        with pipe(0) as (ours, theirs):
            out = LineWriter(loop, theirs, "gone", gone)
            big = b"x" * (pipes.WRITE_HIGH_WATER + 2 * PIPE)
            await out.send(big)
            sending = [asyncio.create_task(out.send(b"%d" % n)) for n in range(6)]
            await turns()
            assert not any(task.done() for task in sending)
            sending[0].cancel()
            sending[3].cancel()
            await turns()
            os.set_blocking(ours, True)
            written = big + b"\n1\n2\n4\n5\n"
            reading = asyncio.create_task(asyncio.to_thread(read_exactly, ours, len(written)))
            await asyncio.gather(*sending, return_exceptions=True)
            out.finish("done")
            await out.closed
            await until(lambda: not is_open(theirs))
            assert await reading == written
            assert os.read(ours, 1) == b""

    run(main, BlindLoop if mode else None)


@BOTH
def test_a_waiting_sender_fails_when_the_reader_disconnects(mode):
    async def main(loop):
        reasons = []
        with pipe(0) as (ours, theirs):
            out = LineWriter(loop, theirs, "nobody reads", reasons.append)
            await out.send(b"x" * (pipes.WRITE_HIGH_WATER + 2 * PIPE))
            sending = [asyncio.create_task(out.send(b"%d" % n)) for n in range(3)]
            await turns()
            os.close(ours)
            for task in sending:
                with pytest.raises(ChannelClosed, match="nobody reads") as caught:
                    await task
                assert not caught.value.sent
            with pytest.raises(ChannelClosed, match="nobody reads"):
                await out.send(b"late")
            assert reasons == ["nobody reads"]
            out.finish("too late for that")
            out.abort("and for that")
            assert out.closed.done()

    run(main, BlindLoop if mode else None)


@BOTH
@pytest.mark.parametrize("way", ["finish", "abort"])
def test_a_waiting_sender_fails_when_we_close(mode, way):
    async def main(loop):
        with pipe(0) as (ours, theirs):
            out = LineWriter(loop, theirs, "gone", gone)
            await out.send(b"x" * (pipes.WRITE_HIGH_WATER + 2 * PIPE))
            sending = [asyncio.create_task(out.send(b"%d" % n)) for n in range(3)]
            await turns()
            getattr(out, way)("we closed")
            for task in sending:
                with pytest.raises(ChannelClosed, match="we closed") as caught:
                    await task
                assert not caught.value.sent
            assert out.closed.done() is (way == "abort")
            out.abort("now")
            os.close(ours)
            await until(lambda: not is_open(theirs))
            await turns()

    run(main, BlindLoop if mode else None)


def test_a_socket_takes_part_of_a_line_at_a_time():
    async def main(loop):
        ours, theirs = socket.socketpair()
        with ours:
            out = LineWriter(loop, theirs.detach(), "gone", gone)
            line = b"x" * 3 * 1024 * 1024
            await out.send(line)
            out.finish("done")
            assert await asyncio.to_thread(read_exactly, ours.fileno(), len(line) + 1) == line + b"\n"
            await out.closed

    run(main)


@BOTH
def test_a_reader_that_is_not_taken_from_stops_reading(mode):
    async def main(loop):
        with pipe(1) as (theirs, ours):
            box, dropped, ends = MessageQueue(), [], []
            box.on_oversized = dropped.append
            feed = LineFeed(loop, theirs, box, limit=100, ended=lambda: ends.append(box.arrived[-1]))
            lines = [b"%d" % n for n in range(400_000)]
            stream = memoryview(b"\n".join(lines) + b"\n" + b"x" * 101 + b"\nlast")
            while not box.on_room:  # until the feed has stopped
                with suppress(BlockingIOError):
                    stream = stream[os.write(ours, stream) :]
                await asyncio.sleep(0)
            with suppress(BlockingIOError):
                while True:
                    stream = stream[os.write(ours, stream) :]
            await turns()
            with pytest.raises(BlockingIOError):  # the pipe is full, and stays so
                os.write(ours, stream)
            held = sum(len(line) + 1 for line in box.arrived if isinstance(line, bytes))
            assert pipes.READ_HIGH_WATER < held <= pipes.READ_HIGH_WATER + 2 * PIPE

            def write_on():
                with os.fdopen(ours, "wb") as pipe:
                    pipe.write(stream)

            os.set_blocking(ours, True)
            writing = asyncio.create_task(asyncio.to_thread(write_on))
            assert [await box.receive() for _ in lines] == lines
            assert await box.receive() == b"last"
            await writing
            await turns()
            assert ([line.size for line in dropped], ends) == ([101], [b"last"])
            feed.close()
            feed.close()

    run(main, BlindLoop if mode else None)


@BOTH
def test_discarded_output_is_still_read(mode):
    async def main(loop):
        with pipe(1) as (theirs, ours):
            box, ended = MessageQueue(), loop.create_future()
            feed = LineFeed(loop, theirs, box, limit=100, ended=lambda: ended.set_result(None))
            while not box.on_room:  # until the feed has stopped
                with suppress(BlockingIOError):
                    os.write(ours, b"[1]\n" * 1000)
                await asyncio.sleep(0)
            feed.discard()
            held = len(box.arrived)
            os.set_blocking(ours, True)
            await asyncio.to_thread(os.write, ours, b"[2]\n" * PIPE + b"x")
            os.close(ours)
            await ended
            assert len(box.arrived) == held
            feed.close()

    run(main, BlindLoop if mode else None)


def test_threads_end_by_themselves_when_their_loop_was_closed():
    with pipe(0) as (ours, theirs):

        async def leave(loop):
            out = LineWriter(loop, theirs, "gone", gone)
            await out.send(b"x" * 3 * PIPE)
            theirs_too, mine = os.pipe()
            feed = LineFeed(loop, theirs_too, MessageQueue(), limit=100, ended=print)
            left.extend((out, feed, mine))

        left = []
        run(leave, BlindLoop)
        os.close(left[-1])
        os.set_blocking(ours, True)
        assert read_exactly(ours, 3 * PIPE + 1) == b"x" * 3 * PIPE + b"\n"
        assert os.read(ours, 1) == b""


def test_a_thread_that_waits_for_us_ends_when_we_close():
    async def main(loop):
        with pipe(1) as (theirs, ours):
            box = MessageQueue()
            feed = LineFeed(loop, theirs, box, limit=100, ended=print)
            while not box.on_room:  # until the feed has stopped
                with suppress(BlockingIOError):
                    os.write(ours, b"[1]\n" * 1000)
                await asyncio.sleep(0)
            feed.close()
            await until(lambda: not is_open(theirs))

    run(main, BlindLoop)


def test_what_was_read_before_the_end_but_arrives_after_it_is_dropped():
    async def main(loop):
        with pipe(1) as (theirs, ours):
            box = MessageQueue()
            feed = LineFeed(loop, theirs, box, limit=100, ended=print)
            os.write(ours, b"1\n")
            # Without giving the loop a turn: the chunk is on its way to us when we close.
            eventually(lambda: loop._ready, "the thread has not read")
            feed.close()
            await turns()
            assert not box.arrived

    run(main, BlindLoop)


def test_what_the_loop_cannot_watch_is_read_too(tmp_path):
    async def main(loop):
        (tmp_path / "empty").touch()
        for path in (tmp_path / "empty", Path(os.devnull), tmp_path):  # a folder cannot be read at all
            ended = asyncio.Event()
            feed = LineFeed(loop, os.open(path, os.O_RDONLY), MessageQueue(), limit=100, ended=ended.set)
            await ended.wait()
            assert feed.drain()
            feed.close()

    run(main)


def test_draining_finds_the_end_and_stops_somewhere():
    async def main(loop):
        with pipe(1) as (theirs, ours):
            box, ends = MessageQueue(), []
            feed = LineFeed(loop, theirs, box, limit=100, ended=lambda: ends.append(len(box.arrived)))
            assert feed.drain()
            os.write(ours, b"1\n")
            assert feed.drain()
            assert (list(box.arrived), ends) == ([b"1"], [])
            os.write(ours, b"2")
            os.close(ours)
            assert feed.drain()
            assert feed.drain()
            feed.discard()
            await turns()
            assert (list(box.arrived), ends) == ([b"1", b"2"], [2])
            feed.close()

    run(main)


def test_draining_is_limited_in_time():
    async def main(loop):
        with pipe(1) as (theirs, ours):
            ended = []
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 1024 * 1024)
            assert os.write(ours, bytes(1024 * 1024)) == 1024 * 1024
            os.close(ours)
            feed = LineFeed(loop, theirs, MessageQueue(), limit=100, ended=lambda: ended.append(1))
            assert feed.drain()
            assert not ended  # the end is behind what one drain reads
            assert feed.drain()
            assert ended
            feed.close()

    run(main)
