"""How often tokens were asked for, and whether they may be asked for once more.

Owns the limits that keep a server from having a user asked for ever. What is asked, and how, is not known
here.
"""

import time
from typing import Final

from toolpost.auth.tokens import Tokens
from toolpost.errors import InsufficientScope, TokenRejected

__all__ = ["MAX_WINDOWS", "Tally"]

MAX_STEPS: Final = 2
"""How often the same scopes are asked for because of a refusal (AUTH-59). With the login that makes three
questions to a user at most, who may have overlooked a tick the first time."""

MAX_QUESTIONS: Final = 3
"""How often a grant is asked for in a row without a request that goes through: a server could otherwise think
of ever new scopes, and have the user asked for each."""

MAX_WINDOWS: Final = 6
"""How often a user is asked within `WINDOW_SPAN`, whatever goes through in between."""

WINDOW_SPAN: Final = 600.0
"""Seconds for which a question to the user is remembered."""


class Tally:
    """The questions that one server has caused."""

    def __init__(self) -> None:
        self._steps: dict[frozenset[str], int] = {}
        self._questions = 0
        self._windows: list[float] = []

    def went_through(self) -> None:
        """A request with the new token was not refused."""
        self._questions = 0

    def check_step(self, needed: frozenset[str], tokens: Tokens) -> None:
        """Return if it may help to ask for more scopes.

        Args:
            needed: what the server wants.
            tokens: what it has refused.

        Raises:
            InsufficientScope: it would not.
        """
        in_vain = self._steps.get(needed, 0) >= MAX_STEPS or self._questions >= MAX_QUESTIONS
        if needed <= {*tokens.scopes} or in_vain:
            wanted = " ".join(sorted(needed))
            raise InsufficientScope(
                "the server wants scopes that the token has, or that were asked for and not granted",
                hint=None if tokens.access in wanted else f"it wants {wanted[:200]}",  # it may echo anything
            )

    def step(self, needed: frozenset[str]) -> None:
        """These scopes are asked for."""
        self._steps[needed] = self._steps.get(needed, 0) + 1

    def question(self, *, asks_user: bool) -> None:
        """A grant is asked for.

        Args:
            asks_user: whether that bothers a person.

        Raises:
            TokenRejected: a server that takes a token now, and refuses it then, has them asked all the time.
        """
        self._questions += 1
        if not asks_user:
            return
        now = time.monotonic()
        self._windows = [then for then in self._windows if now - then < WINDOW_SPAN]
        if len(self._windows) >= MAX_WINDOWS:
            raise TokenRejected(
                f"the user was asked {MAX_WINDOWS} times within {WINDOW_SPAN / 60:g} minutes, and the server "
                "still wants another token"
            )
        self._windows.append(now)
