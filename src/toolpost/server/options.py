"""The options of a server and of serving it over HTTP: all defaults in one place, and checks of keywords.

The methods with these keywords spell them out and read the defaults from `SERVER` and `HTTP`. The checks run
when the server is made, and name the invalid argument.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast

import msgspec

from toolpost.errors import suggest
from toolpost.principal import Principal
from toolpost.protocol.connection import MAX_IN_FLIGHT
from toolpost.protocol.extension import Extension
from toolpost.protocol.local_peer import check_icons
from toolpost.protocol.methods import DATES
from toolpost.server.runtime.dispatch import HANDSHAKE_TIMEOUT, Middleware, Observer
from toolpost.threads import MAX_THREADS
from toolpost.types.base import Icon, Struct

if TYPE_CHECKING:
    from toolpost.auth.server.auth import Auth
    from toolpost.protocol.seal import KeyRing
    from toolpost.server.registry.registry import Cache, CacheableMethod
    from toolpost.stores.store import Store

T = TypeVar("T", bound=Struct)

MAX_DURATION: Final = 366 * 86400.0
"""Seconds of a year: the longest time for which a store keeps a record."""

IN_MEMORY: Final = "memory://"

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""Returns an async context manager around the time in which a server serves."""

ListName: TypeAlias = Literal["tools", "resources", "prompts"]
"""The lists that a server may declare before they have entries."""

PrincipalOption: TypeAlias = Callable[[Any], Principal | str | Awaitable[Principal | str | None] | None]


class HandlerOptions(Struct, frozen=True, kw_only=True):
    """The keywords of `Handler`, which describes them."""

    version: str = "0.0.0"
    title: str | None = None
    description: str | None = None
    instructions: str | None = None
    icons: list[Icon] | None = None
    website_url: str | None = None
    lifespan: Lifespan | None = None
    middleware: Iterable[Middleware] = ()
    revisions: Iterable[str] = DATES
    declares: Iterable[ListName] = ()
    max_in_flight: int = MAX_IN_FLIGHT
    threads: int = MAX_THREADS
    notification_rate: float = 100.0  # more than any display can show
    extensions: Iterable[Extension] = ()
    store: "Store | str" = IN_MEMORY
    keys: "KeyRing | None" = None
    answer_timeout: float = 600.0
    answer_once: bool = False
    observers: "Iterable[Observer]" = ()
    auth: "Auth | None" = None


class ServerOptions(HandlerOptions, frozen=True, kw_only=True):
    """The keywords of `Server`: those of `Handler`, and some more."""

    timeout: float | None = None
    # A page costs the client a round trip and the model nothing.
    page_size: int = 1000
    cache: "Cache | Mapping[CacheableMethod, Cache] | None" = None
    debug: bool = False
    inline_refs: bool = True
    strict_arguments: bool = False


class HttpOptions(Struct, frozen=True, kw_only=True):
    """The keywords of serving over HTTP, which `asgi` describes."""

    path: str = "/mcp"
    sse: str | None = "/sse"
    messages: str = "/messages"
    health: str | None = None
    require_store: bool = False
    public_url: str | None = None
    allowed_hosts: Iterable[str] = ()
    allowed_origins: Iterable[str] = ()
    cors: bool | Iterable[str] = False
    json_only: bool = False
    stateless: bool = False
    # Large enough for images in base64, too small for video.
    max_body: int = 4 * 1024 * 1024
    max_calls: int = 10_000
    max_streams: int = 20_000
    handshake: float = HANDSHAKE_TIMEOUT
    idle: float = 1800.0
    session_life: float = 30 * 86400.0
    drain: float = 5.0
    principal: PrincipalOption | None = None
    workers: int = 1


SERVER: Final = ServerOptions()
HTTP: Final = HttpOptions()


def collect_options(kind: type[Struct], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a kind among the `locals()` of a method."""
    return {name: keywords[name] for name in kind.__struct_fields__ if name in keywords}


# --------------------------------------------------------------------- checks
# For users without a type checker: each function accepts any value.


def check_strings(**given: Any) -> None:
    """Raise TypeError unless all arguments are strings, or None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} must be a string, not {value!r}")


def parse_icons(icons: Any) -> list[Icon] | None:
    """Return icons, which may be dicts. Raises TypeError or ValueError for one that clients would refuse."""
    if isinstance(icons, list):
        given = cast("list[Any]", icons)
        icons = [parse_hints(Icon, "icons", icon) if isinstance(icon, Mapping) else icon for icon in given]
    check_icons(icons)
    return icons


