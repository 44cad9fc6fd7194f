"""A conversation that sleeps: as much of it as it takes to go on where it stood.

Most sessions of a server are idle. Such a one needs no task, no connection and no coroutine that waits. What
is left hears of changes in its place, and is woken by them. Knows no channel.
"""

from collections.abc import Callable
from typing import Final

from toolpost.errors import LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.runtime.change_broadcast import LIST_CHANGED, ChangeBroadcaster
from toolpost.types.base import JSON, RequestId, Struct
from toolpost.types.initialize import ClientCapabilities, Implementation, LogLevel
from toolpost.types.notifications import NotificationParams

ALIKE: Final = 256
"""Kinds of clients that are known again; behind that, all are forgotten."""

SMALL: Final = 1024
"""Bytes that such a one says of itself, at the most."""

_LISTS: Final = frozenset(LIST_CHANGED.values())


class _Client(Struct):
    """What a client has said of itself."""

    revision: str
    capabilities: ClientCapabilities | None = None
    info: Implementation | None = None


_CLIENT: Final = JSONReader(_Client)


class Rested(Struct, eq=False, kw_only=True):
    """What is left of a conversation.

    Args:
        party: what its client was promised.
        client: the client, as text: the clients of a server are of a few kinds, and share it.
        log_level: from which level on it wants to hear log messages.
        next_id: of the next question to it.
        withdrawn: requests that were cancelled, and have not come yet.
        announcer: tells of changes.
        key: by what it is woken.
        wake: called with the key when it has something to say.
        news: what has changed since, to be told when it goes on.
    """

    party: LocalPeer
    client: bytes
    log_level: LogLevel | None
    next_id: int
    withdrawn: tuple[RequestId, ...]
    announcer: ChangeBroadcaster
    key: str
    wake: Callable[[str], object]
    news: tuple[tuple[str, NotificationParams], ...] = ()

    @classmethod
    def from_connection(
        cls,
        connection: Connection,
        announcer: ChangeBroadcaster,
        key: str,
        wake: Callable[[str], object],
        *,
        known: dict[bytes, bytes],
    ) -> "Rested | None":
        """What is left of a conversation over this connection; None if something is under way.

        Args:
            connection: the way to the client.
            announcer: tells of changes.
            key: by what it is woken.
            wake: called with the key when it has something to say.
            known: what other clients have said of themselves.
        """
        peer = connection.peer
        if peer is None or not connection.is_idle:
            return None
        said: JSON = {"revision": peer.revision.date, "capabilities": peer.capabilities, "info": peer.info}
        try:
            client = jsonrpc.encode(said)
        except LocalProtocolError:  # somebody has put something there that nobody could read again
            return None
        if len(client) <= SMALL:
            if len(known) > ALIKE:
                known.clear()
            client = known.setdefault(client, client)
        return cls(
            party=connection.local_peer,
            client=client,
            log_level=connection.log_level,
            next_id=connection.next_id,
            withdrawn=tuple(connection.early_cancellations or ()),
            announcer=announcer,
            key=key,
            wake=wake,
        )

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Wake up, if the client has to be told; who sleeps watches no resource, and waits for no user."""
        if method in _LISTS:
            self.news = (*self.news, (method, params))
            self.wake(self.key)

    def end(self) -> None:
        """Hear no more: the session has ended, or goes on."""
        self.announcer.remove_subscriber(self)

    def connect(self, connection: Connection) -> None:
        """Let a fresh connection go on."""
        client = _CLIENT(self.client)
        connection.local_peer = self.party
        connection.peer = Peer(REVISIONS[client.revision], client.capabilities, client.info)
        connection.lifecycle.state = "ready"
        connection.log_level = self.log_level
        connection.next_id = self.next_id
        connection.early_cancellations = dict.fromkeys(self.withdrawn) or None
