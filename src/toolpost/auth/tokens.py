"""What a client is given by an authorization server and keeps: tokens, and a registration.

Owns the records and how they are written down. None of them shows a secret when it is printed.
"""

import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from toolpost.auth.challenge import split_scopes
from toolpost.auth.signing import DPOP_ALGORITHM, is_private_key
from toolpost.errors import AuthError
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader

__all__ = [
    "REFRESH_MARGIN",
    "Registration",
    "ServerRecord",
    "Tokens",
    "decode_record",
    "encode_record",
    "is_token",
    "parse_token_response",
]

REFRESH_MARGIN: Final = 30.0
"""Seconds before its end from which on a token is refreshed: clocks differ, and a request takes time. For a
token that does not last long it is a quarter of its life."""

MAX_TOKEN_LENGTH: Final = 64 * 1024
"""Characters of a token: no header carries more."""

_TOKEN_TYPES: Final = frozenset({"bearer", "dpop"})

S = TypeVar("S", bound=msgspec.Struct)


class _SecretRecord(msgspec.Struct, frozen=True):
    """A record that holds secrets: printed, it shows its kind only."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[Any]:
        return []


class Tokens(_SecretRecord, frozen=True):
    """The tokens for one resource.

    Attributes:
        access: the access token.
        kind: "bearer" or "dpop".
        expires_at: when it ends, in seconds since 1970; None if nobody knows.
        early: how many seconds before that it is refreshed.
        refresh: what gets the next one; None if there is nothing.
        scopes: what it is good for, as far as known.
        asked: the scopes that were asked for, all steps together (AUTH-56).
        key: the private key that the token is bound to, as a JWK; None if it is bound to none.
    """

    access: str
    kind: str = "bearer"
    expires_at: float | None = None
    early: float = REFRESH_MARGIN
    refresh: str | None = None
    scopes: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    key: dict[str, str] | None = None

    @property
    def is_expired(self) -> bool:
        """Whether it is over."""
        return self.expires_at is not None and time.time() >= self.expires_at

    def is_stale(self, now: float | None = None) -> bool:
        """Whether it has ended, or is about to."""
        if self.expires_at is None:
            return False
        return (time.time() if now is None else now) >= self.expires_at - self.early


class Registration(_SecretRecord, frozen=True):
    """Who we are at one authorization server (AUTH-29).

    Attributes:
        issuer: the authorization server.
        client_id: what it calls us.
        client_secret: what only we know; None for a public client.
        method: how we prove who we are at its token endpoint; None if that was not agreed.
        redirect_uri: where it sends users back to; None if that was not agreed.
        expires_at: when the secret ends, in seconds since 1970; None if never.
        dynamic: whether it was made by us, and can be made anew.
    """

    issuer: str
    client_id: str
    client_secret: str | None = None
    method: str | None = None
    redirect_uri: str | None = None
    expires_at: float | None = None
    dynamic: bool = False


class ServerRecord(msgspec.Struct, frozen=True):
    """What is known about a server from the last time: the name of its tokens, and who issues them."""

    resource: str
    issuer: str
    published: bool = True


_RECORD_READERS: Final[dict[type[Any], JSONReader[Any]]] = {
    kind: JSONReader(kind) for kind in (Tokens, Registration, ServerRecord)
}


def encode_record(record: msgspec.Struct) -> str:
    """A record as text."""
    return msgspec.json.encode(record).decode()


def decode_record(text: str, kind: type[S]) -> S | None:
    """The record that a text is; None if it is none, or tokens that cannot be used.

    Raises:
        AuthError: tokens are bound to a key, and the library for it is not installed.
    """
    try:
        record: S = _RECORD_READERS[kind](text.encode())
    except InvalidJSONValue:
        return None
    return None if isinstance(record, Tokens) and not _is_usable(record) else record


def _is_usable(tokens: Tokens) -> bool:
    """Whether tokens that were kept are whole."""
    if not is_token(tokens.access) or (tokens.refresh is not None and not is_token(tokens.refresh)):
        return False
    if tokens.key is None:
        return tokens.kind == "bearer"
    return tokens.kind in _TOKEN_TYPES and is_private_key(tokens.key, DPOP_ALGORITHM)


def is_token(text: str) -> bool:
    """Whether a header can carry a text as a token, and a form."""
    return 0 < len(text) <= MAX_TOKEN_LENGTH and text.isascii() and text.isprintable() and " " not in text


class _TokenResponse(msgspec.Struct):
    access_token: str
    token_type: str
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


def parse_token_response(
    document: Mapping[str, Any] | None, asked: tuple[str, ...], before: Tokens | None
) -> Tokens:
    """The tokens in an answer of a token endpoint.

    Args:
        document: the answer.
        asked: the scopes that were asked for.
        before: the tokens that were refreshed; what is not said anew stays as it was.

    Raises:
        AuthError: it is no such answer. The text repeats nothing of it.
    """
    try:
        said = msgspec.convert(document, _TokenResponse)
    except msgspec.ValidationError as error:  # which tells of types and places, not of values
        raise AuthError(
            f"the authorization server answered with something that is no token: {error}"
        ) from None
    kind = said.token_type.lower()
    if kind not in _TOKEN_TYPES:
        raise AuthError("the authorization server issued a token of a kind that we cannot use")
    for token in (said.access_token, said.refresh_token or None):
        if token is not None and not is_token(token):
            raise AuthError("the authorization server issued a token that no header can carry")
    granted = None if said.scope is None else split_scopes(said.scope)
    if granted is None:
        granted = asked if before is None else before.scopes
    seconds = _parse_expires_in(said.expires_in)
    return Tokens(
        access=said.access_token,
        kind=kind,
        expires_at=None if seconds is None else time.time() + seconds,
        early=REFRESH_MARGIN if seconds is None else min(REFRESH_MARGIN, seconds / 4),
        refresh=said.refresh_token or (None if before is None else before.refresh),
        scopes=granted,
        asked=asked,
        key=None if before is None else before.key,
    )


def _parse_expires_in(expires_in: float | str | None) -> float | None:
    """How long a token lasts; some servers write that as text, and some write nonsense."""
    try:
        seconds = None if expires_in is None else float(expires_in)
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds < 1e10 else None
