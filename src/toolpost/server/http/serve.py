"""Serves an endpoint on uvicorn: in the loop of the caller, in one of its own, or in worker processes.

Owns the listening socket, signals and the end of the process. Connections and workers are in `uvicorn`.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from toolpost.errors import MCPError
from toolpost.server.handler import Handler
from toolpost.server.http.app import Endpoint, make_endpoint
from toolpost.server.http.uvicorn import WorkerProcesses, make_bounded_protocol
from toolpost.server.options import HttpOptions
from toolpost.server.runtime.worker_threads import SlowCallbackMonitor
from toolpost.stores.memory import MemoryStore

if TYPE_CHECKING:
    import uvicorn

logger: Final = logging.getLogger("toolpost.server")

LISTEN_BACKLOG: Final = 2048  # connections that may wait to be accepted
KEEP_ALIVE_TIMEOUT: Final = 75  # seconds for which an idle connection is kept: longer than by proxies
PROCESS_EXIT_TIMEOUT: Final = 5.0  # seconds for the process to end, beyond those for running requests
LINGER: Final = 0.5  # seconds for which kept connections may still send a request when the server stops
LINGER_POLL_INTERVAL: Final = 0.02  # seconds between two looks at the connections
_LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


async def serve_http(handler: Handler, address: str, options: HttpOptions) -> None:
    """Serve over HTTP in this loop, until a signal or a cancellation stops us."""
    if options.workers != 1:
        raise ValueError("workers= needs processes of its own: write `server.run(http=…, workers=…)`")
    app = make_endpoint(handler, _add_public_url(handler, address, options))
    server = _make_uvicorn_server(app)  # before we bind: uvicorn may not be installed
    with _bind_socket(address) as listening:
        _print_address(handler, listening, options.path)
        await _serve_endpoint(app, server, listening)


def run_http(handler: Handler, address: str, options: HttpOptions) -> None:
    """Serve over HTTP until a signal stops us."""
    _check_no_loop_for_http()
    workers = options.workers
    _check_workers(handler, workers, stateless=options.stateless)
    app = make_endpoint(handler, _add_public_url(handler, address, options))
    over = threading.Event()
    told = partial(_exit_after_timeout, over, app.settings.drain + PROCESS_EXIT_TIMEOUT)
    server = _make_uvicorn_server(app, told)  # before we bind: uvicorn may not be installed
    with _bind_socket(address) as listening:
        _print_address(handler, listening, options.path)
        if workers == 1:
            try:
                _run_endpoint(app, server, listening)
            finally:
                over.set()
            return
        handler.prepare()
        WorkerProcesses(workers, lambda: _run_endpoint(app, server, listening)).run()


def _check_no_loop_for_http() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "a loop is running here: write `await server.serve_http(…)` instead of `server.run(…)`"
    )


def is_single_process(handler: Handler) -> bool:
    """Return whether the state of a server is in the memory of one process, which workers cannot share."""
    return handler.is_in_memory or isinstance(handler.store, MemoryStore)


def _check_workers(handler: Handler, workers: int, *, stateless: bool) -> None:
    if workers < 1:
        raise ValueError(f"workers is {workers}; give 1 or more")
    if workers > 1 and not hasattr(os, "fork"):
        raise ValueError("workers= needs processes that fork, which this system has not")
    alone = is_single_process(handler)
    if workers > 1 and alone and handler.local_peer.has_sessions and not stateless:
        raise ValueError(
            f"{workers} workers cannot share sessions that live in the memory of one: "
            "pass stateless=True to serve old clients without sessions, or a store that is shared"
        )
    if workers > 1 and alone and handler.answer_once:
        raise ValueError(
            f"{workers} workers cannot know which answers count no more, if each remembers only its own: "
            "pass a store that is shared, or no answer_once"
        )


def _add_public_url(handler: Handler, address: str, options: HttpOptions) -> HttpOptions:
    """Return the options; where tokens have to name the server, and it is on this machine, with its URL."""
    if handler.auth is None or handler.auth.resource or options.public_url:
        return options
    host, port = _split_address(address)
    if host not in _LOCAL_HOSTS or port in {"", "0"}:
        return options  # what is missing is told where it is missed
    return replace(options, public_url=f"http://{address}")


def _split_address(address: Any) -> tuple[str, str]:
    """Split an address such as "127.0.0.1:8000" into host and port."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("/", "", "")
    if "/" in host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{address!r} is no address to serve at; write it like '127.0.0.1:8000'")
    return host, port


@contextlib.contextmanager
def _bind_socket(address: str) -> Generator[socket.socket]:
    """Listen at an address."""
    host, port = _split_address(address)
    host = host.strip("[]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, int(port)), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"cannot serve at {address}: {error.strerror or error}") from error
    with listening:
        yield listening


def _print_address(handler: Handler, listening: socket.socket, path: str) -> None:
    """Print for people where the server is."""
    host, port, *_ = listening.getsockname()
    shown = f"[{host}]" if ":" in host else host
    print(f"{handler.info.name} serves MCP at http://{shown}:{port}{path}", file=sys.stderr, flush=True)  # noqa: T201 - meant for a terminal


def _make_uvicorn_server(app: Endpoint, told: Callable[[], object] | None = None) -> "uvicorn.Server":
    """Return the uvicorn server for an application; `told` is called when a signal stops it."""
    try:
        import uvicorn  # noqa: PLC0415 - only who serves over HTTP needs it
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
                await _linger(self, min(LINGER, app.settings.drain))
                await app.stop()
            finally:
                await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            if told is not None:
                told()

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            heard = signal.SIGINT, signal.SIGTERM
            try:
                before = {number: signal.signal(number, self.handle_exit) for number in heard}
            except ValueError:  # not the main thread
                yield
                return
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")  # as uvicorn has it
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


async def _linger(server: "uvicorn.Server", seconds: float) -> None:
    """Serve the last request of each kept connection: its client may be sending it right now."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while server.server_state.connections:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(LINGER_POLL_INTERVAL)


async def _serve_endpoint(app: Endpoint, server: "uvicorn.Server", listening: socket.socket) -> None:
    """Serve in this loop, until a signal or a cancellation ends it."""
    with server.capture_signals():
        try:
            await app.start()
            async with SlowCallbackMonitor():
                await server.serve(sockets=[listening])
        except asyncio.CancelledError:
            if server.started:  # uvicorn does not clean up
                await server.shutdown([listening])
            raise
        finally:
            await app.stop()


def _run_endpoint(app: Endpoint, server: "uvicorn.Server", listening: socket.socket) -> None:
    """Serve in a loop of our own, with uvloop if it is installed."""
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_serve_endpoint(app, server, listening))


def _exit_after_timeout(over: threading.Event, patience: float) -> None:
    """End this process if it does not end in time: a function may block the loop."""

    def wait_or_exit() -> None:
        if not over.wait(patience):
            logger.error("the process does not end by itself within %g s, and is ended", patience)
            os._exit(1)

    threading.Thread(target=wait_or_exit, name="toolpost-end", daemon=True).start()
