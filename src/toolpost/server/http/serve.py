"""Serves an endpoint on uvicorn: in the loop of the caller, in a new one, or in worker processes.

Owns the listening socket, signals and the end of the process. Workers are started together, replaced when one
dies, and ended together. Connections are in `uvicorn`.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from functools import partial
from mmap import mmap
from struct import Struct
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from toolpost.errors import MCPError
from toolpost.protocol.revisions import LATEST_SESSION
from toolpost.server.handler import Handler
from toolpost.server.http.app import Endpoint
from toolpost.server.http.sessions import has_sessions
from toolpost.server.http.uvicorn import make_bounded_protocol
from toolpost.server.options import HttpOptions
from toolpost.server.runtime.worker_threads import SlowCallbackMonitor

if TYPE_CHECKING:
    import uvicorn

logger: Final = logging.getLogger("toolpost.server")

LISTEN_BACKLOG: Final = 2048  # connections that may wait to be accepted
KEEP_ALIVE_TIMEOUT: Final = 75  # seconds for which an idle connection is kept: longer than by proxies
PROCESS_EXIT_TIMEOUT: Final = 5.0  # seconds for the process to end, beyond those for running requests
LINGER: Final = 0.5  # seconds for which kept connections may still send a request when the server stops
LINGER_POLL_INTERVAL: Final = 0.02  # seconds between two checks of the connections
MIN_WORKER_LIFETIME: Final = 1.0  # seconds; a worker that dies sooner is replaced after a pause
FIRST_WORKER_PAUSE: Final = 0.1  # seconds; each further worker that dies so soon doubles it
MAX_WORKER_PAUSE: Final = 5.0  # seconds
_SLOT: Final = Struct("?I")  # whether a worker has started, and its number
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


async def serve_http(handler: Handler, address: str, options: HttpOptions) -> None:
    """Serve over HTTP in this loop, until a signal or a cancellation stops us."""
    if options.workers != 1:
        raise ValueError("workers= starts processes: use `server.run(http=…, workers=…)`")
    app = Endpoint(handler, _add_public_url(handler, address, options))
    server = _make_uvicorn_server(app)  # before we bind: uvicorn may not be installed
    with _bind_socket(address) as listening:
        _print_address(handler, listening, options.path)
        await _serve_endpoint(app, server, listening)


def run_http(handler: Handler, address: str, options: HttpOptions) -> None:
    """Serve over HTTP until a signal stops us."""
    options = _choose_worker_options(handler, options)
    app = Endpoint(handler, _add_public_url(handler, address, options))
    over = threading.Event()
    on_stop = partial(_exit_after_timeout, over, app.settings.drain + PROCESS_EXIT_TIMEOUT)
    server = _make_uvicorn_server(app, on_stop)  # before we bind: uvicorn may not be installed
    with _bind_socket(address) as listening:
        _print_address(handler, listening, options.path)
        if options.workers == 1:
            try:
                _run_endpoint(app, server, listening)
            finally:
                over.set()
            return
        handler.prepare()
        WorkerProcesses(options.workers, partial(_run_endpoint, app, server, listening)).run()


def _choose_worker_options(handler: Handler, options: HttpOptions) -> HttpOptions:
    """Return options with which each of several processes can serve every client."""
    workers = options.workers
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if workers > 1 and not hasattr(os, "fork"):
        raise ValueError("workers= needs os.fork, which this system does not have")
    if workers == 1 or not handler.is_in_memory:
        return options
    if handler.answer_once:
        raise ValueError(
            f"answer_once needs a store that all {workers} workers share: "
            "pass a shared store, or remove answer_once"
        )
    if not has_sessions(handler, options):
        return options
    print(  # noqa: T201 - meant for a terminal
        f"{workers} workers without a shared store: clients up to {LATEST_SESSION.date} get no sessions, so "
        "no questions and no notifications of changes; pass Server(store='redis://…'), or stateless=True",
        file=sys.stderr,
    )
    return replace(options, stateless=True)


def _add_public_url(handler: Handler, address: str, options: HttpOptions) -> HttpOptions:
    """Return the options, with the URL of a local server added if tokens have to name it."""
    if handler.auth is None or handler.auth.resource or options.public_url:
        return options
    host, port = _split_address(address)
    if host not in _LOCAL_HOSTS or port in {"", "0"}:
        return options  # the endpoint reports what is missing
    return replace(options, public_url=f"http://{address}")


def _split_address(address: Any) -> tuple[str, str]:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("/", "", "")
    if "/" in host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"invalid address {address!r}; expected host:port, such as '127.0.0.1:8000'")
    return host, port


def _bind_socket(address: str) -> socket.socket:
    host, port = _split_address(address)
    host = host.strip("[]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error


def _print_address(handler: Handler, listening: socket.socket, path: str) -> None:
    host, port, *_ = listening.getsockname()
    shown = f"[{host}]" if ":" in host else host
    print(f"{handler.info.name} serves MCP at http://{shown}:{port}{path}", file=sys.stderr, flush=True)  # noqa: T201 - meant for a terminal


def _make_uvicorn_server(app: Endpoint, on_stop: Callable[[], object] | None = None) -> "uvicorn.Server":
    """Return the uvicorn server for an application; `on_stop` is called when a signal stops it."""
    try:
        import uvicorn  # noqa: PLC0415 - optional
        from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware  # noqa: PLC0415 - as above
    except ImportError as error:
        raise MCPError("serving over HTTP needs uvicorn", hint="pip install 'toolpost[http]'") from error

    class EndpointUvicornServer(uvicorn.Server):
        """Ends streams before it waits for them, and exits with 0 when a signal stops it."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            servers, self.servers = self.servers, []
            for server in servers:
                server.close()
            try:
                await app.drain()
                # Serve the last request of each kept connection: its client may be sending it right now.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(LINGER, app.settings.drain)):
                        while self.server_state.connections:  # noqa: ASYNC110 - uvicorn has no event for it
                            await asyncio.sleep(LINGER_POLL_INTERVAL)
                await app.stop()
            finally:
                await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            if on_stop is not None:
                on_stop()

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            with _handle_stop_signals(self.handle_exit):
                yield

    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")  # as in uvicorn
    protocol = make_bounded_protocol(
        forwarded=ProxyHeadersMiddleware(cast("Any", app), trusted_hosts=trusted)
    )
    config = uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType] - its messages are dicts, which uvicorn types one by one
        http=protocol or "auto",
        proxy_headers=protocol is None,
        ws="none",
        lifespan="off",  # we start it ourselves, so that its errors are raised here
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT,
        timeout_graceful_shutdown=1,
    )
    return EndpointUvicornServer(config)