def parse_hints(kind: type[T], name: str, value: Any) -> T:
    """Return annotations or an icon. A dict may spell its keys as Python or as the protocol does.

    Raises TypeError, with the `name` of the argument, for an unknown key or a value of another type.
    """
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        spellings = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
        value = {spellings.get(key, key): given[key] for key in given}
        unknown = next((key for key in value if key not in spellings.values()), None)
        if unknown is not None:
            raise TypeError(f"{name}: unknown key {unknown!r}{suggest(str(unknown), spellings)}")
    elif not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}(…), not {value!r}")
    try:
        return msgspec.convert(msgspec.to_builtins(value), kind)
    except msgspec.ValidationError as error:
        raise TypeError(f"{name}: {error}") from None


def check_counts(**given: Any) -> None:
    """Raise TypeError or ValueError unless all arguments are whole numbers, at least 1."""
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an integer, not {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value!r}")


def check_rates(**given: Any) -> None:
    """Raise TypeError or ValueError unless all arguments are positive numbers per second."""
    for name, value in given.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number per second, not {value!r}")
        if not value > 0:
            raise ValueError(f"{name} must be more than 0 per second, not {value!r}")


def check_timeouts(**given: Any) -> None:
    """Raise TypeError or ValueError unless all arguments are positive numbers of seconds, or None."""
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number of seconds, or None for no limit, not {value!r}")
        if not value > 0:
            raise ValueError(f"{name} must be more than 0 seconds, or None for no limit, not {value!r}")


def check_durations(**given: Any) -> None:
    """Raise TypeError or ValueError unless all arguments are positive numbers of seconds, a year at most."""
    for name, value in given.items():
        check_timeouts(**{name: value})
        if value is None or value > MAX_DURATION:
            raise ValueError(f"{name} must be at most {MAX_DURATION:g} seconds, not {value!r}")


def parse_middleware(middleware: Any) -> list[Middleware]:
    """Return the middleware as a list. Raises TypeError if it is not a list of callables."""
    wanted = "an `async def` that takes (call, next), or a callable object like that"
    if not isinstance(middleware, Iterable):
        raise TypeError(f"middleware must be a list, not {middleware!r}")
    given = list(cast("Iterable[Any]", middleware))
    for layer in given:
        if isinstance(layer, type):
            raise TypeError(f"middleware must be an instance, not a class: use {layer.__name__}(…)")
        if not callable(layer):
            raise TypeError(f"invalid middleware {layer!r}: expected {wanted}")
    return given


def parse_revisions(revisions: Any) -> tuple[str, ...]:
    """Return the protocol revisions. Raises TypeError or ValueError unless there are known ones."""
    dates = parse_choices(DATES, "revisions", revisions)
    if not dates:
        raise ValueError(f"revisions must contain at least one of {', '.join(DATES)}")
    return dates


def parse_choices(known: Sequence[str], name: str, given: Any) -> tuple[str, ...]:
    """Return a list of known choices. Raises TypeError or ValueError for anything else."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must be a list, such as [{known[0]!r}], not {given!r}")
    chosen = tuple(cast("Iterable[Any]", given))
    for one in chosen:
        if one not in known:
            raise ValueError(f"{name}: unknown value {one!r} (expected one of: {', '.join(known)})")
    return chosen


def parse_auth(auth: Any) -> Any:
    """Return an `Auth`, or None. Raises TypeError for anything else, such as a token or a class."""
    if auth is not None and (isinstance(auth, type) or not hasattr(auth, "verifier")):
        raise TypeError("auth must be an Auth, such as Auth(issuer=…)")
    return auth


def parse_items(name: str, given: Any, is_valid: Callable[[Any], bool], expected: str) -> tuple[Any, ...]:
    """Return the items of an option. Raises TypeError, with its name, if one is not as expected."""
    items = tuple(given)
    for item in items:
        if not is_valid(item):
            raise TypeError(f"{name} contains {item!r}; expected {expected}")
    return items


def parse_tags(tags: Any) -> frozenset[str]:
    """Return tags as a set. Raises TypeError unless they are strings."""
    if isinstance(tags, str):
        raise TypeError(f"tags must be a list, such as [{tags!r}], not a string")
    return frozenset(parse_items("tags", tags, lambda each: isinstance(each, str), "a string"))


def parse_keys(keys: Any) -> Any:
    """Return a `KeyRing`, or None. Raises TypeError for anything else, such as a string."""
    if keys is not None and not hasattr(keys, "seal"):
        raise TypeError(
            f"keys must be a KeyRing, not {type(keys).__name__}: KeyRing([secrets.token_bytes(32)])"
        )
    return keys
