"""The client's side of stdio: starts a server as a child process, exchanges lines with it, and ends it.

Owns the process with its whole group, and its stderr: lines are handed on as they come, and the last ones are
kept to explain a crash. Output on stderr does not mean an error (STDIO-4). Knows nothing of the messages.
"""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from toolpost.errors import ChannelClosed, ConnectFailed
from toolpost.transports.memory import MessageQueue, QueueChannel
from toolpost.transports.pipes import PIPE_NETWORK, LineFeed, LineWriter
from toolpost.transports.targets import Stdio

MAX_KEPT_LINES: Final = 20  # how many lines of stderr are kept: a traceback of Python with its cause
MAX_KEPT_LINE_LENGTH: Final = 500  # how much of each of them, in characters
MAX_STDERR_LINE: Final = 64 * 1024  # the longest line that is handed on; a note replaces longer ones
_log = logging.getLogger("toolpost.child")


class ServerStderr:
    """Reads the stderr of a server, hands each line on, and keeps the last ones in `last_lines`.

    It always reads, so that a server that writes much does not get stuck. `listen` takes over the descriptor.
    """

    def __init__(self, stdio: Stdio, fd: int) -> None:
        self.last_lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._fd = fd
        self._queue = MessageQueue()  # stays empty: each line is taken as it comes
        self._queue.on_message = lambda line: self._take_line(line.decode("utf-8", "replace"))
        self._queue.on_oversized = lambda line: self._take_line(f"(a line of {line.size} bytes was omitted)")
        self._feed: LineFeed | None = None
        self._file: TextIO | None = None
        self._forward = self._open_target(stdio)

    def listen(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        """Start reading; call `ended` at the end."""
        self._feed = LineFeed(loop, self._fd, self._queue, limit=MAX_STDERR_LINE, ended=ended)

    def drain(self) -> bool:
        """Read at once all that has arrived. Return whether that is possible."""
        return self._feed is None or self._feed.drain()

    def close(self) -> None:
        """Stop reading, and close the file if it is ours."""
        if self._feed is not None:
            self._feed.close()
            self._feed.finish()
        if self._file is not None:
            self._file.close()

    def _open_target(self, stdio: Stdio) -> Callable[[str], object]:
        target = stdio.stderr
        if target == "log":
            return partial(_log.info, "%s: %s", stdio.label)
        if isinstance(target, str):
            return str  # "discard": kept, but not handed on
        if isinstance(target, Path):
            try:
                target = self._file = target.open("a", buffering=1, encoding="utf-8")
            except OSError as error:
                raise ConnectFailed(
                    f"cannot open the file for stderr: {error}",
                    hint="correct the path in `stderr`",
                    peer=stdio.label,
                ) from error
        if callable(target):
            return target
        write = target.write
        return lambda line: write(f"{line}\n")

    def _take_line(self, text: str) -> None:
        # Kept lines are shown to people: their terminal must not interpret them.
        seen = "".join(filter(str.isprintable, text[: 4 * MAX_KEPT_LINE_LENGTH].replace("\t", " ")))
        self.last_lines.append(
            seen if len(seen) <= MAX_KEPT_LINE_LENGTH else f"{seen[:MAX_KEPT_LINE_LENGTH]}…"
        )
        try:
            self._forward(text)
        except Exception:  # noqa: BLE001 - a function of the user must not stop the reading
            _log.exception("failed to forward a line of stderr")


# --------------------------------------------------------------------- the process

EXIT_CODE_TIMEOUT: Final = 1.0  # seconds to wait for the exit code of a server that has closed a pipe
KILL_TIMEOUT: Final = 2.0  # seconds to wait after SIGKILL: a process may be stuck in the kernel
GROUP_POLL_INTERVAL: Final = 0.02  # seconds between two checks of the group: no event reports its end
_SIGKILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has one way to end a process


class ChildProcessChannel(QueueChannel):
    """The channel to a child process. `open_child` makes it; `pid` is also the number of its group."""

    network = PIPE_NETWORK

    def __init__(
        self,
        stdio: Stdio,
        process: asyncio.SubprocessTransport,
        exited: asyncio.Future[None],
        *,
        stdin: int,
        stdout: int,
        stderr: ServerStderr | None,
    ) -> None:
        super().__init__(MessageQueue(stdio.label))
        self._loop = loop = asyncio.get_running_loop()
        self._stdio = stdio
        self._process = process
        self._exited = exited
        self._stderr = stderr
        self._end_reported: asyncio.Future[None] = loop.create_future()  # the reason of the end is known
        self._timer: asyncio.TimerHandle | None = None
        self._is_group_empty = False
        self._stdin = LineWriter(loop, stdin, "the server closed its stdin but is still running", _log.debug)
        self.offer = self._stdin.offer  # as `send`, if that needs no waiting
        self._feed = LineFeed(loop, stdout, self._queue, limit=stdio.max_line, ended=self._try_report_end)
        self.pid = process.get_pid()
        # The loop keeps the process until it is reaped. It must not keep us, or `__del__` would never run.
        conclude = weakref.WeakMethod(self._on_exit)

        def on_exit(_: asyncio.Future[None]) -> None:
            if (method := conclude()) is not None:  # pragma: no branch - a living loop keeps us as well
                method()

        exited.add_done_callback(on_exit)
        if stderr is not None:
            stderr.listen(loop, self._on_stderr_end)

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.get_returncode() if self._exited.done() else None

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of stderr, each cut to a reasonable length; empty if it is inherited."""
        return () if self._stderr is None else tuple(self._stderr.last_lines)

    @property
    def early_exit_hint(self) -> str | None:
        """A hint for a server that exits before a conversation; None if its stderr explains it."""
        return "does the script call `server.run()`?" if self.returncode == 0 else None

    @property
    def stderr_hint(self) -> str | None:
        """Where to find the server's stderr, if it goes to a log level that is off."""
        if self._stdio.stderr != "log" or _log.isEnabledFor(logging.INFO):
            return None
        return f"stderr of {self._stdio.label} goes to the logger {_log.name!r}, at level INFO"

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - one stream
        """Hand one message over; wait while the server does not read."""
        try:
            await self._stdin.send(data)
        except ChannelClosed as error:
            # A dying server closes its pipes first; a moment later its exit code is known.
            await asyncio.wait({self._end_reported}, timeout=EXIT_CODE_TIMEOUT)
            reason = self._queue.reason or error.message
            raise ChannelClosed(reason, sent=False, peer=self._queue.peer) from None

    def end_input(self) -> None:
        """Close the server's stdin, which ends it; its last output can still be received."""
        self._stdin.finish(self._closed_reason)

    async def _shut_down(self) -> None:
        """End the whole group: close stdin, then SIGTERM, then SIGKILL; a cancellation sends that at once."""
        self._feed.discard()  # a server that is stuck in a write would not notice the end of stdin
        self._report_end()
        self._stdin.finish(self._closed_reason)
        try:
            await self._ask_to_exit()
        finally:
            try:
                await self._kill()
            finally:
                self._release()

    def __del__(self) -> None:
        if self._closing is None:
            text = f"{self._stdio.label} (process {self.pid}) was never closed"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
            self._signal(_SIGKILL)
            self._release()

    # ----------------------------------------------------------------- it has ended

    def _on_exit(self) -> None:
        self._signal(0)  # notes an empty group now: its number may soon be reused
        self._try_report_end()

    def _on_stderr_end(self) -> None:
        if self._exited.done():
            self._try_report_end()

    def _try_report_end(self) -> None:
        """End the channel with its reason once that is known, at the latest after `EXIT_CODE_TIMEOUT`."""
        if self._end_reported.done():
            return
        if self._exited.done() and (self._stderr is None or self._stderr.drain()) and self._feed.drain():
            self._report_end()
        elif self._timer is None:
            self._timer = self._loop.call_later(EXIT_CODE_TIMEOUT, self._report_end)

    def _report_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._end_reported.done():
            return
        self._end_reported.set_result(None)
        self._feed.finish()
        self._queue.end(self._describe_end())
        if self._exited.done():
            # A grandchild may still hold the pipes, but the server does not answer any more.
            self._feed.close()
            self._stdin.abort(self._closed_reason)

    def _describe_end(self) -> str:
        text = f"the server process {_describe_exit(self.returncode)}"
        if self._stderr is None:
            return text
        if not self._stderr.last_lines:
            return f"{text}; it wrote nothing to stderr"
        return "\n    ".join((f"{text}; last lines of stderr:", *self._stderr.last_lines))

    # ----------------------------------------------------------------- ending it

    async def _ask_to_exit(self) -> None:
        """Let the server exit; then send SIGTERM to its whole group."""
        await asyncio.wait({self._exited}, timeout=self._stdio.stdin_wait)
        if self._signal(signal.SIGTERM):
            deadline = self._loop.time() + self._stdio.term_wait
            await asyncio.wait({self._exited}, timeout=self._stdio.term_wait)
            while self._signal(0) and self._loop.time() < deadline:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(GROUP_POLL_INTERVAL)

    async def _kill(self) -> None:
        """Kill and reap the processes that are left; a cancellation waits for that."""
        cancelled = False
        deadline = self._loop.time() + KILL_TIMEOUT
        self._signal(_SIGKILL)
        while (not self._exited.done() or self._reap_adopted()) and self._loop.time() < deadline:
            try:
                await asyncio.sleep(GROUP_POLL_INTERVAL)
            except asyncio.CancelledError:
                cancelled = True
        if not self._exited.done():
            _log.warning("%s: could not stop process %d", self._stdio.label, self.pid)
        if cancelled:
            raise asyncio.CancelledError

    def _signal(self, number: int) -> bool:
        """Send a signal to the whole group, or none with 0. Return whether any process is left in it."""
        if self._is_group_empty:
            return False
        if sys.platform == "win32":  # pragma: no cover - there are no groups; the process has to do
            self._is_group_empty = self._exited.done()
            if number and not self._is_group_empty:
                self._process.terminate()
            return not self._is_group_empty
        self._reap_adopted()
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            self._is_group_empty = True
        return not self._is_group_empty

    def _reap_adopted(self) -> bool:
        """Reap grandchildren that became our children, as in a container; return whether some are left."""
        if self._is_group_empty or not self._exited.done() or sys.platform == "win32":
            return False
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
            return True
        return False

    def _release(self) -> None:
        self._feed.close()
        self._stdin.abort(self._closed_reason)
        if self._stderr is not None:
            self._stderr.close()
        with contextlib.suppress(PermissionError):  # it runs as another user: nothing more can be done
            self._process.close()


async def open_child(stdio: Stdio) -> ChildProcessChannel:
    """Start a server, and return the channel to it; raise ConnectFailed if it could not be started.

    It runs in a session of its own, so that Ctrl-C in our terminal does not reach it.
    """
    loop = asyncio.get_running_loop()
    environment = stdio.environment()
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        our_stdin, stdin = _make_pipe(ours, theirs, reading=False)
        our_stdout, stdout = _make_pipe(ours, theirs)
        stderr, lines = None, None
        if stdio.stderr != "inherit":
            our_stderr, stderr = _make_pipe(ours, theirs)
            lines = ServerStderr(stdio, our_stderr)
            ours.callback(lines.close)
        try:
            process, protocol = await loop.subprocess_exec(
                lambda: _ExitProtocol(loop),
                _find_program(stdio.command, environment),
                *stdio.args,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=stdio.cwd,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _explain_start_failure(stdio, error) from error
        ours.pop_all()
    return ChildProcessChannel(
        stdio, process, protocol.exited, stdin=our_stdin, stdout=our_stdout, stderr=lines
    )


def _make_pipe(
    ours: contextlib.ExitStack, theirs: contextlib.ExitStack, *, reading: bool = True
) -> tuple[int, int]:
    """Return our end of a new pipe and the server's, each to be closed with its stack."""
    reader, writer = os.pipe()
    our_end, their_end = (reader, writer) if reading else (writer, reader)
    ours.callback(os.close, our_end)
    theirs.callback(os.close, their_end)
    if sys.platform != "win32":  # pragma: no branch - threads do the reading there
        os.set_blocking(our_end, False)  # the server's end is another description, and stays as it is
    return our_end, their_end


class _ExitProtocol(asyncio.SubprocessProtocol):
    """Sets `exited` when the process has ended and was reaped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()

    def process_exited(self) -> None:
        self.exited.set_result(None)


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "closed its stdout but is still running"
    if code >= 0:
        return f"exited with code {code}"
    names = {item.value: item.name for item in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


def _find_program(command: str, environment: Mapping[str, str]) -> str:
    """Return the program to start. Windows does not try the endings of PATHEXT, and `npx` is `npx.cmd`."""
    if sys.platform == "win32":  # pragma: no cover - only there
        import shutil  # noqa: PLC0415 - slow to load, and needed nowhere else

        return shutil.which(command, path=environment.get("PATH")) or command
    return command


def _explain_start_failure(stdio: Stdio, error: Exception) -> ConnectFailed:
    command = stdio.command
    if stdio.cwd is not None and not Path(stdio.cwd).is_dir():
        problem = f"folder {os.fspath(stdio.cwd)!r} does not exist"
        return ConnectFailed(problem, hint="create it, or correct `cwd`", peer=stdio.label)
    if isinstance(error, FileNotFoundError) and os.sep in command and Path(command).exists():
        problem, hint = f"the interpreter of {command!r} does not exist", "correct the #! in its first line"
    elif isinstance(error, FileNotFoundError) and " " in command:
        problem, hint = f"program {command!r} not found", "pass its arguments separately, in `args`"
    elif isinstance(error, FileNotFoundError):
        problem = f"program {command!r} not found"
        hint = "install it, or pass its full path"
    elif isinstance(error, PermissionError):
        problem, hint = f"{command!r} is not executable", "if it is a program, try chmod +x"
    elif isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        problem, hint = f"{command!r} is not a program", "a script needs an interpreter after #! in line 1"
    else:
        problem, hint = f"{command!r} could not be started: {error}", None
    if command.endswith(".py") and isinstance(error, OSError) and " " not in command:
        hint = f"start a script with Python: [sys.executable, {command!r}]"
    return ConnectFailed(problem, hint=hint, peer=stdio.label)
