"""Checks of HTTP requests before their message is served: host, origin, media types, body.

Each refusal explains what is wrong and what to set. Knows nothing of sessions or servers.
"""

import logging
from functools import lru_cache
from typing import Final

from toolpost.errors import InvalidRequest, RemoteProtocolError
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.allowed_hosts import explain_refused_host, explain_refused_origin, parse_allowed_hosts
from toolpost.server.http.exchange import Headers, HttpExchange, HTTPRefusal
from toolpost.server.options import HttpOptions

logger: Final = logging.getLogger("toolpost.http")

MAX_HEADERS: Final = 64 * 1024  # bytes of all headers together: as many as ASGI servers with a limit pass on
MAX_CACHED_ORIGINS: Final = 1000  # how many allowed pairs of host and origin are remembered
MAX_CACHED_ORIGIN_LENGTH: Final = 600  # characters of such a pair: two names of 255, with schemes and ports
MAX_LOGGED_REFUSALS: Final = 100  # requests with many names must not fill the log
_EXPOSED_HEADERS: Final = b"Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, DPoP-Nonce, Retry-After"
_CORS_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
_PREFLIGHT_AGE: Final = b"7200"  # the longest that browsers keep

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"


class RequestGuard:
    """Checks the host and the origin of requests, and gives browsers the CORS headers."""

    def __init__(self, options: HttpOptions) -> None:
        cors, allowed_origins = options.cors, options.allowed_origins
        origins = [allowed_origins] if isinstance(allowed_origins, str) else list(allowed_origins)
        if not isinstance(cors, bool):
            origins += [cors] if isinstance(cors, str) else list(cors)
        self._allowed = parse_allowed_hosts(options.public_url, options.allowed_hosts, origins)
        self._cors = cors is not False
        self._allowed_origins: set[tuple[bytes | None, bytes | None]] = set()
        self._logged_refusals: set[str] = set()

    def check(self, exchange: HttpExchange) -> None:
        """Refuse a request of another host or origin (HTTP-1, HTTP-2); add CORS headers to its response."""
        sent = exchange.raw_headers
        if len(b"".join((*sent, *sent.values()))) > MAX_HEADERS:
            raise HTTPRefusal(431, f"The request headers exceed {MAX_HEADERS} bytes.")
        host, origin = sent.get(b"host"), sent.get(b"origin")
        if (host, origin) not in self._allowed_origins:
            self._check_origin(host, origin)
        if self._cors and origin is not None:
            exchange.extra = (
                *exchange.extra,
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _EXPOSED_HEADERS),
                (b"vary", b"Origin"),
            )

    def _check_origin(self, raw_host: bytes | None, raw_origin: bytes | None) -> None:
        host, origin = _decode_header(raw_host), _decode_header(raw_origin)
        allowed = self._allowed
        wrong = explain_refused_host(allowed, host) or explain_refused_origin(allowed, origin, host)
        if wrong is not None:
            if wrong not in self._logged_refusals and len(self._logged_refusals) < MAX_LOGGED_REFUSALS:
                self._logged_refusals.add(wrong)
                logger.warning("rejected: %s", wrong)
            raise HTTPRefusal(403, wrong)
        is_short = len(host or "") + len(origin or "") <= MAX_CACHED_ORIGIN_LENGTH
        if is_short and len(self._allowed_origins) < MAX_CACHED_ORIGINS:
            self._allowed_origins.add((raw_host, raw_origin))

    def get_preflight_headers(self, exchange: HttpExchange) -> Headers | None:
        """Return the headers of the response to a preflight; None for another OPTIONS, or if CORS is off."""
        if not self._cors or b"origin" not in exchange.raw_headers:
            return None
        wanted = exchange.raw_headers.get(b"access-control-request-headers", b"")
        return (
            (b"access-control-allow-methods", _CORS_METHODS),
            (b"access-control-allow-headers", wanted or b"*"),
            (b"access-control-max-age", _PREFLIGHT_AGE),
        )


def _decode_header(value: bytes | None) -> str | None:
    return None if value is None else str(value, "latin-1")


@lru_cache(maxsize=256)
def find_media_type_error(
    raw_type: bytes | None,
    raw_accept: bytes | None,
    wanted: tuple[str, ...],
    raw_encoding: bytes | None = None,
) -> tuple[int, str, Headers] | None:
    """Return status, text and headers of the refusal of a POST (415 or 406); None if its headers are fine."""
    content_type, accept = _decode_header(raw_type), _decode_header(raw_accept)
    if raw_encoding is not None and raw_encoding.lower() != b"identity":
        shown = headers.quote_value(str(raw_encoding, "latin-1"))
        text = f"Content-Encoding {shown} is not supported; send the body unencoded."
        return 415, text, ((b"accept-encoding", b"identity"),)
    if not headers.is_json(content_type):
        shown = headers.quote_value(content_type) if content_type else "missing"
        return 415, f"Content-Type must be {JSON} in UTF-8; it is {shown}.", ()
    if all(headers.accepts(accept, media) for media in wanted):
        return None
    shown = headers.quote_value(accept) if accept else "missing"
    return 406, f"The Accept header must include {' and '.join(wanted)}; it is {shown}.", ()


def check_get(exchange: HttpExchange) -> None:
    """Refuse a GET that does not accept an event stream (HTTPL-11)."""
    refusal = find_media_type_error(JSON.encode(), exchange.raw_headers.get(b"accept"), (EVENTS,))
    if refusal is not None:
        raise HTTPRefusal(*refusal)


def make_message_refusal(error: RemoteProtocolError) -> HTTPRefusal:
    """Return the refusal of a body that is neither a message nor a batch."""
    answer = error.answer or InvalidRequest(error.message)
    return HTTPRefusal(400, body=jsonrpc.encode_error(None if error.reply else error.id, answer))
