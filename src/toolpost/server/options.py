"""The keywords that every kind of server takes, stated once for those who hand them on; and their checks.

What each means is told in `Handler`, whose constructor has them one by one. The checks say which argument is
wrong, and say it at once: otherwise the first client would be the one to learn of it.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, cast, get_args

from toolpost.protocol.methods import DATES, Row
from toolpost.server.dispatch import Middleware
from toolpost.types.base import Icon

if TYPE_CHECKING:
    from toolpost.auth.resource import Auth
    from toolpost.protocol.seal import KeyRing
    from toolpost.stores.promise import Store

__all__ = [
    "Lifespan",
    "ListName",
    "ServerOptions",
    "check_counts",
    "check_durations",
    "check_strings",
    "check_timeouts",
    "parse_auth",
    "parse_declared_lists",
    "parse_middleware",
    "parse_revisions",
]

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
