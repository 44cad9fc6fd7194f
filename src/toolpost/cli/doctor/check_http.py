"""Checks of the first HTTP response: is this an MCP endpoint, and how does a client log in?

Sends one request of the newest revision, and reads published authorization metadata. Does not request a
token.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from toolpost.auth.client.discovery import AuthorizationServerMetadata, discover, parse_challenges
from toolpost.auth.fetch import AuthHttpClient
from toolpost.auth.urls import UrlPolicy, redact_url
from toolpost.cli.doctor.report import DoctorReport
from toolpost.cli.errors import UNAUTHORIZED
from toolpost.cli.tap.http_messages import get_media_type
from toolpost.errors import AuthError, MCPError, MethodNotFound, RemoteProtocolError, RequestFailed
from toolpost.protocol.connection import Connection
from toolpost.protocol.http_routing import mirror_headers
from toolpost.protocol.jsonrpc import JSONRPCErrorResponse, JSONRPCRequest, decode, shorten
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import SERVER_DISCOVER
from toolpost.transports.backends.backend import Backend
from toolpost.transports.http_sender import EVENTS, JSON, status_phrase
from toolpost.transports.targets import Http, display_url
from toolpost.types.initialize import ClientCapabilities, Implementation
from toolpost.version import __version__

MAX_QUOTED_BYTES: Final = 8 * 1024  # bytes of an error response to read
_COMMON_PATHS: Final = ("/mcp", "/mcp/", "/sse", "/")  # usual paths of endpoints
_NOT_FOUND_STATUSES: Final = frozenset({404, 405})
_STATUS_HINTS: Final = {
    403: "the server may reject the host name in the URL (Host, against DNS rebinding): configure its public "
    "URL, or use a host name that it accepts",
    407: "the proxy requires a login",
    406: "a proxy between here and the server may remove the Accept header",
    415: "a proxy between here and the server may change the Content-Type",
    421: "the server rejects the host name in the URL (Host): configure its public URL or its allowed hosts",
    429: "too many requests: wait and try again",
    502: "a proxy responds, but not the server behind it: is the server running?",
    503: "the server is temporarily unavailable",
    504: "a proxy responds, but the server behind it is too slow",
}


async def check_login(
    report: DoctorReport, place: Http, backend: Backend, received: Mapping[str, str]
) -> None:
    """Check the authorization metadata of a server that answers 401, and raise `DoctorAborted`."""
    challenges = parse_challenges(received.get("www-authenticate", ""))
    places = [each.params["resource_metadata"] for each in challenges if "resource_metadata" in each.params]
    if not challenges:
        report.warn("challenge", "401 without a WWW-Authenticate header", "send a challenge with the 401")
    else:
        scopes = " ".join(dict.fromkeys(scope for each in challenges for scope in each.scopes))
        wanted = f", for the scopes {scopes}" if scopes else ""
        report.ok("challenge", f"401: the server requires a token ({challenges[0].scheme}){wanted}")
    try:
        found = await discover(
            AuthHttpClient(backend, UrlPolicy(place.url)), place.url, next(iter(places), None)
        )
    except AuthError as error:
        report.fail("metadata", error.message, error.hint or "")
    else:
        if found.published:
            report.ok("metadata", f"the token audience is {redact_url(found.resource.resource)}")
        else:
            urls = ", ".join(redact_url(url) for url in found.searched_urls)
            hint = f"clients assume that the server is its own authorization server; tried {urls}"
            report.warn("metadata", "the server publishes no protected-resource metadata (RFC 9728)", hint)
        _check_issuer(report, found.issuer)
    if "authorization" in (place.headers or {}):
        errors = [each.error for each in challenges if each.error]
        text, hint = ": ".join(["the server rejected the token", *errors[:1]]), "get a new token"
    else:
        hint = "use --header 'Authorization: Bearer …' to send one and run the remaining checks"
        text = "no token was sent"
    report.stop("login", text, hint, code=UNAUTHORIZED)


def _check_issuer(report: DoctorReport, issuer: AuthorizationServerMetadata) -> None:
    name = redact_url(issuer.issuer)
    if issuer.legacy:
        report.warn("issuer", f"{name} publishes no metadata (RFC 8414)", "clients guess its endpoints")
        return
    needed = ("authorization_endpoint", "token_endpoint")
    lacking = [name for name in needed if not getattr(issuer, name)]
    if lacking:
        report.fail("issuer", f"the metadata of {name} lacks {' and '.join(lacking)}")
    elif "S256" not in (issuer.code_challenge_methods_supported or ()):
        hint = "clients refuse to log in: code_challenge_methods_supported must list S256"
        report.fail("issuer", f"{name} does not declare PKCE with S256", hint)
    elif not issuer.client_id_metadata_document_supported and not issuer.registration_endpoint:
        hint = "give each host a client id, or enable metadata documents or registration"
        report.warn("issuer", f"{name} accepts only pre-registered clients", hint)
    else:
        report.ok("issuer", f"{name} supports PKCE and client registration")


class _ProbeResponse(NamedTuple):
    """A response, and the beginning of its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        return get_media_type(self.headers)

    @property
    def is_mcp(self) -> bool:
        """Whether the response can only come from an MCP server."""
        if 200 <= self.status < 300:
            return self.media_type in {JSON, EVENTS}
        # Some servers respond to an unknown path with a JSON-RPC error.
        error = self.error
        return error is not None and (
            error.code == MethodNotFound.code or self.status not in _NOT_FOUND_STATUSES
        )

    @property
    def error(self) -> JSONRPCErrorResponse | None:
        """The body, if it is a JSON-RPC error."""
        with suppress(RemoteProtocolError):
            message = decode(self.body)
            return message if isinstance(message, JSONRPCErrorResponse) else None
        return None

    def quote_body(self) -> str:
        """Return the beginning of a body that is text."""
        if self.error is not None:
            return shorten(self.error.message, 200)
        if self.media_type not in {"text/plain", JSON}:
            return ""
        return shorten(" ".join(self.body.decode("utf-8", "replace").split()), 200)


