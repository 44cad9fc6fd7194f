"""The options of a server and of serving it over HTTP: all defaults in one place, and checks of keywords.

The methods that take these keywords spell them out and read the defaults from `SERVER` and `HTTP`. A check
names the argument that is wrong, when the server is made and not when the first client comes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from toolpost.principal import Principal
from toolpost.protocol.connection import MAX_IN_FLIGHT
from toolpost.protocol.methods import DATES, Row
from toolpost.server.runtime.request import Middleware, Observer
from toolpost.threads import MAX_THREADS
from toolpost.types.base import Icon, Struct

if TYPE_CHECKING:
    from toolpost.auth.server.auth import Auth
    from toolpost.protocol.seal import KeyRing
    from toolpost.server.registry.registry import Cache, CacheableMethod
    from toolpost.stores.store import Store

MAX_DURATION: Final = 366 * 86400.0
"""Seconds of a year: the longest time that a store is asked to keep something."""

IN_MEMORY: Final = "memory://"

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What a server does before it serves and after: an async context manager, given the server."""

ListName: TypeAlias = Literal["tools", "resources", "prompts"]
"""The lists that a server may declare before they have entries."""

PrincipalOption: TypeAlias = Callable[[Any], Principal | str | Awaitable[Principal | str | None] | None]


class ServerOptions(Struct, frozen=True, kw_only=True):
    """The keywords of `Handler`, and at the end those that only `Server` has."""

    version: str = "0.0.0"
    """Of the server, not of the protocol."""
    title: str | None = None
    """For people."""
    description: str | None = None
    """For people."""
    instructions: str | None = None
    """For the model, about the server as a whole."""
    icons: list[Icon] | None = None
    """For user interfaces."""
    website_url: str | None = None
    """Where to read more."""
    lifespan: Lifespan | None = None
    """Entered before the first client is served, left after the last."""
    middleware: Iterable[Middleware] = ()
    """Wraps every request and notification, in both directions, the first one outermost."""
    revisions: Iterable[str] = DATES
    """The protocol revisions to speak."""
    declares: Iterable[ListName] = ()
    """Lists to declare although they have no entries yet."""
    max_in_flight: int = MAX_IN_FLIGHT
    """Requests of one client that may be served at once."""
    threads: int = MAX_THREADS
    """Functions that are not async that may run at once."""
    extra_methods: Iterable[Row] = ()
    """Methods that are in no revision."""
    store: "Store | str" = IN_MEMORY
    """Where data that outlasts a request is kept: a URL, or a store of your own."""
    keys: "KeyRing | None" = None
    """The keys that seal what clients bring back; random unless given."""
    answer_timeout: float = 600.0
    """Seconds that a stateless client has to come back with answers."""
    answer_once: bool = False
    """Whether a stateless client may come back with the same state only once."""
    observers: "Iterable[Observer]" = ()
    """Called at the beginning and the end of every request."""
    auth: "Auth | None" = None
    """How clients are recognised over HTTP."""
    timeout: float | None = None
    """Seconds that a tool may take, unless it has a time-out of its own."""
    page_size: int = 1000
    """Entries on a page of a list. A page costs the client a round trip and the model nothing."""
    cache: "Cache | Mapping[CacheableMethod, Cache] | None" = None
    """How long clients may keep answers: one for all, or some by method."""
    debug: bool = False
    """Whether clients are told what went wrong inside a tool."""


