"""The methods of a server that serve clients: over a channel, over stdin and stdout, and over HTTP.

They import the composition roots `run` and `http.serve` on first use: only these know transports.
`SharedLifespan` keeps the lifespan of a server open from its first client to its last.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from msgspec.structs import asdict

from toolpost.channel import Channel
from toolpost.errors import explain_keywords
from toolpost.principal import Principal
from toolpost.protocol.line_framing import MAX_LINE
from toolpost.server.options import HTTP, HttpOptions, PrincipalOption, collect_options
from toolpost.server.runtime.conversation import ServerConversation

if TYPE_CHECKING:
    from toolpost.server.handler import Handler
    from toolpost.server.http.app import Endpoint


class ServeMethods:
    """The half of a `Handler` that serves."""

    @property
    def _handler(self) -> "Handler":
        return cast("Handler", self)

    async def serve(self, channel: Channel, *, principal: Principal | str | None = None) -> None:
        """Serve one client over a channel, until the channel closes.

        Args:
            channel: the connection to the client.
            principal: the principal of the client, if it is known.
        """
        async with self._handler.hold_lifespan() as lifespan:
            await ServerConversation(self._handler, channel, lifespan, principal=principal).run()

    @explain_keywords
    def run(
        self,
        *,
        max_line: int = MAX_LINE,
        http: str | None = None,
        path: str = HTTP.path,
        sse: str | None = HTTP.sse,
        messages: str = HTTP.messages,
        health: str | None = HTTP.health,
        require_store: bool = HTTP.require_store,
        metrics: str | None = HTTP.metrics,
        public_url: str | None = HTTP.public_url,
        allowed_hosts: Iterable[str] = HTTP.allowed_hosts,
        allowed_origins: Iterable[str] = HTTP.allowed_origins,
        cors: bool | Iterable[str] = HTTP.cors,
        json_only: bool = HTTP.json_only,
        stateless: bool = HTTP.stateless,
        max_body: int = HTTP.max_body,
        max_calls: int = HTTP.max_calls,
        max_streams: int = HTTP.max_streams,
        handshake: float = HTTP.handshake,
        idle: float = HTTP.idle,
        session_life: float = HTTP.session_life,
        drain: float = HTTP.drain,
        principal: PrincipalOption | None = HTTP.principal,
        workers: int = HTTP.workers,
    ) -> None:
        """Serve over stdio or, with `http`, over HTTP until a signal arrives or the stdio client disconnects.

        `http` is the address to listen on, such as "127.0.0.1:8000". `max_line` is the longest message to
        read from stdin, in bytes; a longer request is rejected. `workers` is the number of HTTP processes.
        `asgi` describes the other arguments, which are for HTTP.

        Raises:
            RuntimeError: an event loop is already running; await `serve_stdio()` or `serve_http()` in it.
            TypeError: an argument for HTTP is set, but `http` is not.
        """
        options = HttpOptions(**collect_options(HttpOptions, locals()))
        _check_no_loop("serve_stdio()" if http is None else "serve_http(…)")
        if http is None:
            from toolpost.run import run_stdio  # noqa: PLC0415 - a composition root

            changed = [name for name, default in asdict(HTTP).items() if getattr(options, name) != default]
            if changed:
                raise TypeError(f"without http=, these options have no effect: {', '.join(changed)}")
            run_stdio(self._handler, max_line=max_line)
        else:
            from toolpost.server.http.serve import run_http  # noqa: PLC0415 - as above

            run_http(self._handler, http, options)

    async def serve_stdio(self, *, max_line: int = MAX_LINE) -> None:
        """Serve over stdin and stdout like `run`, in your own event loop."""
        from toolpost.run import serve_stdio  # noqa: PLC0415 - as above

        await serve_stdio(self._handler, max_line=max_line)

    async def serve_http(
        self,
        address: str = "127.0.0.1:8000",
        *,
        path: str = HTTP.path,
        sse: str | None = HTTP.sse,
        messages: str = HTTP.messages,
        health: str | None = HTTP.health,
        require_store: bool = HTTP.require_store,
        metrics: str | None = HTTP.metrics,
        public_url: str | None = HTTP.public_url,
        allowed_hosts: Iterable[str] = HTTP.allowed_hosts,
        allowed_origins: Iterable[str] = HTTP.allowed_origins,
        cors: bool | Iterable[str] = HTTP.cors,
        json_only: bool = HTTP.json_only,
        stateless: bool = HTTP.stateless,
        max_body: int = HTTP.max_body,
        max_calls: int = HTTP.max_calls,
        max_streams: int = HTTP.max_streams,
        handshake: float = HTTP.handshake,
        idle: float = HTTP.idle,
        session_life: float = HTTP.session_life,
        drain: float = HTTP.drain,
        principal: PrincipalOption | None = HTTP.principal,
        workers: int = HTTP.workers,
    ) -> None:
        """Serve over HTTP like `run(http=…)`, in your own event loop, until it is cancelled.

        `asgi` describes the arguments. The server runs in this process, so `workers` can only be 1.
        """
        options = HttpOptions(**collect_options(HttpOptions, locals()))
        from toolpost.server.http.serve import serve_http  # noqa: PLC0415 - as above

        await serve_http(self._handler, address, options)

    @explain_keywords
    def asgi(
        self,
        path: str = HTTP.path,
        *,
        sse: str | None = HTTP.sse,
        messages: str = HTTP.messages,
        health: str | None = HTTP.health,
        require_store: bool = HTTP.require_store,
        metrics: str | None = HTTP.metrics,
        public_url: str | None = HTTP.public_url,
        allowed_hosts: Iterable[str] = HTTP.allowed_hosts,
        allowed_origins: Iterable[str] = HTTP.allowed_origins,
        cors: bool | Iterable[str] = HTTP.cors,
        json_only: bool = HTTP.json_only,
        stateless: bool = HTTP.stateless,
        max_body: int = HTTP.max_body,
        max_calls: int = HTTP.max_calls,
        max_streams: int = HTTP.max_streams,
        handshake: float = HTTP.handshake,
        idle: float = HTTP.idle,
        session_life: float = HTTP.session_life,
        drain: float = HTTP.drain,
        principal: PrincipalOption | None = HTTP.principal,
    ) -> "Endpoint":
        """Return an ASGI application, for uvicorn and similar servers or to mount in another application.

        It starts with its first request. There are three ways to start and stop it explicitly: the lifespan
        protocol of ASGI, as in uvicorn; `lifespan` for a framework that mounts it; `start` and `stop`.

        Args:
            path: the path of the MCP endpoint.
            sse: the path for clients of HTTP+SSE (2024-11-05), or None. May be the same as `path`.
            messages: the path to which clients of HTTP+SSE post.
            health: the path of the liveness check, such as "/health"; `/ready` below it is the readiness
                check. None by default.
            require_store: whether the readiness check fails while the store is unavailable.
            metrics: the path of metrics for Prometheus, such as "/metrics". They need no token.
            public_url: the URL of the server as clients see it; allows its host and its origin.
            allowed_hosts: further values of the `Host` header to allow; "*" allows all.
            allowed_origins: further origins whose web pages may call the server; "*" allows all.
            cors: whether to send CORS headers: True, or further origins.
            json_only: respond with plain JSON, never with an event stream, and drop progress and log
                messages.
            stateless: serve clients of the session era without sessions; the server cannot ask them anything.
            max_body: the largest request body, in bytes.
            max_calls: the maximum number of concurrent requests of all clients.
            max_streams: the maximum number of open streams for notifications, of all clients.
            handshake: seconds that a client of HTTP+SSE has to complete the handshake.
            idle: seconds after which an unused session ends.
            session_life: the maximum lifetime of a session in seconds, idle or not.
            drain: seconds that running requests get to finish at shutdown.
            principal: for servers without `auth=`: a function, async or not, that returns the principal of a
                request from its ASGI scope, as a `Principal` or its subject. A session belongs to the
                principal that opened it.

        Raises:
            ValueError: an argument is not valid; the message names it.
        """
        options = HttpOptions(**collect_options(HttpOptions, locals()))
        from toolpost.server.http.app import Endpoint  # noqa: PLC0415 - as above

        return Endpoint(self._handler, options)


def _check_no_loop(method: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"server.run() cannot run in an event loop: use `await server.{method}` instead")


class SharedLifespan(AbstractAsyncContextManager[Any, None]):
    """A context that is entered for its first holder and left after the last, in each event loop.

    `enter` makes it. What it opens, such as a connection, belongs to one loop.
    """

    def __init__(self, enter: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._enter = enter
        self._lives: WeakKeyDictionary[asyncio.AbstractEventLoop, _Life] = WeakKeyDictionary()

    @property
    def is_held(self) -> bool:
        """Whether it is entered in any loop."""
        return any(life.use_count for life in list(self._lives.values()))

    async def __aenter__(self) -> Any:
        life = self._lives.setdefault(asyncio.get_running_loop(), _Life())
        async with life.lock:
            if not life.use_count:
                life.value = await life.stack.enter_async_context(self._enter())
            life.use_count += 1
            return life.value

    async def __aexit__(self, *_: object) -> None:
        life = self._lives[asyncio.get_running_loop()]
        async with life.lock:
            life.use_count -= 1
            if not life.use_count:
                await life.stack.aclose()


class _Life:
    """A context in one loop."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.use_count = 0
        self.stack = AsyncExitStack()
        self.value: Any = None
