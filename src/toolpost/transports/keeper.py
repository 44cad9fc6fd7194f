"""Whoever asks for a token before an endpoint serves a request: the promise, and how more is asked for.

How tokens are checked is not known here: it is the business of authorization, which the composition root
brings along. Without a keeper, a request speaks for whomever the `principal=` of the endpoint names.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from toolpost.errors import MissingScopes
from toolpost.principal import Principal
from toolpost.protocol.jsonrpc import Reader, Unfit
from toolpost.transports.exchange import Exchange, Headers
from toolpost.types.base import UNSET, Raw, Struct, Unset

__all__ = ["METADATA_HEADERS", "Keeper", "lacking", "step_up"]

logger: Final = logging.getLogger("toolpost.auth")

METADATA_HEADERS: Final = (
    (b"access-control-allow-origin", b"*"),  # it is meant for everybody, clients in browsers included
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"cache-control", b"public, max-age=300"),
)


class Keeper(Protocol):
    """Asks for tokens.

    Attributes:
        placed: whether somebody else serves what is published, who has mounted the endpoint.
    """

    placed: bool

    @property
    def published(self) -> Mapping[str, bytes]:
        """What is published about the endpoint, as JSON, by path."""
        ...

    async def admit(self, exchange: Exchange) -> Principal:
        """On whose behalf a request speaks; the credentials are taken out of it.

        Raises:
            Refusal: it does not say so well enough.
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


def step_up(
    keeper: Keeper | None, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False
) -> Headers:
    """The headers that say which scopes an operation needs (AUTH-51)."""
    if keeper is not None:
        return keeper.step_up(scopes, principal, sse=sse)
    if principal is None:
        logger.warning(
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


class _Data(Struct):
    scope: str = ""


class _Error(Struct):
    code: int
    data: _Data | Unset = UNSET


_ERROR: Final = Reader(_Error)


def lacking(error: Raw | Unset) -> list[str]:
    """The scopes that an error of ours says are missing; none if it is about something else."""
    if error is UNSET:
        return []
    try:
        told = _ERROR(error)
    except Unfit:
        return []
    return told.data.scope.split() if told.code == MissingScopes.code and told.data is not UNSET else []
