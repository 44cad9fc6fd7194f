"""Asking by returning (2026-07-28): a result that wants input, and the retry that brings it.

An ask inside a result and an answer inside a retry stay undecoded here: which types they have depends on
the method that was asked.
"""

from msgspec import UNSET, Raw

from toolpost.types.base import Params, Result, Unset, WireStruct

__all__ = ["InputRequest", "InputRequiredResult", "InputResponseParams"]


class InputRequest(WireStruct):
    """An ask inside a result: the method and its parameters."""

    method: str
    params: Raw | Unset = UNSET


class InputRequiredResult(Result):
    """The server needs answers before it can go on; the client retries with them."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


class InputResponseParams(Params, kw_only=True):
    """The parameters of a request that may be a retry with answers."""

    input_responses: dict[str, Raw] | None = None
    request_state: str | None = None
