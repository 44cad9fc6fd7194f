"""Stores: state that outlasts one request, behind one interface, opened by a URL.

`store` has the interface, `memory` keeps the state in this process. Users of a store import the interface
only, so that the same code runs on one worker in memory or on many over a shared store.
"""

from toolpost.stores.memory import MemoryStore
from toolpost.stores.store import LogEntry, LogGap, LogStore, Receive, RecordStore, Store

__all__ = ["LogEntry", "LogGap", "LogStore", "MemoryStore", "Receive", "RecordStore", "Store", "open_store"]


def open_store(url: str) -> Store:
    """Return the store at this URL, such as `memory://`, a new one each time. Nothing is connected yet.

    Raises:
        ValueError: there is no such store. The text does not repeat the URL, which may hold a password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() != "memory":
        what = "a store at redis:// is not there yet" if scheme == "redis" else "no store has a URL like this"
        raise ValueError(f"{what}; there is: memory://")
    if rest:
        raise ValueError("memory:// takes nothing behind it; each store in memory is one of its own")
    return MemoryStore()
