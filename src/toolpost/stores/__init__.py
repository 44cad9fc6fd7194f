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
        ValueError: there is no such store. The message does not repeat the URL, which may hold a password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() != "memory":
        problem = "redis:// is not supported yet" if scheme == "redis" else "unknown store URL"
        raise ValueError(f"{problem} (expected: memory://)")
    if rest:
        raise ValueError("memory:// takes no path; each in-memory store is separate")
    return MemoryStore()
