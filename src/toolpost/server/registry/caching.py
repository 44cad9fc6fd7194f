"""Cache hints: how long clients may keep a result, and whether others may share it.

`Cache` is what an author writes; `apply_cache` puts it on results. `protocol.eras` removes it for revisions
that do not have it. Nothing is cached here.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from toolpost.types.base import Result
from toolpost.types.initialize import CacheableResult

MAX_TTL: Final = (2**53 - 1) / 1000
"""Seconds; in milliseconds the largest integer that every JSON implementation reads as the same number."""

CacheScope: TypeAlias = Literal["public", "private"]

CacheableMethod: TypeAlias = Literal[
    "*",
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
]
"""The methods whose results clients may keep, and "*" for all others of them."""

_ANY_METHOD: Final = "*"
_CACHEABLE_METHODS: Final[tuple[str, ...]] = tuple(
    method for method in get_args(CacheableMethod) if method != _ANY_METHOD
)

R = TypeVar("R", bound=Result)


class Cache(Struct, frozen=True):
    """How long clients may keep a result. A notification that it has changed ends that time at once.

    Attributes:
        ttl: seconds; 0 means that they ask again each time.
        scope: "private" if the result is for one client, "public" if it may be shared with any other.

    Raises:
        TypeError: the time is not a number.
        ValueError: it is negative or infinite, or the scope is unknown.

    Examples:
        >>> server = Server("almanac", cache={"tools/list": Cache(3600, scope="public"), "*": Cache(60)})
    """

    ttl: float
    scope: CacheScope = "private"

    def __post_init__(self) -> None:
        ttl: Any = self.ttl
        if not isinstance(ttl, int | float) or isinstance(ttl, bool):
            raise TypeError(f"ttl has to be a number of seconds, not {ttl!r}")
        if not 0 <= ttl < inf:
            raise ValueError(f"ttl has to be 0 seconds or more, and not for ever, not {ttl!r}")
        if ttl > MAX_TTL:
            raise ValueError(f"ttl has to be at most {MAX_TTL:.0f} seconds, not {ttl!r}")
        if self.scope not in get_args(CacheScope):
            raise ValueError(f'scope has to be "public" or "private", not {self.scope!r}')

    @property
    def ttl_ms(self) -> int:
        """The time in milliseconds, as clients get it."""
        return round(self.ttl * 1000)

    def as_private(self) -> "Cache":
        """Return a private one with the same time."""
        return Cache(self.ttl)


def check_cache(cache: Any) -> None:
    """Raise TypeError unless an argument is a `Cache`, or None."""
    if cache is not None and not isinstance(cache, Cache):
        raise TypeError(f"cache has to be a Cache, such as Cache(ttl=60), not {cache!r}")


def expand_cache_option(cache: Any) -> dict[str, Cache]:
    """Return the `cache` option of a server by method. Raises TypeError or ValueError."""
    if isinstance(cache, Mapping):
        given = cast("Mapping[Any, Any]", cache)
        for method, one in given.items():
            if method not in get_args(CacheableMethod):
                raise ValueError(
                    f"cache has {method!r} in it, which is none of {', '.join(get_args(CacheableMethod))}"
                )
            if not isinstance(one, Cache):
                raise TypeError(f"cache[{method!r}] has to be a Cache, such as Cache(ttl=60), not {one!r}")
        named: dict[str, Cache | None] = {
            method: given.get(method, given.get(_ANY_METHOD)) for method in _CACHEABLE_METHODS
        }
    else:
        check_cache(cache)
        named = dict.fromkeys(_CACHEABLE_METHODS, cache)
    return {method: one for method, one in named.items() if one is not None}


def apply_cache(result: R, cache: Cache | None) -> R:
    """Return the result with a cache hint, unless it has one, or cannot have one."""
    if cache is None or not isinstance(result, CacheableResult):
        return result
    if result.ttl_ms is not None or result.cache_scope is not None:
        return result
    return replace(result, ttl_ms=cache.ttl_ms, cache_scope=cache.scope)
