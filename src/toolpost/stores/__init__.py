"""Where state lives that outlasts one request: one promise, opened by one URL.

`promise` says what a store does, `memory` keeps it in this process. Whoever uses a store imports the promise
only, so that the same code runs on one worker in memory or on many over a shared store.
"""

from toolpost.stores.memory import MemoryStore
from toolpost.stores.store import LogEntry, LogGap, LogStore, RecordStore, Store, TopicGap, TopicStore
from toolpost.stores.urls import open_store

__all__ = [
    "LogEntry",
    "LogGap",
    "LogStore",
    "MemoryStore",
    "RecordStore",
    "Store",
    "TopicGap",
    "TopicStore",
    "open_store",
]
