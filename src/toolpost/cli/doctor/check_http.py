"""Checks of the first HTTP response: whether an MCP endpoint is there, and what it says about logging in.

Sends one request as a client of the newest revision does, and reads published authorization metadata. Asks
nobody for a token.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from toolpost.auth.client.discovery import AuthorizationServerMetadata, discover, parse_challenges
from toolpost.auth.fetch import AuthHttpClient
from toolpost.auth.urls import UrlPolicy, redact_url
from toolpost.cli.doctor.report import DoctorReport
from toolpost.cli.errors import UNAUTHORIZED
from toolpost.errors import AuthError, MCPError, MethodNotFound, RequestFailed
from toolpost.protocol.connection import Connection
from toolpost.protocol.http_routing import mirror_headers
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader, JSONRPCRequest, decode, shorten
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import SERVER_DISCOVER
from toolpost.transports.backends.backend import Backend
from toolpost.transports.http_sender import EVENTS, JSON, status_phrase
from toolpost.transports.targets import Http, display_url
from toolpost.types.initialize import ClientCapabilities, Implementation
from toolpost.version import __version__

MAX_QUOTED_BYTES: Final = 8 * 1024  # how much of a refusal is read
_COMMON_PATHS: Final = ("/mcp", "/mcp/", "/sse", "/")  # where servers have their endpoints
_NOT_FOUND_STATUSES: Final = frozenset({404, 405})

_STATUS_HINTS: Final = {
    403: "does the server know the name in the URL? it may check Host, as against rebound names: tell it its "
    "public URL, or call it by a name that it knows",
    407: "the proxy wants a login",
    406: "something between here and the server takes the Accept header away",
    415: "something between here and the server changes the Content-Type",
    421: "the server does not know the name in the URL (Host): tell it its public URL, or its allowed hosts",
    429: "it was asked too often: wait, and try again",
    502: "a proxy answers, and the server behind it does not: is that running?",
    503: "the server is there, but does not serve now",
    504: "a proxy answers, and the server behind it takes too long",
}


async def check_login(
    checkup: DoctorReport, place: Http, backend: Backend, received: Mapping[str, str]
) -> None:
    """Check what a server that answers 401 publishes about logging in, and raise `DoctorAborted`."""
    challenges = parse_challenges(received.get("www-authenticate", ""))
    given = "authorization" in (place.headers or {})
    places = [each.params["resource_metadata"] for each in challenges if "resource_metadata" in each.params]
    if not challenges:
        checkup.warn("challenge", "401 without a WWW-Authenticate header", "it has to say what it wants")
    else:
        scopes = " ".join(dict.fromkeys(scope for each in challenges for scope in each.scopes))
        wanted = f", for the scopes {scopes}" if scopes else ""
        checkup.ok("challenge", f"401: it wants a token ({challenges[0].scheme}){wanted}")
    try:
        found = await discover(
            AuthHttpClient(backend, UrlPolicy(place.url)), place.url, next(iter(places), None)
        )
    except AuthError as error:
        checkup.fail("metadata", error.message, error.hint or "")
    else:
        if found.published:
            checkup.ok("metadata", f"tokens are for {redact_url(found.resource.resource)}")
        else:
            urls = ", ".join(redact_url(url) for url in found.searched_urls)
            hint = f"clients guess that it is its own authorization server; looked at {urls}"
            checkup.warn("metadata", "it publishes no protected-resource metadata (RFC 9728)", hint)
        _check_issuer(checkup, found.issuer)
    text, hint = (
        "no token was given",
        "--header 'Authorization: Bearer …' sends one; then the rest is looked at",
    )
    if given:
        errors = [each.error for each in challenges if each.error]
        text, hint = ": ".join(["the token is not accepted", *errors[:1]]), "get a new one"
    checkup.stop("login", text, hint, code=UNAUTHORIZED)


def _check_issuer(checkup: DoctorReport, issuer: AuthorizationServerMetadata) -> None:
    """Check that an authorization server has what a client needs."""
    name = redact_url(issuer.issuer)
    if issuer.legacy:
        checkup.warn("issuer", f"{name} publishes no metadata (RFC 8414)", "its endpoints are a guess")
        return
    needed = ("authorization_endpoint", "token_endpoint")
    lacking = [name for name in needed if not getattr(issuer, name)]
    if lacking:
        checkup.fail("issuer", f"{name} does not name its {' and '.join(lacking)}")
    elif "S256" not in (issuer.code_challenge_methods_supported or ()):
        hint = "clients refuse to log in there: code_challenge_methods_supported has to list S256"
        checkup.fail("issuer", f"{name} does not say that it knows PKCE with S256", hint)
    elif not issuer.client_id_metadata_document_supported and not issuer.registration_endpoint:
        hint = "give each host a client id, or let it take metadata documents or registrations"
        checkup.warn("issuer", f"{name} knows only clients that were registered by hand", hint)
    else:
        checkup.ok("issuer", f"{name}, with PKCE, and clients can make themselves known")


class _ProbeResponse(NamedTuple):
    """A response, as far as it is read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        return _get_media_type(self.headers)

    @property
    def is_mcp(self) -> bool:
        """Whether only an MCP server responds so."""
        if 200 <= self.status < 300:
            return self.media_type in {JSON, EVENTS}
        # Some servers explain in JSON-RPC that nothing is at this path.
        error = self.error
        return error is not None and (
            error.code == MethodNotFound.code or self.status not in _NOT_FOUND_STATUSES
        )

    @property
    def error(self) -> "_JsonRpcError | None":
        """The error in the body, if that is a response of JSON-RPC."""
        with suppress(InvalidJSONValue):
            return _ERROR_READER(self.body).error
        return None

    def quote_body(self) -> str:
        """The beginning of the body, where that is for people."""
        if self.error is not None:
            return shorten(self.error.message, 200)
        if self.media_type not in {"text/plain", JSON}:
            return ""
        return shorten(" ".join(self.body.decode("utf-8", "replace").split()), 200)


