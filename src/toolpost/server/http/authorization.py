"""Authorization of an endpoint: tokens of requests, missing scopes, and the published metadata.

`toolpost.auth` checks the tokens. Without an authenticator, `principal=` of the endpoint
names the principal of a request.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from toolpost.auth.server.auth import Auth, resolve_resource_url
from toolpost.auth.server.protected_resource import AccessDenied, Admission, LogThrottle
from toolpost.auth.urls import RESOURCE_METADATA_PATH
from toolpost.principal import Principal
from toolpost.server.handler import Handler
from toolpost.server.http.exchange import ASGIReceive, ASGIScope, ASGISend, Headers, HttpExchange, HTTPRefusal
from toolpost.server.http.sessions import has_sessions
from toolpost.server.options import HttpOptions

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

    `is_metadata_mounted` is whether a framework serves the published documents.
    """

    def __init__(self, handler: Handler, auth: Auth, settings: HttpOptions) -> None:
        path, sse = strip_trailing_slash(settings.path), (settings.sse or "").rstrip("/")
        has_sse_path = sse not in {"", path} and has_sessions(handler, settings)
        self._path = path
        self._resource = resolve_resource_url(auth, settings.public_url, path)
        has_path = urlsplit(settings.public_url or "").path not in {"", "/"}
        self._is_path_guessed = auth.resource is None and not has_path
        self._admission = Admission(
            auth,
            self._resource,
            path,
            lambda: handler.store.records,
            keys=lambda: handler.request_states.get_keys(),  # noqa: PLW0108 - workers are prepared later, which makes the keys
            sse=(sse, settings.messages.rstrip("/")) if has_sse_path else (),
        )
        self._has_warned = False
        self._log_throttle = LogThrottle()
        self.is_metadata_mounted = False
        self.metadata_documents = self._admission.metadata_documents
        self.step_up = self._admission.step_up

    async def authenticate(self, exchange: HttpExchange) -> Principal:
        """Return the principal of a request, and remove its credentials (AUTH-71)."""
        root, sent = exchange.root, exchange.raw_headers
        if root:
            self._warn_once(root)
            if self._is_path_guessed:
                raise HTTPRefusal(500, "The server does not know its own URL; see the server log.")
        token, proof = sent.pop(b"authorization", b""), sent.pop(b"dpop", None)
        try:
            return await self._admission.admit(exchange.method, exchange.path, token, proof)
        except AccessDenied as denial:
            if denial.why:
                level = logging.WARNING if self._log_throttle.should_log(denial.why) else logging.INFO
                auth_logger.log(level, "%s %.200s rejected: %s", exchange.method, exchange.path, denial.why)
            raise HTTPRefusal(denial.status, denial.message, denial.headers) from None

    def _warn_once(self, root: str) -> None:
        """Warn about the settings of a mounted server: its path is known with the first request only."""
        if self._has_warned:
            return
        self._has_warned = True
        here, named = (root.rstrip("/") + self._path).rstrip("/"), urlsplit(self._resource).path.rstrip("/")
        if self._is_path_guessed:
            auth_logger.error(
                "the server is mounted at %s, but expects tokens for %s, so it rejects all requests; "
                "set public_url= with the full path, or Auth(resource=…)",
                root,
                self._resource,
            )
        elif not named.endswith(here) and not here.startswith(f"{named}/"):
            auth_logger.warning(
                "the server is mounted at %s, so its path is %s, but it expects tokens for %s: unless a "
                "proxy rewrites paths, it rejects all requests; set public_url= with the full path",
                root,
                here,
                self._resource,
            )
        elif not self.is_metadata_mounted:
            auth_logger.warning(
                "the server is mounted at %s, but clients find no metadata at %s; "
                'also mount app.metadata: Mount("%s", app.metadata)',
                root,
                next(iter(self.metadata_documents)),
                RESOURCE_METADATA_PATH,
            )


def build_step_up_headers(
    checker: Authenticator | None, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False
) -> Headers:
    """Return the headers that name the scopes which an operation needs (AUTH-51)."""
    if checker is not None:
        return checker.step_up(scopes, principal, sse=sse)
    shown = " ".join(sorted(scopes))
    if principal is None:
        auth_logger.warning(
            "an operation requires the scopes %s, but HTTP requests have no principal: "
            "pass auth=Auth(…) to the server, or principal= to the HTTP app",
            shown,
        )
    return [(b"www-authenticate", f'Bearer error="insufficient_scope", scope="{shown}"'.encode())]


class ResourceMetadataApp:
    """An ASGI application that serves the published documents about one endpoint."""

    def __init__(self, documents: Mapping[str, bytes]) -> None:
        self._documents = documents
        self._has_warned = False

    async def __call__(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            await self.serve(HttpExchange(scope, receive, send))

    async def serve(self, exchange: HttpExchange) -> None:
        """Serve the document at a path, relative to the endpoint or to the root of the site."""
        whole = exchange.root + exchange.path
        known = self._documents
        document = known.get(strip_trailing_slash(exchange.path)) or known.get(strip_trailing_slash(whole))
        if document is None:
            if known and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "app.metadata got a request for %.200r, but serves only %s; with several servers, "
                    "mount the metadata of each at its own path, such as %s",
                    whole,
                    ", ".join(known),
                    next(iter(known)),
                )
            await exchange.respond(404, HTTPRefusal(404, "No metadata is published at this path.").body)
        elif exchange.method == "OPTIONS":
            await exchange.respond(204, headers=METADATA_HEADERS)
        elif exchange.method in {"GET", "HEAD"}:
            await exchange.respond(200, document, METADATA_HEADERS)
        else:
            await exchange.respond(405, headers=[(b"allow", b"GET, HEAD, OPTIONS")])


def strip_trailing_slash(path: str) -> str:
    """Return a path without slashes at its end."""
    return path.rstrip("/") or "/"