async def _serve_endpoint(
    app: Endpoint,
    server: "uvicorn.Server",
    listening: socket.socket,
    on_start: Callable[[int], object] = int,
    dead: int = 0,
) -> None:
    """Serve in this loop, until a signal or a cancellation ends it."""
    with server.capture_signals():
        try:
            on_start(await app.start(dead))
            async with SlowCallbackMonitor():
                await server.serve(sockets=[listening])
        except asyncio.CancelledError:
            if server.started:  # uvicorn does not clean up
                await server.shutdown([listening])
            raise
        finally:
            await app.stop()


def _run_endpoint(app: Endpoint, server: "uvicorn.Server", listening: socket.socket, *start: Any) -> None:
    """Serve in a new event loop, with uvloop if it is installed."""
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_serve_endpoint(app, server, listening, *start))


def _exit_after_timeout(over: threading.Event, patience: float) -> None:
    """End this process if it does not end in time: a function may block the loop."""

    def wait_or_exit() -> None:
        if not over.wait(patience):
            logger.error("the process did not stop within %g s; exiting now", patience)
            os._exit(1)

    threading.Thread(target=wait_or_exit, name="toolpost-end", daemon=True).start()


# --------------------------------------------------------------------- workers


@contextlib.contextmanager
def _handle_stop_signals(stop: Callable[[int, FrameType | None], object]) -> Generator[None]:
    """Call `stop` for signals that end the process. Do nothing outside the main thread."""
    try:
        before = {number: signal.signal(number, stop) for number in _STOP_SIGNALS}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class WorkerProcesses:
    """Processes that fork from this one; each does `work` until SIGTERM stops it.

    `work` gets two arguments: a function to call with the number of its worker once it has started, and the
    number of the dead worker that it replaces, or 0.
    """

    def __init__(self, count: int, work: Callable[[Callable[[int], object], int], None]) -> None:
        self._count = count
        self._work = work
        self._numbers = mmap(-1, count * _SLOT.size)  # shared with the workers, who write them
        self._early_deaths = 0  # in a row
        self._workers: dict[int, tuple[int, float]] = {}  # process → slot, time of start
        self._stopping = False

    def run(self) -> None:
        """Run until a signal stops us; raise RuntimeError if a worker dies before any has started."""
        # A worker holds only the reading end, and so notices when this process dies.
        self._pipe = os.pipe()
        with _handle_stop_signals(self._stop):
            try:
                for slot in range(self._count):
                    self._start(slot)
                self._replace_dead()
            finally:
                self._stop()
                for pid in list(self._workers):
                    os.waitpid(pid, 0)
                for end in self._pipe:
                    os.close(end)

    def _replace_dead(self) -> None:
        while self._workers:
            pid, status = os.wait()
            slot, started = self._workers.pop(pid, (-1, 0.0))
            if slot < 0 or self._stopping:
                continue
            code = os.waitstatus_to_exitcode(status)
            if not any(self._numbers[:]):
                raise RuntimeError(
                    f"a worker exited with code {code} before it could serve: see its error above"
                )
            is_early = time.monotonic() - started < MIN_WORKER_LIFETIME
            self._early_deaths = self._early_deaths + 1 if is_early else 0
            doubled = FIRST_WORKER_PAUSE * 2 ** min(self._early_deaths - 1, 10)
            pause = min(doubled, MAX_WORKER_PAUSE) if is_early else 0.0
            logger.error("worker %d exited with code %d; starting a new one in %.1f s", pid, code, pause)
            _, dead = _SLOT.unpack_from(self._numbers, slot * _SLOT.size)
            self._start(slot, pause, dead)

    def _start(self, slot: int, pause: float = 0.0, dead: int = 0) -> None:
        # A signal now would reach a process that does not yet know whether it is the worker.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        pid = os.fork()
        if pid:
            self._workers[pid] = slot, time.monotonic() + pause
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
            if self._stopping:
                self._stop()
            return
        code = 1
        try:
            for number in _STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
            os.close(self._pipe[1])
            threading.Thread(target=_exit_with_parent, args=(self._pipe[0],), daemon=True).start()
            time.sleep(pause)
            self._work(partial(_SLOT.pack_into, self._numbers, slot * _SLOT.size, True), dead)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 - must not reach the code of the parent
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(code)

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _exit_with_parent(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
