"""A proxy between a host and the process of a server: bytes pass unchanged in both directions.

Runs the process and forwards the end of either stream, signals and the exit code. Uses blocking threads
instead of an event loop, for throughput. `StdioInspection` finds the messages in the bytes.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from types import FrameType
from typing import Final

from toolpost.cli.tap.inspector import MessageInspector
from toolpost.cli.tap.recorder import TapRecorder, write_all
from toolpost.protocol.framing import LineBuffer, OversizedLine
from toolpost.protocol.methods import CLIENT, SERVER, Role
from toolpost.transports.stdio_server import redirect_descriptor
from toolpost.transports.targets import Stdio

READ_SIZE: Final = 64 * 1024  # bytes to read at once: the capacity of a pipe
STDOUT_IDLE_TIMEOUT: Final = 1.0  # seconds without output after which the stdout of an ended server is closed
_FORWARDED_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_PR_SET_PDEATHSIG: Final = 1


def run_stdio_proxy(stdio: Stdio, inspection: "StdioInspection", env: Mapping[str, str]) -> int:
    """Start the server, forward both streams, and return its exit code (negative for a signal)."""
    process = subprocess.Popen(  # noqa: S603 - the user's own command
        [stdio.command, *stdio.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=env,
        cwd=stdio.cwd,
        # A separate process group: it gets each signal once, from us, even if our whole group gets it.
        process_group=None if sys.platform == "win32" else 0,
        preexec_fn=_create_death_signal_hook(),  # noqa: PLW1509 - one system call, which takes no lock
    )
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "as above"
    with process.stdin, process.stdout:  # the threads close their own copies
        asking = _ForwardingThread(CLIENT, 0, os.dup(process.stdin.fileno()), inspection)
        answering = _ForwardingThread(SERVER, os.dup(process.stdout.fileno()), 1, inspection)
    try:
        with _forward_signals(process.pid):
            asking.start()
            answering.start()
            code = process.wait()
        answering.drain()
    except BaseException:  # also an interrupt: do not leave the server running
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
    """Create a hook that makes Linux kill the child process if we are killed."""
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415 - only here

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _ForwardingThread(threading.Thread):
    """Forwards the bytes of one side. At the end of either descriptor, it closes both."""

    def __init__(self, by: Role, source: int, sink: int, inspection: "StdioInspection") -> None:
        super().__init__(name=f"toolpost-{by}", daemon=True)  # a host may never close its end
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
            pass  # the reader is gone; the writer will notice
        finally:
            self._inspection.feed(self._by, b"")
            _close_descriptor(self._source)
            _close_descriptor(self._sink)

    def drain(self) -> None:
        """Wait until everything has been forwarded, as long as there is progress."""
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
    """Close a descriptor; the numbers of stdin and stdout stay in use, so that no file gets them."""
    if descriptor > 2:
        os.close(descriptor)
    else:
        redirect_descriptor(descriptor, os.devnull)


class StdioInspection:
    """Splits the bytes of both sides into messages, and inspects and records them."""

    def __init__(self, recorder: TapRecorder) -> None:
        self._recorder = recorder
        self._inspector = MessageInspector()
        self._buffers: dict[Role, LineBuffer] = {CLIENT: LineBuffer(), SERVER: LineBuffer()}
        self._lock = threading.Lock()

    def feed(self, by: Role, data: bytes) -> None:
        """Take a chunk; an empty one is the end of the stream. Both threads call it."""
        with self._lock:
            lines = self._buffers[by].feed(data) if data else [self._buffers[by].end()]
            for line in lines:
                if line is not None:
                    self._inspect(by, line)
            if not data and by == CLIENT:  # for a server, the exit code is shown instead
                self._recorder.show_note(by, "the client closed its end")

    def _inspect(self, by: Role, line: bytes | OversizedLine) -> None:
        try:
            self._recorder.record(by, line)
            for seen in self._inspector.inspect(by, line, self._recorder.now()):
                self._recorder.show(seen)
        except Exception as error:  # noqa: BLE001 - a full disk or a bug must not stop the traffic
            self._recorder.show_note(by, f"could not record or show a message: {error!r}", failed=True)
