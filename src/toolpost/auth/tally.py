"""How often tokens were asked for, and whether they may be asked for once more.

Owns the limits that keep a server from having a user asked for ever. Whatever is counted is forgotten after a
while. What is asked, and how, is not known here.
"""

import time
from typing import Final

from toolpost.auth.tokens import Tokens
from toolpost.errors import AuthError, InsufficientScope, TokenRejected
from toolpost.secret import repeats

__all__ = ["MAX_WINDOWS", "Tally"]

MAX_STEPS: Final = 2
"""How often the same scopes are not granted (AUTH-59). With the login that makes three questions to a user at
most, who may have overlooked a tick the first time."""

MAX_GRANTS: Final = 3
"""How many grants in a row bring nothing that goes through: a server could otherwise think of ever new
scopes, and have the user asked for each."""

MAX_WINDOWS: Final = 6
"""How often a user is asked within `SPAN`. More scopes that were granted and then were enough do not count: a
server has as many as it has. Logins do, also if they help: a server may take a token now, and refuse it
then."""

SPAN: Final = 600.0
"""Seconds for which anything is remembered."""


class Tally:
    """The questions that one server has caused."""

    def __init__(self) -> None:
        self._steps: dict[frozenset[str], list[float]] = {}
        self._grants: list[float] = []
        self._windows: list[float] = []
        self._gained = False

    def check_step(self, needed: frozenset[str], tokens: Tokens) -> None:
        """Return if it may help to ask for more scopes.

        Args:
            needed: what the server wants.
            tokens: what it has refused.

        Raises:
            InsufficientScope: it would not.
        """
        in_vain = len(_recent(self._steps.get(needed, []))) >= MAX_STEPS
        if needed <= {*tokens.scopes} or in_vain or len(_recent(self._grants)) >= MAX_GRANTS:
            raise _insufficient(
                "the server wants scopes that the token has, or that were asked for and not granted",
                needed,
                tokens,
            )

    def question(self, needed: frozenset[str], tokens: Tokens | None) -> None:
        """A user is asked.

        Args:
            needed: the scopes that it is about; none for a login.
            tokens: what the server has refused.

        Raises:
            InsufficientScope: they were asked too often, and now it is about more scopes.
            TokenRejected: … and it is about a login.
        """
        self._windows = _recent(self._windows)
        if len(self._windows) >= MAX_WINDOWS:
            raise _too_often(needed, tokens)
        self._windows.append(time.monotonic())
        self._gained = False

    def granted(self, needed: frozenset[str], tokens: Tokens) -> None:
        """The authorization server has answered with tokens.

        Args:
            needed: the scopes that it was about; none for a login.
            tokens: what it gave.
        """
        now = time.monotonic()
        self._grants = [*_recent(self._grants), now]
        self._gained = bool(needed) and needed <= {*tokens.scopes}
        if needed and not self._gained:
            self._steps = {
                scopes: recent for scopes, then in self._steps.items() if (recent := _recent(then))
            }
            self._steps.setdefault(needed, []).append(now)

    def went_through(self) -> None:
        """A request with the new token was not refused."""
        self._grants.clear()
        if self._gained and self._windows:
            self._windows.pop()
        self._gained = False


def _recent(times: list[float]) -> list[float]:
    now = time.monotonic()
    return [then for then in times if now - then < SPAN]


def _too_often(needed: frozenset[str], tokens: Tokens | None) -> AuthError:
    often = (
        f"the user was asked {MAX_WINDOWS} times within {SPAN / 60:g} minutes, and the server still wants "
    )
    if needed:
        return _insufficient(f"{often}more scopes", needed, tokens)
    return TokenRejected(f"{often}another token")


def _insufficient(what: str, needed: frozenset[str], tokens: Tokens | None) -> InsufficientScope:
    wanted = " ".join(sorted(needed))[:200]
    if tokens is not None and repeats(wanted, [tokens.access]):  # it may echo anything
        return InsufficientScope(what)
    return InsufficientScope(what, hint=f"it wants {wanted}; scopes=[…] asks for them from the start")
