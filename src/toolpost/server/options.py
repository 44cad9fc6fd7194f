"""The keywords that every kind of server takes, stated once for those who hand them on; and their checks.

What each means is told in `Handler`, whose constructor has them one by one. The checks say which argument is
wrong, and say it at once: otherwise the first client would be the one to learn of it.

PART web: The keywords of serving over HTTP, stated once for those who hand them on.

What each of them does is done elsewhere; here it is told.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypedDict, cast, get_args

from toolpost.principal import Principal
from toolpost.protocol.methods import DATES, Row
from toolpost.server.runtime.request import Middleware
from toolpost.types.base import Icon

if TYPE_CHECKING:
    from toolpost.auth.server.auth import Auth
    from toolpost.protocol.seal import KeyRing
    from toolpost.stores.store import Store

MAX_DURATION: Final = 366 * 86400.0
"""Seconds of a year: what has to be kept for longer is not waited for."""

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What a server does before it serves and after: an async context manager, given the server."""


ListName: TypeAlias = Literal["tools", "resources", "prompts"]
"""What a server may declare before there is any."""


class ServerOptions(TypedDict, total=False):
    """The keywords of a `Handler`."""

    version: str
    title: str | None
    description: str | None
    instructions: str | None
    icons: list[Icon] | None
    website_url: str | None
    lifespan: Lifespan | None
    middleware: Iterable[Middleware]
    revisions: Iterable[str]
    declares: Iterable[ListName]
    limit: int
    threads: int
    extra: Iterable[Row]
    store: "Store | str"
    keys: "KeyRing | None"
    answer_within: float
    answer_once: bool
    auth: "Auth | None"


# --------------------------------------------------------------------- checks
# Of arguments that a type checker would refuse: not everybody has one. So they take anything.


def check_strings(**given: Any) -> None:
    """Return if all arguments are texts, or not given.

    Raises:
        TypeError: one is something else.
    """
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} has to be a text, not {value!r}")


def check_counts(**given: Any) -> None:
    """Return if all arguments are whole numbers of things, at least one.

    Raises:
        TypeError: one is no whole number.
        ValueError: one is less than one.
    """
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} has to be a whole number, not {value!r}")
        if value < 1:
            raise ValueError(f"{name} has to be at least 1, not {value!r}")


def check_timeouts(**given: Any) -> None:
    """Return if all arguments are times in seconds, or not given.

    Raises:
        TypeError: one is no number.
        ValueError: one is no time that anything could take.
    """
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name} has to be a number of seconds, or None for no limit, not {value!r}")
        if not value > 0:
            raise ValueError(f"{name} has to be more than 0 seconds, or None for no limit, not {value!r}")


def check_durations(**given: Any) -> None:
    """Return if all arguments are spans of time in seconds that end some day.

    Raises:
        TypeError: one is no number.
        ValueError: one is no time, or has no end.
    """
    for name, value in given.items():
        check_timeouts(**{name: value})
        if value is None or value > MAX_DURATION:
            raise ValueError(f"{name} has to be at most {MAX_DURATION:g} seconds, not {value!r}")


def parse_middleware(middleware: Any) -> list[Middleware]:
    """The middleware that was given, in its order.

    Raises:
        TypeError: it is no list, or one of it cannot be called, or is a class.
    """
    wanted = "an `async def` that takes (call, next), or an object that is called like one"
    if not isinstance(middleware, Iterable):
        raise TypeError(f"middleware has to be a list, not {middleware!r}")
    given = list(cast("Iterable[Any]", middleware))
    for layer in given:
        if isinstance(layer, type):
            raise TypeError(f"middleware has a class in it: make an object of it, {layer.__name__}(…)")
        if not callable(layer):
            raise TypeError(f"middleware has {layer!r} in it, which is not {wanted}")
    return given


def parse_revisions(revisions: Any) -> tuple[str, ...]:
    """The protocol revisions that were given.

    Raises:
        TypeError: they are no list.
        ValueError: there is none, or one that nobody knows.
    """
    dates = _parse_choices(DATES, "revisions", revisions)
    if not dates:
        raise ValueError(f"revisions has to name at least one of {', '.join(DATES)}")
    return dates


def parse_declared_lists(declares: Any) -> tuple[str, ...]:
    """What is to be declared whether it is there or not.

    Raises:
        TypeError: it is no list.
        ValueError: nothing of the kind can be declared.
    """
    return _parse_choices(get_args(ListName), "declares", declares)


def _parse_choices(known: Sequence[str], name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name} has to be a list, such as [{known[0]!r}], not {given!r}")
    chosen = tuple(cast("Iterable[Any]", given))
    for one in chosen:
        if one not in known:
            raise ValueError(f"{name} has {one!r} in it, which is none of {', '.join(known)}")
    return chosen


def parse_auth(auth: Any) -> Any:
    """How clients are recognised, as it was given.

    Raises:
        TypeError: it is something else, perhaps a token or a class.
    """
    if auth is not None and (isinstance(auth, type) or not hasattr(auth, "verifier")):
        raise TypeError("auth has to be Auth(issuer=…), which says whose tokens are good")
    return auth


# --------------------------------------------------------------------- web


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