class _JsonRpcError(Struct):
    code: int
    message: str


class _JsonRpcErrorResponse(Struct):
    error: _JsonRpcError


_ERROR_READER: Final = JSONReader(_JsonRpcErrorResponse)


def _get_media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def check_http(checkup: DoctorReport, place: Http, backend: Backend, timeout: float | None) -> None:
    """Send the first request; `DoctorAborted` if no MCP server is there."""
    try:
        answer = await _probe(backend, place, place.url, timeout)
    except TimeoutError:
        hint = "is a proxy in between that holds answers back? --timeout SECONDS waits longer"
        checkup.stop_unreachable("http", f"no answer within {timeout:g} s", hint)
    except RequestFailed as error:
        hint = "the server may want https://" if urlsplit(place.url).scheme == "http" else ""
        checkup.stop_unreachable("http", error.message, error.hint or hint)
    status = answer.status
    if status == 401:
        await check_login(checkup, place, backend, answer.headers)
    elif 300 <= status < 400:
        there = urljoin(place.url, answer.headers.get("location", ""))
        text, shown = status_phrase(status), display_url(there)
        if there == place.url:
            checkup.stop("http", f"{text}: it leads back to itself", "correct that on the server")
        checkup.stop("http", f"{text}: it leads to {shown}", f"use {shown} instead")
    elif answer.is_mcp:
        checkup.ok("http", f"an MCP server answers, with {status_phrase(status)} and {answer.media_type}")
    elif status in _NOT_FOUND_STATUSES or 200 <= status < 300:
        await _search_endpoint(checkup, place, backend, answer, timeout)
    else:
        _report_refusal(checkup, answer)


def _report_refusal(checkup: DoctorReport, answer: _ProbeResponse) -> None:
    said = answer.quote_body()
    text = status_phrase(answer.status) + (f": {said}" if said else "")
    if answer.status in _STATUS_HINTS:
        checkup.stop("http", text, _STATUS_HINTS[answer.status])
    if "HTTPS port" in answer.body.decode("latin-1"):
        checkup.stop("http", text, "write https:// instead of http://")
    checkup.warn("http", f"{text}, to the question of a newer client; older ones may be served")


async def _search_endpoint(
    checkup: DoctorReport, place: Http, backend: Backend, answer: _ProbeResponse, timeout: float | None
) -> None:
    """Look for the endpoint: of an older server here, or at a common path."""
    if await _is_event_stream(backend, place, timeout):
        text = "to a POST, and a stream to a GET: HTTP+SSE, the older way"
        checkup.ok("http", f"{status_phrase(answer.status)} {text}")
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
    said = answer.quote_body() or answer.media_type
    checkup.stop(
        "http",
        f"no MCP endpoint is here: {status_phrase(answer.status)}" + (f", {said}" if said else ""),
        f"there is one at {found[0]}" if found else "is the path right? most servers have it at /mcp",
    )


async def _probe(backend: Backend, place: Http, url: str, timeout: float | None) -> _ProbeResponse:
    """Send `server/discover`."""
    party = LocalPeer(Implementation(name="toolpost-doctor", version=__version__), ClientCapabilities())
    data = Connection(party).request(SERVER_DISCOVER).data
    message = decode(data)
    assert isinstance(message, JSONRPCRequest), "it was made as one"
    headers = {
        "accept": f"{JSON}, {EVENTS}",
        "content-type": JSON,
        "user-agent": f"toolpost/{__version__}",
        **mirror_headers(message),
        **(place.headers or {}),
    }
    async with asyncio.timeout(timeout), backend.send("POST", url, headers, data) as response:
        body = b""
        # A stream may stay open for ever; what kind of answer it is, is known.
        if _get_media_type(response.headers) != EVENTS:
            async for chunk in response.chunks():
                body += chunk
                if len(body) > MAX_QUOTED_BYTES:
                    break
        return _ProbeResponse(response.status, response.headers, body)


async def _is_event_stream(backend: Backend, place: Http, timeout: float | None) -> bool:
    """Whether a GET is answered with a stream of events."""
    headers = {"accept": EVENTS, **(place.headers or {})}
    try:
        async with asyncio.timeout(timeout), backend.send("GET", place.url, headers) as response:
            return response.status == 200 and _get_media_type(response.headers) == EVENTS
    except (MCPError, TimeoutError):
        return False
