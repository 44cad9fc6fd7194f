"""How often tokens were asked for, and whether they may be asked for once more.

Owns the limits that keep a server from having a user asked for ever. Whatever is counted is forgotten after a
while. What is asked, and how, is not known here.
"""

import time
from typing import Final

from toolpost.auth.client.token_endpoint import Tokens
from toolpost.errors import AuthError, InsufficientScope, TokenRejected
from toolpost.redaction import has_secret

MAX_STEP_UPS: Final = 2
"""How often the same scopes are not granted (AUTH-59). With the login that makes three questions to a user at
most, who may have overlooked a tick the first time."""

MAX_FRUITLESS_GRANTS: Final = 3
"""How many grants in a row bring nothing that goes through: a server could otherwise think of ever new
scopes, and have the user asked for each."""

MAX_PROMPTS: Final = 6
"""How often a user is asked within `PROMPT_WINDOW`. More scopes
that were granted and then were enough do not count: a server has as many as it has. Logins do, also if they
help: a server may take a token now, and refuse it then."""

PROMPT_WINDOW: Final = 600.0
"""Seconds for which anything is remembered."""


class PromptLimiter:
    """The questions that one server has caused."""

    def __init__(self) -> None:
        self._step_ups: dict[frozenset[str], list[float]] = {}
        self._grants: list[float] = []
        self._prompts: list[float] = []
        self._has_gained_scopes = False

    def check_step_up(self, needed: frozenset[str], tokens: Tokens) -> None:
        """Return if it may help to ask for more scopes."""
        in_vain = len(_drop_expired(self._step_ups.get(needed, []))) >= MAX_STEP_UPS
        if needed <= {*tokens.scopes} or in_vain or len(_drop_expired(self._grants)) >= MAX_FRUITLESS_GRANTS:
            raise _make_scope_error(
                "the server wants scopes that the token has, or that were asked for and not granted",
                needed,
                tokens,
            )

    def record_prompt(self, needed: frozenset[str], tokens: Tokens | None) -> None:
        """A user is asked."""
        self._prompts = _drop_expired(self._prompts)
        if len(self._prompts) >= MAX_PROMPTS:
            raise _make_limit_error(needed, tokens)
        self._prompts.append(time.monotonic())
        self._has_gained_scopes = False

    def record_grant(self, needed: frozenset[str], tokens: Tokens) -> None:
        """The authorization server has answered with tokens."""
        now = time.monotonic()
        self._grants = [*_drop_expired(self._grants), now]
        self._has_gained_scopes = bool(needed) and needed <= {*tokens.scopes}
        if needed and not self._has_gained_scopes:
            self._step_ups = {
                scopes: recent for scopes, then in self._step_ups.items() if (recent := _drop_expired(then))
            }
            self._step_ups.setdefault(needed, []).append(now)

    def record_success(self) -> None:
        """A request with the new token was not refused."""
        self._grants.clear()
        if self._has_gained_scopes and self._prompts:
            self._prompts.pop()
        self._has_gained_scopes = False


def _drop_expired(times: list[float]) -> list[float]:
    now = time.monotonic()
    return [then for then in times if now - then < PROMPT_WINDOW]


def _make_limit_error(needed: frozenset[str], tokens: Tokens | None) -> AuthError:
    often = f"the user was asked {MAX_PROMPTS} times within {PROMPT_WINDOW / 60:g} minutes, "
    often += "and the server still wants "
    if needed:
        return _make_scope_error(f"{often}more scopes", needed, tokens)
    return TokenRejected(f"{often}another token")


def _make_scope_error(what: str, needed: frozenset[str], tokens: Tokens | None) -> InsufficientScope:
    wanted = " ".join(sorted(needed))[:200]
    if tokens is not None and has_secret(wanted, [tokens.access]):  # it may echo anything
        return InsufficientScope(what)
    return InsufficientScope(what, hint=f"it wants {wanted}; scopes=[…] asks for them from the start")
