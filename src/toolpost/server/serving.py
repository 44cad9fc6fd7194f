"""The methods of a server that serve clients: over a channel, over stdin and stdout, and over HTTP.

They load the composition roots `run` and `http.serve` when they are called: only these know transports.
`UseCount` keeps the lifespan of a server open from its first client to its last.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from toolpost.channel import Channel
from toolpost.principal import Principal
from toolpost.protocol.framing import MAX_LINE
from toolpost.server.options import HTTP, PrincipalOption, check_default, collect_http_options
from toolpost.server.runtime.conversation import ServerConversation

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

_Message: TypeAlias = MutableMapping[str, Any]
_AsgiFunction: TypeAlias = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]
]


class AsgiApplication(Protocol):
    """A server as an ASGI application.

    It is ready with its first request. There are three ways to start and stop it in order: the lifespan
    protocol of ASGI, as uvicorn speaks it; `lifespan` for a framework that mounts it; `start` and `stop`.
    """

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Serve one request, or the lifespan of the application."""
        ...

    async def start(self) -> None:
        """Get ready to serve."""
        ...

    async def stop(self) -> None:
        """Take no new requests, end streams, let running requests finish for a while, then cancel them."""
        ...

    @property
    def metadata(self) -> _AsgiFunction:
        """The metadata for clients that need a token, as an application of its own.

        For a framework that mounts this one: mount it at "/.well-known/oauth-protected-resource".
        """
        ...

    def lifespan(self, app: object = None, /) -> AbstractAsyncContextManager[None]:
        """Its lifespan, as a framework wants it: `Starlette(…, lifespan=app.lifespan)`."""
        ...


class ServeMethods:
    """The half of a `Handler` that serves."""

    @property
    def _handler(self) -> "Handler":
        return cast("Handler", self)

    async def serve(self, channel: Channel, *, principal: Principal | str | None = None) -> None:
        """Serve one client over a channel, until the channel closes.

        Args:
            channel: the way to the client.
            principal: on whose behalf it speaks, where that is known.
        """
        async with self._handler.hold_lifespan() as lifespan:
            await ServerConversation(self._handler, channel, lifespan, principal=principal).run()

    def run(
        self,
        *,
        max_line: int = MAX_LINE,
        http: str | None = None,
        path: str = HTTP.path,
        sse: str | None = HTTP.sse,
        messages: str = HTTP.messages,
        health: str | None = HTTP.health,
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
        """Serve over stdin and stdout, as hosts start it, or over HTTP, until a signal or the client ends it.

        `http` is where to serve over HTTP, such as "127.0.0.1:8000"; without it, stdin and stdout are served.
        `max_line` is the longest message to read from stdin, in bytes; a longer request is refused. `workers`
        is how many processes serve over HTTP. `asgi` describes the other arguments, which are for HTTP.

        Raises:
            RuntimeError: a loop is running here; await `serve_stdio()` or `serve_http()` in it.
            TypeError: an argument for HTTP is not its default, and there is no `http`.
        """
        options = collect_http_options(locals())
        if http is None:
            from toolpost.run import run_stdio  # noqa: PLC0415 - a composition root

            check_default(options, "http")
            run_stdio(self._handler, max_line=max_line)
        else:
            from toolpost.server.http.serve import run_http  # noqa: PLC0415 - as above

            run_http(self._handler, http, options)

    async def serve_stdio(self, *, max_line: int = MAX_LINE) -> None:
        """Serve over stdin and stdout like `run`, in a loop of your own."""
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
        """Serve over HTTP like `run(http=…)`, in a loop of your own, until it is cancelled.

        `asgi` describes the arguments. One process has one loop, so that `workers` can only be 1.
        """
        options = collect_http_options(locals())
        from toolpost.server.http.serve import serve_http  # noqa: PLC0415 - as above

        await serve_http(self._handler, address, options)

    def asgi(
        self,
        path: str = HTTP.path,
        *,
        sse: str | None = HTTP.sse,
        messages: str = HTTP.messages,
        health: str | None = HTTP.health,
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
    ) -> AsgiApplication:
        """Return the server as an ASGI application, for uvicorn and the like, or to mount in another one.

        Args:
            path: where clients connect.
            sse: where clients of HTTP+SSE (2024-11-05) connect; None for nowhere. May be the same as `path`.
            messages: where clients of HTTP+SSE post.
            health: where to ask whether the server is alive, such as "/health"; `/ready` below it tells
                whether it takes requests. Nowhere unless given.
            public_url: where clients reach the server if that is not this machine: its host and its origin
                are allowed then.
            allowed_hosts: more names under which the server answers; "*" for all.
            allowed_origins: more origins whose web pages may call; "*" for all.
            cors: whether browsers are told what is allowed: True, or more origins.
            json_only: answer requests with plain JSON, never with an event stream; progress and log messages
                are left out.
            stateless: serve clients of the session era without sessions; they cannot be asked anything then.
            max_body: the largest request, in bytes.
            max_calls: how many requests may be served at once, of all clients.
            max_streams: how many streams may be open for notifications, of all clients.
            handshake: seconds that a client has to complete the handshake.
            idle: seconds after which an unused session ends.
            session_life: seconds for which a session may be used at all, idle or not.
            drain: seconds that running requests get to finish when the server stops.
            principal: returns on whose behalf a request speaks, from its ASGI scope, async or not: a
                `Principal`, or its subject. A session belongs to whoever opened it. For servers without
                `auth=`.

        Raises:
            ValueError: an argument cannot work; the text names it.
        """
        options = collect_http_options(locals())
        from toolpost.server.http.app import make_endpoint  # noqa: PLC0415 - as above

        return make_endpoint(self._handler, options)


# --------------------------------------------------------------------- lifespan


class SharedLifespan:
    """A context that is entered once, however many hold it open; `enter` makes it each time."""

    def __init__(self, enter: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._enter = enter
        self._use_count = 0
        self._entered: tuple[AbstractAsyncContextManager[Any], Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    def hold_open(self) -> AbstractAsyncContextManager[Any]:
        """Return a context manager that holds the context open, and gives its value."""
        return _LifespanHold(self)

    async def acquire(self) -> Any:
        """Return the value of the context; it stays open until `release`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a lock belongs to one loop
            self._loop, self._lock = loop, asyncio.Lock()
        async with self._lock:
            if self._entered is None:
                context = self._enter()
                self._entered = (context, await context.__aenter__())
            self._use_count += 1
            return self._entered[1]

    async def release(self) -> None:
        """Hold it no longer; leave the context after the last holder."""
        async with self._lock:
            self._use_count -= 1
            if self._use_count == 0:
                entered, self._entered = self._entered, None
                assert entered is not None, "it was held until now"
                await entered[0].__aexit__(None, None, None)


class _LifespanHold(AbstractAsyncContextManager[Any, None]):
    """One holder. Not a generator: each session has one for its lifetime."""

    __slots__ = ("_lifespan",)

    def __init__(self, life: SharedLifespan) -> None:
        self._lifespan = life

    async def __aenter__(self) -> Any:
        return await self._lifespan.acquire()

    async def __aexit__(self, *_: object) -> None:
        await self._lifespan.release()