async def check_http(report: DoctorReport, place: Http, backend: Backend, timeout: float | None) -> None:
    """Send the first request. Raises `DoctorAborted` if no MCP server responds."""
    try:
        answer = await _probe(backend, place, place.url, timeout)
    except TimeoutError:
        hint = "a proxy may buffer responses; use --timeout SECONDS to wait longer"
        report.stop_unreachable("http", f"no response within {timeout:g} s", hint)
    except RequestFailed as error:
        hint = "the server may require https://" if urlsplit(place.url).scheme == "http" else ""
        report.stop_unreachable("http", error.message, error.hint or hint)
    status = answer.status
    if status == 401:
        await check_login(report, place, backend, answer.headers)
    elif 300 <= status < 400:
        there = urljoin(place.url, answer.headers.get("location", ""))
        text, shown = status_phrase(status), display_url(there)
        if there == place.url:
            report.stop("http", f"{text}: the URL redirects to itself", "fix the redirect on the server")
        report.stop("http", f"{text}: redirects to {shown}", f"use {shown} instead")
    elif answer.is_mcp:
        report.ok("http", f"an MCP server responded with {status_phrase(status)} and {answer.media_type}")
    elif status in _NOT_FOUND_STATUSES or 200 <= status < 300:
        await _search_endpoint(report, place, backend, answer, timeout)
    else:
        quoted = answer.quote_body()
        text = status_phrase(status) + (f": {quoted}" if quoted else "")
        if status in _STATUS_HINTS:
            report.stop("http", text, _STATUS_HINTS[status])
        if "HTTPS port" in answer.body.decode("latin-1"):
            report.stop("http", text, "use https:// instead of http://")
        report.warn("http", f"a request of the newest revision got {text}; older clients may work")


async def _search_endpoint(
    report: DoctorReport, place: Http, backend: Backend, answer: _ProbeResponse, timeout: float | None
) -> None:
    """Search for an endpoint: HTTP+SSE at this URL, or one at a usual path."""
    if await _is_event_stream(backend, place, timeout):
        text = "GET opened a stream: the server uses HTTP+SSE, the older transport"
        report.ok("http", f"POST got {status_phrase(answer.status)}, {text}")
        return
    found: list[str] = []
    own = urlsplit(place.url)
    for path in dict.fromkeys((own.path.rstrip("/"), f"{own.path.rstrip('/')}/", *_COMMON_PATHS)):
        url = own._replace(path=path).geturl()
        if path == own.path:
            continue
        try:
            other = await _probe(backend, place, url, timeout)
        except (RequestFailed, TimeoutError):
            continue
        if other.is_mcp or other.status == 401:
            found.append(display_url(url))
    quoted = answer.quote_body() or answer.media_type
    report.stop(
        "http",
        f"no MCP endpoint at this URL: {status_phrase(answer.status)}" + (f", {quoted}" if quoted else ""),
        f"there is one at {found[0]}" if found else "check the path: most servers use /mcp",
    )


async def _probe(backend: Backend, place: Http, url: str, timeout: float | None) -> _ProbeResponse:
    party = LocalPeer(Implementation(name="toolpost-doctor", version=__version__), ClientCapabilities())
    data = Connection(party).request(SERVER_DISCOVER).data
    message = decode(data)
    assert isinstance(message, JSONRPCRequest), "encoded as a request above"
    headers = {
        "accept": f"{JSON}, {EVENTS}",
        "content-type": JSON,
        "user-agent": f"toolpost/{__version__}",
        **mirror_headers(message),
        **(place.headers or {}),
    }
    async with asyncio.timeout(timeout), backend.send("POST", url, headers, data) as response:
        body = b""
        # An event stream may never end, and its body is not needed.
        if get_media_type(response.headers) != EVENTS:
            async for chunk in response.chunks():
                body += chunk
                if len(body) > MAX_QUOTED_BYTES:
                    break
        return _ProbeResponse(response.status, response.headers, body)


async def _is_event_stream(backend: Backend, place: Http, timeout: float | None) -> bool:
    headers = {"accept": EVENTS, **(place.headers or {})}
    try:
        async with asyncio.timeout(timeout), backend.send("GET", place.url, headers) as response:
            return response.status == 200 and get_media_type(response.headers) == EVENTS
    except (MCPError, TimeoutError):
        return False
