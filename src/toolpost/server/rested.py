"""A conversation that sleeps: as much of it as it takes to go on where it stood.

Most sessions of a server are idle. Such a one needs no task, no connection and no coroutine that waits. What
is left hears of changes in its place, and is woken by them. Knows no channel.
"""

from collections.abc import Callable
from typing import Final

from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.party import Party
from toolpost.server.notify import LIST_CHANGED, Announcer
from toolpost.types.base import Struct
from toolpost.types.lifecycle import LogLevel
from toolpost.types.notices import NoticeParams

__all__ = ["Rested"]

ALIKE: Final = 256
"""Kinds of clients that are known again; behind that, all are forgotten."""

_LISTS: Final = frozenset(LIST_CHANGED.values())


class Rested(Struct, eq=False, kw_only=True):
    """What is left of a conversation.

    Args:
        party: what its client was promised.
        peer: the client.
        log_level: from which level on it wants to hear log messages.
        next_id: of the next question to it.
        announcer: tells of changes.
        key: by what it is woken.
        wake: called with the key when it has something to say.
        news: what has changed since, to be told when it goes on.
    """

    party: Party
    peer: Peer
    log_level: LogLevel | None
    next_id: int
    announcer: Announcer
    key: str
    wake: Callable[[str], object]
    news: tuple[tuple[str, NoticeParams], ...] = ()

    @staticmethod
    def alike(peer: Peer, known: dict[bytes, Peer]) -> Peer:
        """The peer, or one that says the same of itself: the clients of a server are of a few kinds."""
        if len(known) > ALIKE:
            known.clear()
        said = jsonrpc.encode([peer.revision.date, peer.capabilities, peer.info, peer.log_level])
        return known.setdefault(said, peer)

    def hear(self, method: str, params: NoticeParams) -> None:
        """Wake up, if the client has to be told; who sleeps watches no resource, and waits for no user."""
        if method in _LISTS:
            self.news = (*self.news, (method, params))
            self.wake(self.key)

    def end(self) -> None:
        """Hear no more: the session has ended, or goes on."""
        self.announcer.leave(self)

    def connect(self, connection: Connection) -> None:
        """Let a fresh connection go on."""
        connection.party = self.party
        connection.peer = self.peer
        connection.lifecycle.state = "ready"
        connection.log_level = self.log_level
        connection.next_id = self.next_id
