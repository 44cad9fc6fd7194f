"""Authorization of an endpoint: the `Authenticator` protocol, missing scopes, and the published metadata.

How tokens are checked is left to `toolpost.auth`, which the composition root connects. Without an
authenticator, `principal=` of the endpoint names the principal of a request.
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

logger: Final = logging.getLogger("toolpost.http")
auth_logger: Final = logging.getLogger("toolpost.auth")

METADATA_HEADERS: Final = (
    (b"access-control-allow-origin", b"*"),  # also for clients in browsers
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"cache-control", b"public, max-age=300"),
)


class Authenticator(Protocol):
    """Checks the tokens of requests. `is_metadata_mounted` says that a framework serves the documents."""

    is_metadata_mounted: bool

    @property
    def metadata_documents(self) -> Mapping[str, bytes]:
        """The published documents about the endpoint, as JSON, by path."""
        ...

    async def authenticate(self, exchange: HttpExchange) -> Principal:
        """Return the principal of a request, and remove its credentials; raise HTTPRefusal if it has none."""
        ...

    def step_up(self, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False) -> Headers:
        """Return the headers of a 403 for missing scopes; `sse` for a client of HTTP+SSE."""
        ...


def build_step_up_headers(
    keeper: Authenticator | None, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False
) -> Headers:
    """Return the headers that say which scopes an operation needs (AUTH-51)."""
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
    """Return the scopes that an error of ours reports as missing; none for other errors."""
    if error is UNSET:
        return []
    try:
        found = _SCOPE_ERROR(error)
    except InvalidJSONValue:
        return []
    return found.data.scope.split() if found.code == MissingScopes.code and found.data is not UNSET else []


class ResourceMetadataApp:
    """An ASGI application that serves the published documents about one endpoint."""

    def __init__(self, keeper: Authenticator | None) -> None:
        self._authenticator = keeper
        self._has_warned = False

    async def send_document(self, exchange: HttpExchange, root: str = "") -> None:
        """Answer with the document at a known path."""
        assert self._authenticator is not None, "otherwise no path leads here"
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
    """Return a path without slashes at its end."""
    return path.rstrip("/") or "/"
