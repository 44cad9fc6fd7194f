"""From a URL to a store.

Owns the table of schemes. Repeats no URL, not even in an error: there may be a password in it.
"""

from collections.abc import Callable
from typing import Final

from toolpost.stores.memory import MemoryStore
from toolpost.stores.store import Store


def _open_memory(rest: str) -> Store:
    if rest:
        raise ValueError("memory:// takes nothing behind it; each store in memory is one of its own")
    return MemoryStore()


STORE_SCHEMES: Final[dict[str, Callable[[str], Store]]] = {"memory": _open_memory}


def open_store(url: str) -> Store:
    """The store at this URL, such as `memory://`; in memory, a new one each time. Nothing is connected yet.

    Raises:
        ValueError: there is no such store; the text says what there is.
    """
    scheme, separator, rest = url.partition("://")
    opener = STORE_SCHEMES.get(scheme.lower()) if separator else None
    if opener is None:
        what = "a store at redis:// is not there yet" if scheme == "redis" else "no store has a URL like this"
        raise ValueError(f"{what}; there is: {', '.join(f'{known}://' for known in STORE_SCHEMES)}")
    return opener(rest)
