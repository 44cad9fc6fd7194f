"""The sessions that one worker holds, each for its owner, and which of them makes room for another.

Owns the order in which they were used and how many anybody may have: who opens many pushes out their own, and
those of others only if they have no idle one and less than their share. Nobody pushes out a busy one.
Knows a session only by its id, and by whether it is busy.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

__all__ = ["SessionLimit", "TooManySessions"]

PRINCIPAL_SHARE: Final = 4
"""One principal may have a quarter of all sessions: with fewer than that many others are never shut out."""


class TooManySessions(Exception):
    """There is no room for another session.

    Args:
        own: whether it is the same principal's calls that take it.
    """

    def __init__(self, *, own: bool) -> None:
        super().__init__("all sessions that could make room are busy")
        self.own = own


class LimitedSession(Protocol):
    """A session, as far as it matters here."""

    id: str
    owner: str

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        ...


class SessionLimit:
    """Who makes room, if there are too many.

    Args:
        most: sessions in all.
    """

    def __init__(self, most: int) -> None:
        self._max_sessions = most
        self._share = -(-most // PRINCIPAL_SHARE)
        # In both, those that were used last are at the end.
        self._all: OrderedDict[str, LimitedSession] = OrderedDict()
        self._owned: dict[str, OrderedDict[str, LimitedSession]] = {}

    def add(self, session: LimitedSession) -> None:
        """Remember a session, which is in use."""
        self._all[session.id] = session
        self._owned.setdefault(session.owner, OrderedDict())[session.id] = session

    def replace(self, session: LimitedSession) -> None:
        """Remember a session in place of what it was before, with the same id."""
        self._all[session.id] = session
        self._owned[session.owner][session.id] = session

    def use(self, session: LimitedSession) -> None:
        """Note that a session is in use."""
        self._all.move_to_end(session.id)
        self._owned[session.owner].move_to_end(session.id)

    def remove(self, session: LimitedSession) -> None:
        """Forget a session, which has ended."""
        del self._all[session.id]
        own = self._owned[session.owner]
        del own[session.id]
        if not own:
            del self._owned[session.owner]

    def find_session_to_evict(self, owner: str) -> str | None:
        """The id of the session that has to end before this owner can open another; None if none has to.

        It is the one that was idle for longest: of the owner's own, and only if they have none such, and have
        not got their share, of all. Those whom nobody knows share the empty name, and have no share: they
        may all be one, or each another one.

        Raises:
            TooManySessions: whoever could make room is busy.
        """
        own = self._owned.get(owner) or OrderedDict[str, LimitedSession]()
        over = owner != "" and len(own) >= self._share
        if not over and len(self._all) < self._max_sessions:
            return None
        session = _find_idle(own.values()) or (None if over else _find_idle(self._all.values()))
        if session is None:
            raise TooManySessions(own=over)
        return session.id


def _find_idle(sessions: Iterable[LimitedSession]) -> LimitedSession | None:
    return next((session for session in sessions if not session.is_busy), None)
