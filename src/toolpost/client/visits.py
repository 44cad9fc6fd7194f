"""The pages that the user was asked to visit, and that a server may say are done with (2025-11-25).

Owns the ids of those under way on one connection, so that a word about any other is ignored (ELIC-17). What a
page is about, and what is done when the user is back, is not known here.
"""

from typing import Final

from toolpost.errors import MCPError, UrlElicitationRequired
from toolpost.types.asks import ElicitParams, ElicitResult
from toolpost.types.notices import ElicitationCompleteParams

__all__ = ["MAX_URL_ELICITATIONS", "UrlElicitations"]

MAX_URL_ELICITATIONS: Final = 1000
"""How many may be under way: a server that asks for more than a user could visit must not fill the memory.
The oldest is forgotten."""


class UrlElicitations:
    """What is under way."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def record_request(self, params: object) -> None:
        """The server asks for a visit; it may be over before we have told that the user agrees."""
        if isinstance(params, ElicitParams) and params.mode == "url" and params.elicitation_id is not None:
            self._add(params.elicitation_id)

    def record_answer(self, params: object, result: object) -> None:
        """The user has answered; if they do not go, nothing is under way."""
        if (
            isinstance(params, ElicitParams)
            and isinstance(result, ElicitResult)
            and result.action != "accept"
            and params.elicitation_id is not None
        ):
            self._ids.pop(params.elicitation_id, None)

    def record_error(self, error: MCPError) -> None:
        """A request was refused until the user has been somewhere (ELIC-18)."""
        if isinstance(error, UrlElicitationRequired):
            for elicitation in error.elicitations:
                if "elicitationId" in elicitation:
                    self._add(elicitation["elicitationId"])

    def is_expected(self, params: object) -> bool:
        """Whether a notice is to be told: it does not say that a visit is over, or it is one under way."""
        if not isinstance(params, ElicitationCompleteParams):
            return True
        known = params.elicitation_id in self._ids
        self._ids.pop(params.elicitation_id, None)
        return known

    def _add(self, elicitation_id: str) -> None:
        if len(self._ids) >= MAX_URL_ELICITATIONS:
            del self._ids[next(iter(self._ids))]
        self._ids[elicitation_id] = None
