"""A list that clients can read: entries in the order they came, pages with sealed cursors, answers as bytes.

Owns order, names, pages and the cached answers, and says when it has changed. What an entry does is the
entry's business; who is told of a change is the announcer's.
"""

import functools
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, Generic, ParamSpec, TypeVar

from toolpost.errors import InvalidParams, SealBroken
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import ERAS
from toolpost.protocol.events import Incoming
from toolpost.protocol.seal import KeyRing
from toolpost.types.base import Raw
from toolpost.types.lifecycle import Page

__all__ = ["PAGE_SIZE", "Catalogue", "Handle"]

PAGE_SIZE: Final = 1000
"""Entries on a page. Most lists have one page: a page costs the client a round trip and the model nothing."""


P = ParamSpec("P")
R = TypeVar("R")


class Handle(Generic[P, R]):
    """A function that stands in a catalogue: call it as before, or change how it is served.

    Every change is told to the clients by itself.
    """

    enabled: bool = True
    __name__: str

    def __init__(self, name: str, fn: Callable[P, R], home: "Catalogue[Any]") -> None:
        self.name = name
        self.fn = fn
        self._home = home
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function itself returns; nothing of the protocol is involved."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def shown(self, structured: str | None) -> Any:
        """How it stands in the list, for peers that take structured output of this kind."""
        raise NotImplementedError

    def enable(self) -> None:
        """Serve it again."""
        if not self.enabled:
            self.enabled = True
            self._home.touch()

    def disable(self) -> None:
        """Serve it no longer, and show it in no list, until it is enabled."""
        if self.enabled:
            self.enabled = False
            self._home.touch()

    def remove(self) -> None:
        """Take it out for good."""
        self._home.remove(self.name)


E = TypeVar("E", bound=Handle[..., Any])


class Catalogue(Generic[E]):
    """Entries by name, in a stable order.

    Args:
        what: "tools", "prompts", …: for messages and for the audience of cursors.
        page: makes the result of a page from its items and the next cursor.
        changed: called after every change.
        keys: gives the keys that cursors are sealed with, when they are first needed.
        size: entries on a page.
    """

    def __init__(
        self,
        what: str,
        page: Callable[[list[Any], str | None], Page],
        changed: Callable[[], None],
        keys: Callable[[], KeyRing],
        size: int = PAGE_SIZE,
    ) -> None:
        self.what = what
        self._page = page
        self._changed = changed
        self._keys = keys
        self._size = size
        self._entries: dict[str, tuple[int, E]] = {}
        self._serial = 0
        self._answers: dict[tuple[str, int], Raw] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[E]:
        return (entry for _, entry in self._entries.values())

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def used(self) -> bool:
        """Whether there was ever an entry. What was declared once stays so, be the list empty by now."""
        return self._serial > 0

    def get(self, name: str) -> E | None:
        """The entry of this name, if there is one and it is enabled."""
        found = self._entries.get(name)
        return found[1] if found is not None and found[1].enabled else None

    def add(self, name: str, entry: E) -> None:
        """Put an entry at the end.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._entries:
            raise ValueError(
                f"{name!r} is among the {self.what} already; remove it first, or choose another name"
            )
        self._serial += 1
        self._entries[name] = (self._serial, entry)
        self.touch()

    def remove(self, name: str) -> None:
        """Take an entry out; one that is gone already stays gone."""
        if self._entries.pop(name, None) is not None:
            self.touch()

    def touch(self) -> None:
        """Forget the cached answers and say that something has changed."""
        self._answers.clear()
        self._changed()

    def page(self, connection: Connection, incoming: Incoming, cursor: str | None) -> Raw:
        """The answer to a list request, stamped for the peer that sent it.

        Raises:
            InvalidParams: the cursor is none of ours (PAGE-7).
        """
        after = 0 if cursor is None else self._open(connection, cursor)
        revision = incoming.peer.revision
        key = (revision.date, after)
        answer = self._answers.get(key)
        if answer is None:
            items = (
                (serial, entry)
                for serial, entry in self._entries.values()
                if serial > after and entry.enabled
            )
            page = list(islice(items, self._size))
            more = next(items, None) is not None
            result = self._page(
                [entry.shown(revision.structured) for _, entry in page],
                self._seal(connection, page[-1][0]) if more else None,
            )
            stamped = ERAS[revision.era].stamp_result(connection, incoming, result)
            answer = self._answers[key] = Raw(jsonrpc.encode(stamped))
        return answer

    def _audience(self, connection: Connection) -> str:
        return f"cursor of {self.what} of {connection.party.info.name}"

    def _seal(self, connection: Connection, serial: int) -> str:
        return self._keys().seal(str(serial).encode(), audience=self._audience(connection))

    def _open(self, connection: Connection, cursor: str) -> int:
        try:
            return int(self._keys().open(cursor, audience=self._audience(connection), now=0))
        except SealBroken as error:
            raise InvalidParams(
                "Invalid params: the cursor is not valid here; start again without one"
            ) from error
