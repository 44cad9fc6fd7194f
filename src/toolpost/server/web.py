"""The keywords of serving over HTTP, stated once for those who hand them on.

What each of them does is done elsewhere; here it is told.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypedDict

from toolpost.principal import Principal

__all__ = ["AsgiApplication", "HttpOptions", "HttpServerOptions", "check_unused"]


class AsgiApplication(Protocol):
    """A server as an ASGI application.

    It is ready with its first request. Who wants to begin and to end it in order has three ways: the lifespan
    protocol of ASGI, as uvicorn speaks it; `lifespan` for a framework that mounts it; `start` and `stop`.
    """

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one request, or the life of the application."""
        ...

    async def start(self) -> None:
        """Get ready to serve."""
        ...

    async def stop(self) -> None:
        """Take no new requests, end streams, let running requests finish for a while, then cancel them."""
        ...

    @property
    def metadata(
        self,
    ) -> Callable[
        [
            MutableMapping[str, Any],
            Callable[[], Awaitable[MutableMapping[str, Any]]],
            Callable[[MutableMapping[str, Any]], Awaitable[None]],
        ],
        Awaitable[None],
    ]:
        """What is published for clients that need a token, as an application of its own.

        For a framework that mounts this one: mount it at "/.well-known/oauth-protected-resource".
        """
        ...

    def lifespan(self, app: object = None, /) -> AbstractAsyncContextManager[None]:
        """Its life, as a framework wants it: `Starlette(…, lifespan=app.lifespan)`."""
        ...


class HttpOptions(TypedDict, total=False):
    """How a server is reached over HTTP.

    Args:
        sse: where clients of HTTP+SSE (2024-11-05) come, "/sse" unless you say so; None for nowhere. The same
            as the path of the others is fine.
        messages: where these post, "/messages" unless you say so.
        health: where others ask whether the server lives, such as "/health"; `/ready` below it tells whether
            it takes requests. Nowhere unless you say so.
        public_url: where clients reach the server if that is not this machine: its host and its origin are
            allowed then.
        allowed_hosts: more names under which the server answers; "*" for all.
        allowed_origins: more origins whose web pages may call; "*" for all.
        cors: whether browsers are told what is allowed: True, or more origins.
        json_only: answer requests with plain JSON, never with an event stream; progress and log messages are
            left out.
        stateless: serve clients of the session era without sessions; they cannot be asked anything then.
        max_body: the largest request, in bytes; 4 MiB unless you say so.
        max_calls: how many requests may be served at once, of all clients; 10 000 unless you say so.
        max_streams: how many streams may be open for news, of all clients; 20 000 unless you say so.
        handshake: seconds that a client has to complete the handshake; 30 unless you say so.
        idle: seconds after which a session that nobody uses ends; 1800 unless you say so.
        max_sessions: how many sessions there may be; the one that was idle for longest makes room.
        drain: seconds that running requests get to finish when the server stops; 5 unless you say so.
        principal: says on whose behalf a request speaks, from its ASGI scope, async or not: a `Principal`, or
            its subject. A session belongs to whoever opened it. For servers without `auth=`.
    """

    sse: str | None
    messages: str
    health: str | None
    public_url: str | None
    allowed_hosts: Iterable[str]
    allowed_origins: Iterable[str]
    cors: bool | Iterable[str]
    json_only: bool
    stateless: bool
    max_body: int
    max_calls: int
    max_streams: int
    handshake: float
    idle: float
    max_sessions: int
    drain: float
    principal: Callable[[Any], Principal | str | Awaitable[Principal | str | None] | None] | None


class HttpServerOptions(HttpOptions, total=False):
    """How a server serves over HTTP by itself.

    Args:
        path: where clients come; "/mcp" unless you say so.
        workers: how many processes serve.
    """

    path: str
    workers: int


def check_unused(given: Mapping[str, Any], wanted: str) -> None:
    """Return if nothing was given that has no meaning without another argument.

    Raises:
        TypeError: something was.
    """
    if given:
        raise TypeError(f"{', '.join(given)} only count with {wanted}=")
