"""Limits on how often a server can make a client ask its user.

Owns the counts, which are forgotten after a while. What is asked, and how, is decided elsewhere.
"""

import time
from typing import Final

from toolpost.auth.client.token_endpoint import Tokens
from toolpost.errors import InsufficientScope, TokenRejected
from toolpost.redaction import has_secret

MAX_STEP_UPS: Final = 2
"""How often the same scopes are not granted (AUTH-59). With the login that makes three questions to a user at
most, who may have overlooked a tick the first time."""

MAX_FRUITLESS_GRANTS: Final = 3
"""How many grants in a row bring no accepted request: a server could invent new scopes without end."""

MAX_PROMPTS: Final = 6
"""How often a user is asked within `PROMPT_WINDOW`. Scopes that were granted and then were enough do not
count. Logins do, also if they help: a server may accept a token now, and refuse it then."""

PROMPT_WINDOW: Final = 600.0
"""Seconds for which anything is remembered."""


class PromptLimiter:
    """Counts the prompts that one server has caused."""

    def __init__(self) -> None:
        self._step_ups: dict[frozenset[str], list[float]] = {}
        self._grants: list[float] = []
        self._prompts: list[float] = []
        self._has_gained_scopes = False

    def check_step_up(self, needed: frozenset[str], tokens: Tokens) -> None:
        """Raise InsufficientScope if it would not help to ask for more scopes."""
        in_vain = len(_drop_expired(self._step_ups.get(needed, []))) >= MAX_STEP_UPS
        if needed <= {*tokens.scopes} or in_vain or len(_drop_expired(self._grants)) >= MAX_FRUITLESS_GRANTS:
            why = "the server wants scopes that the token has, or that were asked for and not granted"
            raise _make_scope_error(why, needed, tokens)

    def record_prompt(self, needed: frozenset[str], tokens: Tokens | None) -> None:
        """Count that a user is asked, for scopes or to log in; raise if that happens too often."""
        self._prompts = _drop_expired(self._prompts)
        if len(self._prompts) >= MAX_PROMPTS:
            often = (
                f"the user was asked {MAX_PROMPTS} times within {PROMPT_WINDOW / 60:g} minutes, "
                "and the server still wants"
            )
            if needed:
                raise _make_scope_error(f"{often} more scopes", needed, tokens)
            raise TokenRejected(f"{often} another token")
        self._prompts.append(time.monotonic())
        self._has_gained_scopes = False

    def record_grant(self, needed: frozenset[str], tokens: Tokens) -> None:
        """Count tokens that an authorization server has granted."""
        now = time.monotonic()
        self._grants = [*_drop_expired(self._grants), now]
        self._has_gained_scopes = bool(needed) and needed <= {*tokens.scopes}
        if needed and not self._has_gained_scopes:
            self._step_ups = {
                scopes: recent for scopes, then in self._step_ups.items() if (recent := _drop_expired(then))
            }
            self._step_ups.setdefault(needed, []).append(now)

    def record_success(self) -> None:
        """Note that a request with the new token was accepted."""
        self._grants.clear()
        if self._has_gained_scopes and self._prompts:
            self._prompts.pop()
        self._has_gained_scopes = False


def _drop_expired(times: list[float]) -> list[float]:
    now = time.monotonic()
    return [then for then in times if now - then < PROMPT_WINDOW]


def _make_scope_error(what: str, needed: frozenset[str], tokens: Tokens | None) -> InsufficientScope:
    wanted = " ".join(sorted(needed))[:200]
    if tokens is not None and has_secret(wanted, [tokens.access]):  # it may echo anything
        return InsufficientScope(what)
    return InsufficientScope(what, hint=f"it wants {wanted}; scopes=[…] asks for them from the start")
