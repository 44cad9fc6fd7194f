"""A proxy between a host and the server that it wanted to start: bytes pass in both directions, unchanged.

Runs the process and passes on the end of either stream, signals and the exit code. Threads that block, and no
event loop: it keeps up with either side. An `InspectionThread` finds the messages in what passes.
"""

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from types import FrameType
from typing import Final

from toolpost.cli.tap.inspector import MessageInspector
from toolpost.cli.tap.recorder import TapRecorder, write_all
from toolpost.protocol.framing import LineBuffer, OversizedLine
from toolpost.protocol.methods import CLIENT, SERVER, Role

READ_SIZE: Final = 64 * 1024  # bytes to read at once: what a pipe holds
STDOUT_IDLE_TIMEOUT: Final = 1.0  # silent seconds to wait for other holders of the stdout of an ended server
MAX_QUEUED_CHUNKS: Final = 256  # how many chunks may wait, each of at most what a pipe holds
QUEUE_DRAIN_TIMEOUT: Final = 10.0  # seconds for what is in the queue, at the end
_FORWARDED_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_PR_SET_PDEATHSIG: Final = 1


def run_stdio_proxy(
    command: Sequence[str],
    inspection: "InspectionThread",
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
) -> int:
    """Start the server, pass on what both sides send, and return its exit code (negative for a signal)."""
    process = subprocess.Popen(  # noqa: S603 - it is what the host wants to start
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=env,
        cwd=cwd,
        # A group of its own: a signal reaches it once, by our hand, be it sent to us or to our group.
        process_group=None if sys.platform == "win32" else 0,
        preexec_fn=_create_death_signal_hook(),  # noqa: PLW1509 - one call into the kernel, which needs nothing of other threads
    )
    inspection.start()
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "as above"
    with process.stdin, process.stdout:  # the pumps have their own, which they close
        asking = _ForwardingThread(CLIENT, 0, os.dup(process.stdin.fileno()), inspection)
        answering = _ForwardingThread(SERVER, os.dup(process.stdout.fileno()), 1, inspection)
    try:
        with _forward_signals(process.pid):
            asking.start()
            answering.start()
            code = process.wait()
        answering.drain()
    except BaseException:  # also an interrupt: the server must not stay behind
        process.kill()
        process.wait()
        raise
    return code


@contextlib.contextmanager
def _forward_signals(pid: int) -> Generator[None]:

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            if sys.platform == "win32":
                os.kill(pid, number)
            else:
                os.killpg(pid, number)

    numbers = [getattr(signal, name) for name in _FORWARDED_SIGNALS if hasattr(signal, name)]
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _create_death_signal_hook() -> Callable[[], object] | None:
    """A hook for the child process, so that Linux kills it if we are killed."""
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415 - only here

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _ForwardingThread(threading.Thread):
    """Passes on what one side sends. At the end of either descriptor, both are closed."""

    def __init__(self, by: Role, source: int, sink: int, inspection: "InspectionThread") -> None:
        super().__init__(name=f"toolpost-{by}", daemon=True)  # a host may keep its end open for ever
        self._by: Role = by
        self._source = source
        self._sink = sink
        self._inspection = inspection
        self._chunk_count = 0
        self._is_writing = False

    def run(self) -> None:
        try:
            while data := _read_chunk(self._source):
                self._chunk_count += 1
                self._inspection.feed(self._by, data)
                self._is_writing = True
                write_all(self._sink, data)
                self._is_writing = False
        except OSError:
            pass  # the reader has gone, and the writer will notice
        finally:
            self._inspection.feed(self._by, b"")
            _close_descriptor(self._source)
            _close_descriptor(self._sink)

    def drain(self) -> None:
        """Wait until everything has been passed on, as long as there is any progress."""
        pieces = -1
        while self.is_alive() and (self._is_writing or pieces != self._chunk_count):
            pieces = self._chunk_count
            self.join(STDOUT_IDLE_TIMEOUT)


def _read_chunk(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            select.select([descriptor], [], [])


def _close_descriptor(descriptor: int) -> None:
    """Close it; of stdin and stdout the number stays taken, so that nothing else is opened in its place."""
    if descriptor > 2:
        os.close(descriptor)
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, descriptor)
    os.close(nothing)


class InspectionThread(threading.Thread):
    """Splits what both sides of one conversation send into messages, and inspects and records them.

    It works in a thread so that the bytes pass meanwhile; `feed` waits only if it is far behind.
    """

    def __init__(self, recorder: TapRecorder) -> None:
        super().__init__(name="toolpost-inspect", daemon=True)
        self._recorder = recorder
        self._inspector = MessageInspector()
        self._buffers: dict[Role, LineBuffer] = {CLIENT: LineBuffer(), SERVER: LineBuffer()}
        self._chunks: queue.Queue[tuple[float, Role, bytes] | None] = queue.Queue(MAX_QUEUED_CHUNKS)

    def feed(self, by: Role, data: bytes) -> None:
        """Take a chunk; an empty one is the end of the stream. May be called by any thread."""
        self._chunks.put((self._recorder.now(), by, data))

    def close(self) -> None:
        """Inspect the rest, and end."""
        self._chunks.put(None)
        self.join(QUEUE_DRAIN_TIMEOUT)

    def run(self) -> None:
        """Inspect chunk after chunk."""
        while (chunk := self._chunks.get()) is not None:
            at, by, data = chunk
            lines = self._buffers[by].feed(data) if data else [self._buffers[by].end()]
            for line in lines:
                if line is not None:
                    self._inspect(by, line, at)
            if not data and by == CLIENT:  # the end of a server is shown with its exit code
                self._recorder.show_note(by, "the client has closed its end")

    def _inspect(self, by: Role, line: bytes | OversizedLine, at: float) -> None:
        try:
            self._recorder.record(by, line)
            for seen in self._inspector.inspect(by, line, at):
                self._recorder.show(seen)
        except Exception as error:  # noqa: BLE001 - a full disk, a fault of ours: it must not stop what goes by
            self._recorder.show_note(by, f"a message could not be kept or shown: {error!r}", failed=True)
