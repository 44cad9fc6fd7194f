"""Whoever asks for a token before an endpoint serves a request: the promise, and how more is asked for.

How tokens are checked is not known here: it is the business of authorization, which the composition root
brings along. Without a keeper, a request speaks for whomever the `principal=` of the endpoint names.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from toolpost.errors import MissingScopes
from toolpost.principal import Principal
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.transports.exchange import Headers, HttpExchange
from toolpost.types.base import UNSET, Raw, Struct, Unset

__all__ = ["METADATA_HEADERS", "Authenticator", "build_step_up_headers", "find_missing_scopes"]

auth_logger: Final = logging.getLogger("toolpost.auth")

METADATA_HEADERS: Final = (
    (b"access-control-allow-origin", b"*"),  # it is meant for everybody, clients in browsers included
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"cache-control", b"public, max-age=300"),
)


class Authenticator(Protocol):
    """Asks for tokens.

    Attributes:
        is_metadata_mounted: whether somebody else serves what is published, who has mounted the endpoint.
    """

    is_metadata_mounted: bool

    @property
    def metadata_documents(self) -> Mapping[str, bytes]:
        """What is published about the endpoint, as JSON, by path."""
        ...

    async def authenticate(self, exchange: HttpExchange) -> Principal:
        """On whose behalf a request speaks; the credentials are taken out of it.

        Raises:
            HTTPRefusal: it does not say so well enough.
        """
        ...

    def step_up(self, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False) -> Headers:
        """What to answer with, besides 403, if an operation needs scopes that are not there.

        Args:
            scopes: those that it needs.
            principal: who asked for it.
            sse: whether that was a client of HTTP+SSE.
        """
        ...


def build_step_up_headers(
    keeper: Authenticator | None, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False
) -> Headers:
    """The headers that say which scopes an operation needs (AUTH-51)."""
    if keeper is not None:
        return keeper.step_up(scopes, principal, sse=sse)
    if principal is None:
        auth_logger.warning(
            "what needs the scopes %s cannot be had over HTTP, where nobody has any: "
            "give auth=Auth(…) to the server, or principal= to what serves it",
            " ".join(sorted(scopes)),
        )
    return [
        (
            b"www-authenticate",
            f'Bearer error="insufficient_scope", scope="{" ".join(sorted(scopes))}"'.encode(),
        )
    ]


class _ScopeErrorData(Struct):
    scope: str = ""


class _ScopeError(Struct):
    code: int
    data: _ScopeErrorData | Unset = UNSET


_SCOPE_ERROR: Final = JSONReader(_ScopeError)


def find_missing_scopes(error: Raw | Unset) -> list[str]:
    """The scopes that an error of ours says are missing; none if it is about something else."""
    if error is UNSET:
        return []
    try:
        told = _SCOPE_ERROR(error)
    except InvalidJSONValue:
        return []
    return told.data.scope.split() if told.code == MissingScopes.code and told.data is not UNSET else []
