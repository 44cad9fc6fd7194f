"""Stores: state that outlasts one request, behind one interface, opened by a URL.

`store` has the interface, `memory` keeps the state in this process. Users of a store import the interface
only, so that the same code runs on one worker in memory or on many over a shared store.
"""

from toolpost.stores.memory import MemoryStore
from toolpost.stores.store import LogEntry, LogGap, LogStore, QueueStore, Receive, RecordStore, Store

REDIS_SCHEMES = ("redis", "rediss", "redis+sentinel", "redis+cluster")

__all__ = [
    "LogEntry",
    "LogGap",
    "LogStore",
    "MemoryStore",
    "QueueStore",
    "Receive",
    "RecordStore",
    "Store",
    "open_store",
]


def open_store(url: str, name: str = "") -> Store:
    """Return the store at this URL, a new one each time. Nothing is connected yet.

    Args:
        url: `memory://`, or the URL of a `RedisStore`.
        name: the server's name; servers with this name share the data of a Redis store.

    Raises:
        ValueError: there is no such store. The message does not repeat the URL, which may hold a password.
        MCPError: a library is not installed.
    """
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower() if separator else ""
    if scheme in REDIS_SCHEMES:
        from toolpost.stores.redis_store import RedisStore  # noqa: PLC0415 - optional

        return RedisStore(url, name)
    if scheme != "memory":
        expected = ", ".join(f"{each}://" for each in ("memory", *REDIS_SCHEMES))
        raise ValueError(f"the URL of a store must start with one of {expected}")
    if rest:
        raise ValueError("memory:// takes no path; each in-memory store is separate")
    return MemoryStore()
