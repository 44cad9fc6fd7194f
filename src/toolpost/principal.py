"""The principal: the verified identity behind a request.

Servers, transports and authorization share the record. It never holds a token; `auth` verifies tokens.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache, partial
from typing import Any, Final, cast

from msgspec import Struct, json

_SCOPE_PATTERN: Final = r"[\x21\x23-\x5b\x5d-\x7e]+"  # RFC 6749 §3.3; compiled when it is first needed
_match_scope: Final = lru_cache(256)(partial(re.fullmatch, _SCOPE_PATTERN))


class Principal(Struct, frozen=True):
    """The verified identity behind a request.

    Attributes:
        subject: the user or service; empty if a client acts for itself.
        issuer: the URL of the authorization server. A subject is unique within its issuer.
        client: the id of the client that acts for the subject.
        scopes: the granted scopes, with those that they imply.
        claims: other facts, such as the claims of the token.
        token_source: returns the token of the user's provider, for `upstream_token`.

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
    token_source: Callable[[], Awaitable[str]] | None = None

    async def upstream_token(self) -> str:
        """Return the access token that the login provider issued to this server for the user.

        It is renewed if it has expired. Raises MCPError if the login has ended at the provider, and
        RuntimeError without a provider that has `expose_token=True`.
        """
        if self.token_source is None:
            raise RuntimeError(
                "there is no token of a login provider: pass expose_token=True to that of Auth(provider=…)"
            )
        return await self.token_source()

    @property
    def key(self) -> str:
        """The unique key of a principal: issuer and subject.

        A client that acts for itself never has the key of a user, even with the same name.
        """
        parts = [self.issuer, self.subject] if self.subject else [self.issuer, None, self.client]
        return json.encode(parts).decode()

    def __str__(self) -> str:
        return self.subject or self.client

    def __repr__(self) -> str:
        # Without claims: they may be personal, and a `repr` ends up in logs.
        scopes = " ".join(sorted(self.scopes))
        return (
            f"Principal({self.subject!r}, issuer={self.issuer!r}, client={self.client!r}, scopes={scopes!r})"
        )

    def __hash__(self) -> int:
        return hash(self.key)

    @classmethod
    def from_value(cls, value: "Principal | str | None") -> "Principal | None":
        """Return a principal; a string is its subject. Raises TypeError for other types."""
        if isinstance(value, str):
            return cls(value)
        if value is None or isinstance(value, Principal):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers err
            return value
        raise TypeError(f"principal must be a string or a Principal, not {type(value).__name__}")


def parse_scopes(given: Any) -> frozenset[str]:
    """Return scopes given as a list or as a string with spaces; TypeError or ValueError if invalid."""
    return frozenset(list_scopes(given))


def list_scopes(given: Any) -> tuple[str, ...]:
    """Return the scopes that `parse_scopes` returns, in order, each once."""
    named = given.split() if isinstance(given, str) else given
    if not hasattr(named, "__iter__"):
        raise TypeError(f"scopes must be a list of strings, not {given!r}")
    found = tuple(dict.fromkeys(cast("Iterable[Any]", named)))
    for each in found:
        if not isinstance(each, str):
            raise TypeError(f"scopes must be a list of strings, not {each!r}")
        if not _match_scope(each):
            raise ValueError(f'{each!r} is not a valid scope: use visible ASCII characters except " and \\')
    return found


def find_scopes(text: str) -> tuple[str, ...]:
    """Return the valid scopes in a string of a peer, each once."""
    return tuple(dict.fromkeys(filter(_match_scope, text.split(" "))))


def explain_no_scopes(principal: Principal | None) -> str | None:
    """Return why this principal cannot have scopes; None if a token may give some."""
    if principal is None:
        return "the server has no auth=, and the request is not authenticated"
    if principal.issuer or principal.scopes:
        return None
    return "the server has no auth=, and principal= has no scopes"
