"""Checks of HTTP requests before their message is served: host, origin, media types, and a readable body.

Each refusal says what is wrong and what to set. Knows nothing of sessions or servers.
"""

import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from toolpost.errors import InvalidRequest, RemoteProtocolError
from toolpost.protocol import allowed_hosts as allowed_hosts_module
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.jsonrpc import JSONRPCMessage
from toolpost.server.http.request import Headers, HttpExchange

logger: Final = logging.getLogger("toolpost.http")

MAX_HEADERS: Final = 64 * 1024  # bytes of all headers together: as many as ASGI servers with a limit pass on
MAX_CACHED_ORIGINS: Final = 1000  # how many allowed pairs of host and origin are remembered
MAX_CACHED_ORIGIN_LENGTH: Final = 600  # characters of such a pair: two names of 255, with schemes and ports
MAX_LOGGED_REFUSALS: Final = 100  # requests with many names must not fill the log
RETRY_AFTER: Final = {429: b"5", 503: b"1"}  # the default of `Retry-After` in seconds, by status
_EXPOSED_HEADERS: Final = b"Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, DPoP-Nonce, Retry-After"
_CORS_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
_PREFLIGHT_AGE: Final = b"7200"  # the longest that browsers keep

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"


class HTTPRefusal(Exception):
    """Refuses a request with a status and a text that says what to do; more headers may be given."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)
        if status in RETRY_AFTER and all(name != b"retry-after" for name, _ in self.headers):
            self.headers += ((b"retry-after", RETRY_AFTER[status]),)

    @property
    def body(self) -> bytes:
        """The JSON-RPC error, which answers no request in particular."""
        return jsonrpc.encode_error(None, InvalidRequest(self.message))


class RequestGuard:
    """Checks the host and the origin of requests, and gives browsers the CORS headers.

    `public_url` allows its own host and origin. `cors` is True for all allowed origins, or names more.
    """

    def __init__(
        self,
        *,
        public_url: str | None = None,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        cors: bool | Iterable[str] = False,
    ) -> None:
        origins = [allowed_origins] if isinstance(allowed_origins, str) else list(allowed_origins)
        if not isinstance(cors, bool):
            origins += [cors] if isinstance(cors, str) else list(cors)
        self._allowed = allowed_hosts_module.parse_allowed_hosts(public_url, allowed_hosts, origins)
        self._cors = cors is not False
        self._allowed_origins: set[tuple[str | None, str | None]] = set()
        self._logged_refusals: set[str] = set()

    def check(self, exchange: HttpExchange) -> None:
        """Refuse a request of another host or origin (HTTP-1, HTTP-2); add CORS headers to its response."""
        if exchange.headers_size > MAX_HEADERS:
            raise HTTPRefusal(431, f"The headers have more than {MAX_HEADERS} bytes together.")
        sent = exchange.headers
        host, origin = sent.get("host"), sent.get("origin")
        if (host, origin) not in self._allowed_origins:
            self._check_origin(host, origin)
        if self._cors and origin is not None:
            exchange.extra = (
                *exchange.extra,
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", _EXPOSED_HEADERS),
                (b"vary", b"Origin"),
            )

    def _check_origin(self, host: str | None, origin: str | None) -> None:
        wrong = allowed_hosts_module.explain_refused_host(
            self._allowed, host
        ) or allowed_hosts_module.explain_refused_origin(self._allowed, origin, host)
        if wrong is not None:
            if wrong not in self._logged_refusals and len(self._logged_refusals) < MAX_LOGGED_REFUSALS:
                self._logged_refusals.add(wrong)
                logger.warning("refused: %s", wrong)
            raise HTTPRefusal(403, wrong)
        if (
            len(self._allowed_origins) < MAX_CACHED_ORIGINS
            and len(host or "") + len(origin or "") <= MAX_CACHED_ORIGIN_LENGTH
        ):
            self._allowed_origins.add((host, origin))

    def get_preflight_headers(self, exchange: HttpExchange) -> Headers | None:
        """Return the headers of the answer to a preflight request; None if it is none, or CORS is off."""
        if not self._cors or exchange.method != "OPTIONS" or "origin" not in exchange.headers:
            return None
        wanted = exchange.headers.get("access-control-request-headers", "")
        return (
            (b"access-control-allow-methods", _CORS_METHODS),
            (b"access-control-allow-headers", wanted.encode("latin-1") or b"*"),
            (b"access-control-max-age", _PREFLIGHT_AGE),
        )


def check_post(exchange: HttpExchange, wanted: tuple[str, ...] = ()) -> None:
    """Refuse a POST that is not JSON (415), or does not accept the wanted media types (406)."""
    sent = exchange.headers
    encoding = sent.get("content-encoding")
    if encoding is not None and encoding.lower() != "identity":
        raise HTTPRefusal(
            415,
            f"The Content-Encoding {headers.quote_value(encoding)} is not read here: send the body as it is.",
            [(b"accept-encoding", b"identity")],
        )
    refusal = _find_media_type_error(sent.get("content-type"), sent.get("accept"), wanted)
    if refusal is not None:
        raise HTTPRefusal(*refusal)


@lru_cache(maxsize=256)
def _find_media_type_error(
    content_type: str | None, accept: str | None, wanted: tuple[str, ...]
) -> tuple[int, str] | None:
    """Return status and text of the refusal of these headers; None if they are fine."""
    if not headers.is_json(content_type):
        return (
            415,
            f"The Content-Type must be {JSON}, in UTF-8; it is {headers.quote_value(content_type or '')}.",
        )
    if all(headers.accepts(accept, media) for media in wanted):
        return None
    return (
        406,
        f"The Accept header must admit {' and '.join(wanted)}; it is {headers.quote_value(accept or '')}.",
    )


def check_get(exchange: HttpExchange) -> None:
    """Refuse a GET that does not accept an event stream (HTTPL-11)."""
    accept = exchange.headers.get("accept")
    if not headers.accepts(accept, EVENTS):
        raise HTTPRefusal(
            406, f"The Accept header must admit {EVENTS}; it is {headers.quote_value(accept or '')}."
        )


def read_body(data: bytes) -> JSONRPCMessage | None:
    """Return the message in a body; None for a batch. Refuse anything else."""
    if data[:1] != b"{" and jsonrpc.is_batch(data):
        return None
    try:
        return jsonrpc.decode(data)
    except RemoteProtocolError as error:
        raise _UnreadableBody(error) from error


class _UnreadableBody(HTTPRefusal):
    """Refuses a body that is no message; the answer has the id, if there was one."""

    def __init__(self, error: RemoteProtocolError) -> None:
        super().__init__(400, error.message)
        self._error = error

    @property
    def body(self) -> bytes:
        """The JSON-RPC error for it."""
        error = self._error
        return jsonrpc.encode_error(
            None if error.reply else error.id, error.answer or InvalidRequest(error.message)
        )
