"""Sessions that sleep, and how many stay awake.

Owns when there are too many that are awake: more may be, as long as those who sleep are soon woken. Knows
neither stores nor conversations.
"""

from contextvars import Context
from typing import Final

from toolpost.principal import Principal
from toolpost.server.http.session import SleepingConversation
from toolpost.types.base import Struct

AWAKE: Final = 64
"""Sessions that stay awake in any case; one that sleeps takes less memory."""

LOOKS: Final = 4
"""How many are looked at for one that may sleep, each time that another one wakes up or is opened."""


class SessionRecord(Struct, frozen=True, omit_defaults=True):
    """What every worker knows of a session: who holds it, whose it is, how it is reached, what is spoken."""

    worker: str
    principal: str = ""
    scopes: frozenset[str] = frozenset()
    """What a request has to be allowed, or it cannot be one of this session."""
    single: bool = False
    revision: str = ""


class Sleeper(Struct, eq=False):
    """A session that sleeps on this worker."""

    id: str
    owner: str
    record: SessionRecord
    talk: SleepingConversation
    answered: tuple[str, ...]
    principal: Principal | None
    context: Context
    used: float
    noted: float

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return False


class Bedtime:
    """How many sessions stay awake.

    To wake one up takes as long as a few calls. So each that is woken makes room for one more, and with time
    there is less room again: those who are used by turns are awake after their first turn.
    """

    __slots__ = ("_most", "limit")

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(AWAKE, most)

    def note_wake(self) -> None:
        """One of them was woken."""
        self.limit = min(self.limit + 1, self._most)

    def shrink(self) -> None:
        """Some time has passed."""
        self.limit = max(min(AWAKE, self._most), self.limit - self.limit // 8)
