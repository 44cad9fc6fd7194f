"""`toolpost tap`: a proxy between a host and a server that shows every message.

Runs the process of a command, and forwards bytes unchanged in both directions, the end of either stream,
signals and the exit code. Uses blocking threads instead of an event loop, for throughput. `http_proxy`
forwards the requests to a URL.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from types import FrameType
from typing import Final

import click

from toolpost.cli.errors import UNREACHABLE, CommandError, describe_exit
from toolpost.cli.tap.inspector import MessageInspector
from toolpost.cli.tap.recorder import TapRecorder, open_recorder, write_all
from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.protocol.line_framing import LineBuffer, OversizedLine
from toolpost.protocol.methods import CLIENT, SERVER, Role
from toolpost.testing.masking import is_secret
from toolpost.transports.stdio_server import redirect_descriptor
from toolpost.transports.targets import Http, Stdio

MIN_SECRET_LENGTH: Final = 6  # characters; shorter secrets could match any text and are not masked


@click.command(
    "tap",
    cls=TargetCommand,
    epilog="Configure the host to start `toolpost tap -- COMMAND`, or to use the URL that `toolpost tap "
    "URL` prints.",
)
@click.option(
    "--to", metavar="FILE", type=click.Path(dir_okay=False), help="Append messages to FILE, not to stderr."
)
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Record the session in FILE for toolpost.testing.replay; if FILE exists, in FILE-1.",
)
@click.option("--full", is_flag=True, help="Show whole messages.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address to listen on, for a URL.  [default: 127.0.0.1:8900, or any port]",
)
def tap_command(
    target: TargetConnector, to: str | None, record: str | None, full: bool, listen: str | None
) -> int:
    """Show every message between a host and a server.

    Forwards all messages unchanged, and shows each on one line of stderr: seconds since the start, → for the
    client and ← for the server, id, method, response time, size. Lines with an exclamation mark show
    protocol violations. Secrets are masked.
    """
    place = target.resolve_target()
    if isinstance(place, Http):
        named = place.headers or {}
    elif listen is not None:
        raise click.UsageError("--listen requires a URL: a command uses stdio")
    else:
        named = {**os.environ, **(place.env or {})}
    secrets = [each for name, each in named.items() if is_secret(name) and len(each) >= MIN_SECRET_LENGTH]
    with open_recorder(
        json=target.output.json, full=full, to=to, record=record, target=target.spec.label, secrets=secrets
    ) as recorder:
        if isinstance(place, Http):
            if find_spec("aiohttp") is None or find_spec("uvicorn") is None:
                hint = "pip install 'toolpost[http]'"
                raise CommandError("tap on a URL requires aiohttp and uvicorn", hint=hint)
            from toolpost.cli.tap.http_proxy import serve_http_proxy  # noqa: PLC0415 - they may not be installed

            return serve_http_proxy(place, recorder, target.output, listen)
        try:  # passes our whole environment: the host set it for the server
            code = _run_stdio_proxy(place, StdioInspection(recorder), named)
        except OSError as error:
            hint = "run `toolpost doctor` with the same command to find the cause"
            text = f"could not start {place.command}: {error.strerror}"
            raise CommandError(text, UNREACHABLE, hint=hint) from error
        end = f"the server {'ended' if code >= 0 else 'was killed'} {describe_exit(code)}"
        recorder.show_note("server", end)
        if recorder.tape is not None:
            recorder.tape.write_end("server", end)
    if code < 0:  # a signal killed it, and must kill us too
        with contextlib.suppress(OSError, ValueError):  # SIGKILL cannot be handled
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


for _option in tap_command.params:  # tap sends no requests: some options of a target do not apply
    if isinstance(_option, click.Option):
        _option.hidden = _option.name in {"revision", "timeout", "verbose"}
        if _option.name == "json":
            _option.help = "Show each message as a JSON object on one line."


# --------------------------------------------------------------------- the proxy of a process

READ_SIZE: Final = 64 * 1024  # bytes to read at once: the capacity of a pipe
STDOUT_IDLE_TIMEOUT: Final = 1.0  # seconds without output after which the stdout of an ended server is closed
_FORWARDED_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_PR_SET_PDEATHSIG: Final = 1


def _run_stdio_proxy(stdio: Stdio, inspection: "StdioInspection", env: Mapping[str, str]) -> int:
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
