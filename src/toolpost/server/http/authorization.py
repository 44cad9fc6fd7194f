"""Whoever asks for a token before an endpoint serves a request: the promise, and how more is asked for.

How tokens are checked is not known here: it is the business of authorization, which the composition root
brings along. Without a keeper, a request speaks for whomever the `principal=` of the endpoint names.

PART http_metadata: What is published for clients that need a token: an ASGI application of its own, for who
mounts both.

Owns how the documents of a keeper are served. Knows nothing of messages.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from toolpost.errors import MissingScopes
from toolpost.principal import Principal
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.server.http.request import ASGIReceive, ASGIScope, ASGISend, Headers, HttpExchange
from toolpost.server.http.security import HTTPRefusal
from toolpost.types.base import UNSET, Raw, Struct, Unset

auth_logger: Final = logging.getLogger("toolpost.auth")

METADATA_HEADERS: Final = (
    (b"access-control-allow-origin", b"*"),  # it is meant for everybody, clients in browsers included
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"cache-control", b"public, max-age=300"),
)


class Authenticator(Protocol):
    """Asks for tokens."""

    is_metadata_mounted: bool

    @property
    def metadata_documents(self) -> Mapping[str, bytes]:
        """What is published about the endpoint, as JSON, by path."""
        ...

    async def authenticate(self, exchange: HttpExchange) -> Principal:
        """On whose behalf a request speaks; the credentials are taken out of it."""
        ...

    def step_up(self, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False) -> Headers:
        """What to answer with, besides 403, if an operation needs scopes that are not there."""
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


# --------------------------------------------------------------------- http_metadata

logger: Final = logging.getLogger("toolpost.http")


class ResourceMetadataApp:
    """The documents about one endpoint."""

    def __init__(self, keeper: Authenticator | None) -> None:
        self._authenticator = keeper
        self._has_warned = False

    async def send_document(self, exchange: HttpExchange, root: str = "") -> None:
        """Answer with the document at a path, which there is."""
        assert self._authenticator is not None, "there is no path to it otherwise"
        if exchange.method == "OPTIONS":
            await exchange.send_empty(204, METADATA_HEADERS)
        else:
            document = self._authenticator.metadata_documents[strip_trailing_slash(root + exchange.path)]
            await exchange.send_json(200, document, METADATA_HEADERS)

    async def __call__(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        exchange, keeper = HttpExchange(scope, receive, send), self._authenticator
        if (
            keeper is None
            or strip_trailing_slash(exchange.root + exchange.path) not in keeper.metadata_documents
        ):
            if keeper is not None and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "app.metadata was asked for %.200r, but has %s: if that is about another server, "
                    "mount the metadata of each below its own path, such as %s",
                    exchange.root + exchange.path,
                    ", ".join(keeper.metadata_documents),
                    next(iter(keeper.metadata_documents)),
                )
            await exchange.send_json(404, HTTPRefusal(404, "There is nothing published at this path.").body)
        elif exchange.method in {"GET", "HEAD", "OPTIONS"}:
            await self.send_document(exchange, exchange.root)
        else:
            await exchange.send_empty(405, [(b"allow", b"GET, HEAD, OPTIONS")])


def strip_trailing_slash(path: str) -> str:
    """A path without what stands behind its last part."""
    return path.rstrip("/") or "/"
