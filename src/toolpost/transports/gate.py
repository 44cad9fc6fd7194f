"""Whom an endpoint answers to: hosts, origins, the pages of browsers, and what a request must look like.

Owns what stands between the network and a message: each check says what it refused and what to set. Knows
headers only, no message and no session.
"""

import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from toolpost.errors import InvalidRequest
from toolpost.protocol import headers, jsonrpc, sites
from toolpost.transports.exchange import Exchange, Headers

__all__ = ["EVENTS", "JSON", "LATER", "MAX_BODY", "MAX_HEADERS", "Gate", "Refusal", "check_get", "check_post"]

logger: Final = logging.getLogger("toolpost.http")

MAX_BODY: Final = 4 * 1024 * 1024
"""The largest body: room for 3 MiB of picture in base64, as much as an event may have."""

MAX_HEADERS: Final = 64 * 1024
"""All headers together: as much as the ASGI servers that have a limit of their own pass on."""

MAX_KNOWN: Final = 1000
"""How many pairs of host and origin are remembered as good: most servers have one name."""

MAX_NAMES: Final = 600
"""Characters of such a pair: two names of 255, and what stands around them."""

MAX_TOLD: Final = 100
"""How many different refusals are logged: who asks under many names must not fill the log."""

LATER: Final = {429: b"5", 503: b"1"}
"""Seconds after which who is turned away for now may come back, unless it is told otherwise: Retry-After."""

_EXPOSED: Final = b"Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, DPoP-Nonce, Retry-After"
_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
_PREFLIGHT_AGE: Final = b"7200"  # the longest that browsers keep

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"


class Refusal(Exception):
    """A request goes no further.

    Args:
        status: of HTTP.
        message: what was refused, and what to do.
        headers: to answer with.
    """

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)
        if status in LATER and all(name != b"retry-after" for name, _ in self.headers):
            self.headers += ((b"retry-after", LATER[status]),)

    @property
    def body(self) -> bytes:
        """The JSON-RPC error that says so; it answers no request in particular."""
        return jsonrpc.encode_failure(None, InvalidRequest(self.message))


class Gate:
    """The checks in front of an endpoint.

    Args:
        public_url: where clients reach it; allows its host and its origin.
        allowed_hosts: more hosts that it answers to.
        allowed_origins: more origins whose pages may call it.
        cors: whether browsers are told so: True for all that is allowed, or more origins.
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
        self._allowed = sites.allow(public_url, allowed_hosts, origins)
        self._cors = cors is not False
        self._known: set[tuple[str | None, str | None]] = set()
        self._told: set[str] = set()

    def check(self, exchange: Exchange) -> None:
        """Return if the request comes from where it may (HTTP-1); prepare what tells a browser so.

        Raises:
            Refusal: it does not (HTTP-2).
        """
        if exchange.head.size > MAX_HEADERS:
            raise Refusal(431, f"The headers have more than {MAX_HEADERS} bytes together.")
        sent = exchange.headers
        host, origin = sent.get("host"), sent.get("origin")
        if (host, origin) not in self._known:
            self._admit(host, origin)
        if self._cors and origin is not None:
            exchange.extra = (
                *exchange.extra,
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", _EXPOSED),
                (b"vary", b"Origin"),
            )

    def _admit(self, host: str | None, origin: str | None) -> None:
        wrong = sites.refuse_host(self._allowed, host) or sites.refuse_origin(self._allowed, origin, host)
        if wrong is not None:
            if wrong not in self._told and len(self._told) < MAX_TOLD:
                self._told.add(wrong)
                logger.warning("refused: %s", wrong)
            raise Refusal(403, wrong)
        if len(self._known) < MAX_KNOWN and len(host or "") + len(origin or "") <= MAX_NAMES:
            self._known.add((host, origin))

    def preflight(self, exchange: Exchange) -> Headers | None:
        """What to tell a browser that asks what it may send; None if it does not ask, or we do not tell."""
        if not self._cors or exchange.method != "OPTIONS" or "origin" not in exchange.headers:
            return None
        wanted = exchange.headers.get("access-control-request-headers", "")
        return (
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", wanted.encode("latin-1") or b"*"),
            (b"access-control-max-age", _PREFLIGHT_AGE),
        )


def check_post(exchange: Exchange, wanted: tuple[str, ...] = ()) -> None:
    """Return if a POST brings JSON and takes what we may answer with.

    Args:
        exchange: the POST.
        wanted: the media types of the answers that it may get.

    Raises:
        Refusal: 415 or 406.
    """
    sent = exchange.headers
    encoding = sent.get("content-encoding")
    if encoding is not None and encoding.lower() != "identity":
        raise Refusal(
            415,
            f"The Content-Encoding {headers.show(encoding)} is not read here: send the body as it is.",
            [(b"accept-encoding", b"identity")],
        )
    refusal = _misfit(sent.get("content-type"), sent.get("accept"), wanted)
    if refusal is not None:
        raise Refusal(*refusal)


@lru_cache(maxsize=256)  # clients always send the same
def _misfit(content_type: str | None, accept: str | None, wanted: tuple[str, ...]) -> tuple[int, str] | None:
    """Why a POST with these headers is refused: the status, and what to do."""
    if not headers.is_json(content_type):
        return 415, f"The Content-Type must be {JSON}, in UTF-8; it is {headers.show(content_type or '')}."
    if all(headers.accepts(accept, media) for media in wanted):
        return None
    return 406, f"The Accept header must admit {' and '.join(wanted)}; it is {headers.show(accept or '')}."


def check_get(exchange: Exchange) -> None:
    """Return if a GET takes an event stream (HTTPL-11).

    Raises:
        Refusal: 406.
    """
    accept = exchange.headers.get("accept")
    if not headers.accepts(accept, EVENTS):
        raise Refusal(406, f"The Accept header must admit {EVENTS}; it is {headers.show(accept or '')}.")
