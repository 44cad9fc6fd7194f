"""Hibernation of idle sessions: a small snapshot of the conversation, to be resumed later.

The snapshot subscribes to changes in place of the conversation, and wakes it. Knows no channel.
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
"""Client descriptions that are shared; beyond that, all are forgotten."""

SMALL: Final = 1024
"""Bytes of a description that is shared, at most."""

_LISTS: Final = frozenset(LIST_CHANGED.values())


class _Client(Struct):
    """The description that a client has given of itself."""

    revision: str
    capabilities: ClientCapabilities | None = None
    info: Implementation | None = None


_CLIENT: Final = JSONReader(_Client)


class Rested(Struct, eq=False, kw_only=True):
    """The snapshot of a conversation."""

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
        """Return the snapshot of a conversation, or None if it is busy."""
        peer = connection.peer
        if peer is None or not connection.is_idle:
            return None
        said: JSON = {"revision": peer.revision.date, "capabilities": peer.capabilities, "info": peer.info}
        try:
            client = jsonrpc.encode(said)
        except LocalProtocolError:  # something was put there that JSON cannot hold
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
        """Wake the conversation if a list has changed: it has no subscriptions or elicitations."""
        if method in _LISTS:
            self.news = (*self.news, (method, params))
            self.wake(self.key)

    def end(self) -> None:
        """Unsubscribe: the session has ended, or is resumed."""
        self.announcer.remove_subscriber(self)

    def connect(self, connection: Connection) -> None:
        """Restore the state in a fresh connection."""
        client = _CLIENT(self.client)
        connection.local_peer = self.party
        connection.peer = Peer(REVISIONS[client.revision], client.capabilities, client.info)
        connection.lifecycle.state = "ready"
        connection.log_level = self.log_level
        connection.next_id = self.next_id
        connection.early_cancellations = dict.fromkeys(self.withdrawn) or None
