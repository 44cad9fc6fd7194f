"""Authorization of an endpoint: tokens of requests, missing scopes, and the published metadata.

How tokens are checked is left to `toolpost.auth`. Without an authenticator, `principal=` of the endpoint
names the principal of a request.
"""

import logging
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from toolpost.auth.server.admission import AccessDenied, Admission, LogThrottle
from toolpost.auth.server.auth import resolve_resource_url
from toolpost.auth.urls import RESOURCE_METADATA_PATH
from toolpost.errors import MissingScopes
from toolpost.principal import Principal
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.server.handler import Handler
from toolpost.server.http.request import ASGIReceive, ASGIScope, ASGISend, Headers, HttpExchange
from toolpost.server.http.security import HTTPRefusal
from toolpost.server.options import HttpOptions
from toolpost.types.base import UNSET, Raw, Struct, Unset

logger: Final = logging.getLogger("toolpost.http")
auth_logger: Final = logging.getLogger("toolpost.auth")

METADATA_HEADERS: Final = (
    (b"access-control-allow-origin", b"*"),  # also for clients in browsers
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"cache-control", b"public, max-age=300"),
)


class Authenticator:
    """Checks the tokens of requests, for the resource URL that tokens name.

    `bare` says that the path of that URL is a guess, because only a host was given. `is_metadata_mounted`
    says that a framework serves the published documents.
    """

    def __init__(self, admission: Admission, resource: str, path: str, *, bare: bool) -> None:
        self._admission = admission
        self._resource = resource
        self._path = path
        self._is_path_guessed = bare
        self._has_warned = False
        self._log_throttle = LogThrottle()
        self.is_metadata_mounted = False
        self.metadata_documents = admission.metadata_documents
        self.step_up = admission.step_up

    async def authenticate(self, exchange: HttpExchange) -> Principal:
        """Return the principal of a request, and remove its credentials (AUTH-71)."""
        if exchange.root:
            self._warn_once(exchange.root)
        if exchange.root and self._is_path_guessed:
            raise HTTPRefusal(500, "The server does not know its own URL; its log tells what to do.")
        try:
            principal = await self._admission.admit(exchange.method, exchange.path, exchange.headers)
        except AccessDenied as denial:
            if denial.why:
                level = logging.WARNING if self._log_throttle.should_log(denial.why) else logging.INFO
                auth_logger.log(level, "%s %s is refused: %s", exchange.method, exchange.path, denial.why)
            raise HTTPRefusal(denial.status, denial.message, denial.headers) from None
        exchange.headers = {
            name: value for name, value in exchange.headers.items() if name not in {"authorization", "dpop"}
        }
        return principal

    def _warn_once(self, root: str) -> None:
        """Warn about the settings of a mounted server, which are known with the first request only."""
        if self._has_warned:
            return
        self._has_warned = True
        here, named = (root.rstrip("/") + self._path).rstrip("/"), urlsplit(self._resource).path.rstrip("/")
        if self._is_path_guessed:
            auth_logger.error(
                "the server is mounted at %s, but its tokens are for %s: nobody is let in; "
                "give public_url= with the whole path, or Auth(resource=…)",
                root,
                self._resource,
            )
        elif not named.endswith(here) and not here.startswith(f"{named}/"):
            auth_logger.warning(
                "the server is mounted at %s, so that its path is %s, but its tokens are for %s: unless a "
                "proxy in front of it changes paths, nobody is let in; give public_url= with the whole path",
                root,
                here,
                self._resource,
            )
        elif not self.is_metadata_mounted:
            auth_logger.warning(
                "the server is mounted at %s, and nobody answers at %s, where clients look for its issuer: "
                'mount app.metadata, too: Mount("%s", app.metadata)',
                root,
                next(iter(self.metadata_documents)),
                RESOURCE_METADATA_PATH,
            )


def make_authenticator(handler: Handler, settings: HttpOptions) -> Authenticator | None:
    """Return what checks tokens; None if the server wants none."""
    auth = handler.auth
    if auth is None:
        return None
    if settings.principal is not None:
        raise ValueError("principal= and auth= both say on whose behalf a request speaks; give one")
    path, sse = settings.path.rstrip("/") or "/", (settings.sse or "").rstrip("/")
    apart = sse not in {"", path} and handler.local_peer.has_sessions and not settings.stateless
    resource = resolve_resource_url(auth, settings.public_url, path)
    bare = auth.resource is None and urlsplit(settings.public_url or "").path in {"", "/"}
    admission = Admission(
        auth,
        resource,
        path,
        lambda: handler.store.records,
        keys=lambda: handler.request_states.get_keys(),  # noqa: PLW0108 - workers are prepared later, which makes the keys
        sse=(sse, settings.messages.rstrip("/")) if apart else (),
    )
    return Authenticator(admission, resource, path, bare=bare)


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