class HttpOptions(Struct, frozen=True, kw_only=True):
    """The keywords of serving over HTTP."""

    path: str = "/mcp"
    """Where clients of Streamable HTTP connect."""
    sse: str | None = "/sse"
    """Where clients of HTTP+SSE (2024-11-05) connect; None for nowhere. It may be the same as `path`."""
    messages: str = "/messages"
    """Where clients of HTTP+SSE post."""
    health: str | None = None
    """Where to ask whether the server is alive, such as "/health"; `/ready` below it: whether it serves."""
    public_url: str | None = None
    """Where clients reach the server, if not on this machine: allows its host and its origin."""
    allowed_hosts: Iterable[str] = ()
    """More names under which the server answers; "*" for all."""
    allowed_origins: Iterable[str] = ()
    """More origins whose web pages may call; "*" for all."""
    cors: bool | Iterable[str] = False
    """Whether browsers are told what is allowed: True, or more origins."""
    json_only: bool = False
    """Answer with plain JSON, never with an event stream; progress and log messages are left out."""
    stateless: bool = False
    """Serve clients of the session era without sessions; they cannot be asked anything then."""
    max_body: int = 4 * 1024 * 1024
    """Bytes of the largest request: pictures as base64 fit, films do not."""
    max_calls: int = 10_000
    """Requests of all clients that may be served at once."""
    max_streams: int = 20_000
    """Streams of all clients that may be open for notifications."""
    handshake: float = 30.0
    """Seconds that a client has to complete the handshake."""
    idle: float = 1800.0
    """Seconds after which an unused session ends."""
    session_life: float = 30 * 86400.0
    """Seconds for which a session may be used at all, idle or not."""
    drain: float = 5.0
    """Seconds that running requests get to finish when the server stops."""
    principal: PrincipalOption | None = None
    """Returns on whose behalf a request speaks, from its ASGI scope; for servers without `auth`."""
    workers: int = 1
    """Processes that serve."""


SERVER: Final = ServerOptions()
HTTP: Final = HttpOptions()


def collect_http_options(keywords: Mapping[str, Any]) -> HttpOptions:
    """Return the options among the arguments of a method, which has a parameter for each (its `locals()`)."""
    fields = HttpOptions.__struct_fields__
    return HttpOptions(**{name: keywords[name] for name in fields if name in keywords})


# --------------------------------------------------------------------- checks
# Of arguments that a type checker would refuse: not every user has one. So they take anything.


def check_strings(**given: Any) -> None:
    """Raise TypeError unless all arguments are strings, or None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} has to be a text, not {value!r}")


def check_counts(**given: Any) -> None:
    """Raise TypeError or ValueError unless all arguments are whole numbers, at least 1."""
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} has to be a whole number, not {value!r}")
        if value < 1:
            raise ValueError(f"{name} has to be at least 1, not {value!r}")


def check_timeouts(**given: Any) -> None:
    """Raise TypeError or ValueError unless all arguments are positive numbers of seconds, or None."""
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name} has to be a number of seconds, or None for no limit, not {value!r}")
        if not value > 0:
            raise ValueError(f"{name} has to be more than 0 seconds, or None for no limit, not {value!r}")


def check_durations(**given: Any) -> None:
    """Raise TypeError or ValueError unless all arguments are positive numbers of seconds, a year at most."""
    for name, value in given.items():
        check_timeouts(**{name: value})
        if value is None or value > MAX_DURATION:
            raise ValueError(f"{name} has to be at most {MAX_DURATION:g} seconds, not {value!r}")


def check_default(given: HttpOptions, wanted: str) -> None:
    """Raise TypeError if an option was given that has no meaning without another argument."""
    changed = [name for name in given.__struct_fields__ if getattr(given, name) != getattr(HTTP, name)]
    if changed:
        raise TypeError(f"{', '.join(changed)} only count with {wanted}=")


def parse_middleware(middleware: Any) -> list[Middleware]:
    """Return the middleware as a list. Raises TypeError if it is none, or has a class in it."""
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
    """Return the protocol revisions. Raises TypeError or ValueError unless there are known ones."""
    dates = _parse_choices(DATES, "revisions", revisions)
    if not dates:
        raise ValueError(f"revisions has to name at least one of {', '.join(DATES)}")
    return dates


def parse_declared_lists(declares: Any) -> tuple[str, ...]:
    """Return the lists to declare in any case. Raises TypeError or ValueError unless they are known ones."""
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
    """Return an `Auth`, or None. Raises TypeError for anything else, such as a token or a class."""
    if auth is not None and (isinstance(auth, type) or not hasattr(auth, "verifier")):
        raise TypeError("auth has to be Auth(issuer=…), which says whose tokens are good")
    return auth
