"""The principal: the verified identity behind a request.

Owns the record that servers, transports and authorization share, and the key that identifies a principal. It
never holds a token; verification is left to `auth`.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, cast

from msgspec import Struct, json

SCOPE_PATTERN: Final = r"[\x21\x23-\x5b\x5d-\x7e]+"  # RFC 6749 §3.3; compiled when it is first needed


class Principal(Struct, frozen=True):
    """Somebody who was recognised.

    Attributes:
        subject: the user, or whoever else the credentials stand for; empty if they stand for a client alone.
        issuer: who says so: the URL of the authorization server. A subject is unique within its issuer.
        client: the software that speaks for the subject, by its client id.
        scopes: what it may do, those included that others imply.
        claims: what else is known, such as the claims of the token.

    Examples:
        >>> ann = Principal("ann", issuer="https://login.example.com", scopes=frozenset({"notes:read"}))
        >>> str(ann), "notes:read" in ann.scopes
        ('ann', True)
    """

    subject: str
    issuer: str = ""
    client: str = ""
    scopes: frozenset[str] = frozenset()
    claims: dict[str, Any] = {}

    @property
    def key(self) -> str:
        """What all requests of the same principal share, and no others: the issuer and the subject.

        A client that speaks for itself is a principal of its own, whatever its name is.
        """
        who = [self.issuer, self.subject] if self.subject else [self.issuer, None, self.client]
        return json.encode(who).decode()

    def __str__(self) -> str:
        return self.subject or self.client

    def __repr__(self) -> str:
        # Claims are left out: they may be personal, and a representation ends up in logs.
        scopes = " ".join(sorted(self.scopes))
        return (
            f"Principal({self.subject!r}, issuer={self.issuer!r}, client={self.client!r}, scopes={scopes!r})"
        )

    def __hash__(self) -> int:
        return hash(self.key)

    @classmethod
    def from_value(cls, who: "Principal | str | None") -> "Principal | None":
        """Return the principal; a string is taken as the subject, anything else is a TypeError."""
        if who is None or isinstance(who, Principal):
            return who
        if not isinstance(who, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers err
            raise TypeError(f"a principal is a text or a Principal, not a {type(who).__name__}")
        return cls(who)


def parse_scopes(given: Any) -> frozenset[str]:
    """Return the scopes given as a list or as one string with spaces; TypeError or ValueError if invalid."""
    named = given.split() if isinstance(given, str) else given
    if not isinstance(named, Iterable):
        raise TypeError(f"scopes have to be a list of texts, not {given!r}")
    found = frozenset(cast("Iterable[Any]", named))
    for each in found:
        if not isinstance(each, str):
            raise TypeError(f"scopes have {each!r} among them, which is no text")
        if re.fullmatch(SCOPE_PATTERN, each) is None:
            raise ValueError(f'{each!r} cannot be a scope: it takes visible ASCII letters but for " and \\')
    return cast("frozenset[str]", found)


def explain_no_scopes(principal: Principal | None) -> str | None:
    """Return why this principal can have no scopes at all; None if a token may give some."""
    if principal is None:
        return "the server has no auth=, and nobody was recognised"
    if principal.issuer or principal.scopes:
        return None
    return "the server has no auth=, and principal= names no scopes"
