"""Things under keys that go when their time is over, with no task that watches them.

Owns time to live: what has expired is taken away when somebody asks for it, or by and by as others are put
down. Knows nothing of what the things are.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import Final, Generic, TypeVar

__all__ = ["ExpiringDict"]

T = TypeVar("T")

SWEEP_COUNT: Final = 2
"""How many things each `put` looks at: one for the new one, and one so that what has expired gets fewer."""


class ExpiringDict(Generic[T]):
    """Things that expire.

    Args:
        clock: the time in seconds, which never goes back.
        gone: is called with each thing that has expired or is removed.
    """

    def __init__(self, clock: Callable[[], float], gone: Callable[[T], None] | None = None) -> None:
        self._clock = clock
        self._on_removed = gone
        self._items: OrderedDict[str, tuple[T, float]] = (
            OrderedDict()
        )  # what is at the front is looked at next

    def __iter__(self) -> Iterator[T]:
        """All things, those among them whose time is over."""
        return (thing for thing, _ in self._items.values())

    def get(self, key: str) -> T | None:
        """The thing; None where there is none or its time is over."""
        held = self._items.get(key)
        if held is not None and held[1] <= self._clock():
            self._pop(key)
            return None
        return held and held[0]

    def put(self, key: str, thing: T, ttl: float | None) -> None:
        """Hold the thing for so many seconds, or for ever.

        Raises:
            ValueError: the time to live is not finite or not more than 0.
        """
        if ttl is not None and not 0 < ttl < inf:
            raise ValueError(f"ttl is {ttl}; give seconds, more than 0, or None for no end")
        now = self._clock()
        self._items[key] = (thing, inf if ttl is None else now + ttl)
        for other in list(islice(self._items, SWEEP_COUNT)):
            if self._items[other][1] <= now:
                self._pop(other)
            else:
                self._items.move_to_end(other)

    def touch(self, key: str, ttl: float | None) -> bool:
        """Whether the thing is there; it is held for so many seconds from now on.

        Raises:
            ValueError: as for `put`.
        """
        thing = self.get(key)
        if thing is None:
            return False
        self.put(key, thing, ttl)
        return True

    def remove(self, key: str) -> bool:
        """Whether the thing was there; it is gone now."""
        if self.get(key) is None:
            return False
        self._pop(key)
        return True

    def _pop(self, key: str) -> None:
        thing, _ = self._items.pop(key)
        if self._on_removed is not None:
            self._on_removed(thing)
