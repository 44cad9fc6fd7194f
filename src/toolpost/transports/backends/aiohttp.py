"""HTTP by aiohttp, the default library of a client.

Owns a session unless it is given one. Knows aiohttp's settings and errors, and nothing of MCP.
"""

import io
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from toolpost.errors import RequestFailed
from toolpost.protocol.line_framing import READ_SIZE
from toolpost.transports.backends.backend import (
    CONNECT_TIMEOUT,
    KEEP_ALIVE_TIMEOUT,
    MAX_RESPONSE_BODY,
    IteratedResponse,
    Response,
    describe_error,
)

LARGE_BODY: Final = 1024 * 1024  # from this size on aiohttp wants a body as a file, to write it in pieces
MAX_CACHED_ROUTES: Final = 64  # how many parsed URLs are kept: a server has one, and a few redirects
_UNSENT_ERRORS: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    aiohttp.ServerFingerprintMismatch,
)
_ERROR_TEXTS: Final = (
    (aiohttp.ConnectionTimeoutError, "the connection attempt timed out"),
    (aiohttp.ClientHttpProxyError, "the proxy refused to connect, with status {0.status}"),
    (aiohttp.ServerFingerprintMismatch, "the server certificate has a different fingerprint"),
    (aiohttp.ServerDisconnectedError, "the server closed the connection without a response"),
    (aiohttp.ClientPayloadError, "the response was cut off or cannot be decoded"),
    (aiohttp.ClientResponseError, "the response is not valid HTTP"),
)


class AiohttpBackend:
    """Sends requests in a session of aiohttp.

    A session of the user is not closed here, and only its timeouts for connecting count.
    """

    def __init__(self, session: aiohttp.ClientSession | None = None) -> None:
        self._routes: dict[str, _Route] = {}
        self._owns_session = session is None
        if session is None:
            # aiohttp reads the environment and ~/.netrc in a thread for each request; we read it once.
            session = aiohttp.ClientSession(
                connector=_Connector(limit=0, keepalive_timeout=KEEP_ALIVE_TIMEOUT),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            self._timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT)
        else:
            given = session.timeout
            self._timeout = aiohttp.ClientTimeout(
                total=None, connect=given.connect, sock_connect=given.sock_connect or CONNECT_TIMEOUT
            )
        self._session = session

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> "_AiohttpExchange":
        """Send a request, as `Backend` promises."""
        return _AiohttpExchange(partial(self._request, method, url, headers, body))

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Awaitable[aiohttp.ClientResponse]:
        if self._session.closed:
            raise RequestFailed("the aiohttp session was closed", sent=False)
        route = self._routes.get(url) or self._find_route(url)
        if route.proxy_headers is not None and route.url.scheme == "http":
            # There is no tunnel: the proxy reads the request itself.
            headers = {**headers, **route.proxy_headers}
        data: Any = body
        if body is not None:
            # Names the payload class, so that aiohttp need not look for it.
            data = io.BytesIO(body) if len(body) > LARGE_BODY else aiohttp.BytesPayload(body)
        return self._session.request(
            method,
            route.url,
            headers=headers,
            data=data,
            allow_redirects=False,
            raise_for_status=False,
            timeout=self._timeout,
            proxy=route.proxy,
            proxy_headers=route.proxy_headers,
        )

    async def close(self) -> None:
        """Close the session if it is ours."""
        if self._owns_session:
            await self._session.close()

    def _find_route(self, url: str) -> "_Route":
        # An ASCII URL is sent unchanged: it may be signed.
        address = URL(url, encoded=url.isascii())
        if len(self._routes) >= MAX_CACHED_ROUTES:
            self._routes.clear()
        route = self._routes[url] = _read_proxy(address) if self._owns_session else _Route(address)
        return route


class _Connector(aiohttp.TCPConnector):
    """Limits how much a connection reads at a time."""

    async def connect(self, *args: Any, **more: Any) -> Connection:
        connection = await super().connect(*args, **more)
        transport: Any = connection.transport
        if getattr(transport, "max_size", 0) > READ_SIZE:  # other loops have no such attribute
            transport.max_size = READ_SIZE
        return connection


class _Route(NamedTuple):
    """A parsed URL, and the proxy that the environment names for it."""

    url: URL
    proxy: URL | None = None
    proxy_headers: Mapping[str, str] | None = None


def _read_proxy(address: URL) -> _Route:
    origin = address.origin()
    proxies = getproxies_environment()
    named = proxies.get(origin.scheme) or proxies.get("all")
    if not named or proxy_bypass(f"{origin.host}:{origin.port}"):
        return _Route(address)
    try:
        url = URL(named if "://" in named else f"http://{named}")
    except ValueError:  # its text repeats the URL, which may hold a password
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise RequestFailed(
            "aiohttp cannot use the proxy from the environment",
            sent=False,
            hint=f"{origin.scheme}_proxy or all_proxy must be an HTTP proxy URL; no_proxy lists exceptions",
        )
    if url.user is None:
        return _Route(address, url)
    login = aiohttp.encode_basic_auth(url.user, url.password or "")
    return _Route(address, url.with_user(None), {"Proxy-Authorization": login})


class _AiohttpExchange(IteratedResponse):
    """A request, its response, and the iterator over its body. One object for all three is fastest."""

    def __init__(self, request: Callable[[], Awaitable[aiohttp.ClientResponse]]) -> None:
        self._request = request

    async def __aenter__(self) -> Response:
        try:
            response = self._response = await self._request()
        except (aiohttp.ClientError, OSError) as error:
            raise _translate_error(error) from error
        self.status = response.status
        self.headers = response.headers
        self._content = response.content
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._response.connection is not None:  # else the body has ended, and it is back in the pool
            self._response.close()

    async def read(self, limit: int = MAX_RESPONSE_BODY) -> bytes:
        content = self._content
        if content.is_eof() and content.exception() is None and content.total_bytes <= limit:
            return content.read_nowait()  # the usual case: all of it arrived with the headers
        return await super().read(limit)

    async def __anext__(self) -> bytes:
        if self._content.at_eof():
            raise StopAsyncIteration
        try:
            chunk = await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _translate_error(error) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


def _translate_error(error: aiohttp.ClientError | OSError) -> RequestFailed:
    text = describe_error(error, _ERROR_TEXTS)
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        text = f"could not connect to the proxy: {text}"
    return RequestFailed(text, sent=not isinstance(error, _UNSENT_ERRORS))
