"""HTTP by aiohttp, the default library of a client.

Owns a session unless it is given one. Knows aiohttp's settings and errors, and nothing of MCP.
"""

import io
from collections.abc import AsyncIterator, Awaitable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from aiohttp.connector import Connection
from multidict import CIMultiDict, istr
from yarl import URL

from toolpost.errors import RequestFailed
from toolpost.protocol.framing import READ_SIZE
from toolpost.transports.backends.backend import (
    CONNECT_TIMEOUT,
    KEEP_ALIVE_TIMEOUT,
    MAX_RESPONSE_BODY,
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


class AiohttpBackend:
    """Sends requests in a session of aiohttp.

    A session of the user is not closed here, and only its time-outs for connecting count.
    """

    def __init__(self, session: aiohttp.ClientSession | None = None) -> None:
        self._proxies: dict[URL, _Proxy] | None = None
        self._routes: dict[str, _ProxyRoute] = {}
        self._owns_session = session is None
        if session is None:
            # aiohttp reads the environment and ~/.netrc in a thread for each request; we read it once.
            self._proxies = {}
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
        return _AiohttpExchange(self, method, url, headers, body)

    def prepare_headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return headers in aiohttp's own form, which it need not convert for each request."""
        return CIMultiDict((istr(name), value) for name, value in headers.items())

    def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Awaitable[aiohttp.ClientResponse]:
        """Send a request; the caller closes the response."""
        if self._session.closed:
            raise RequestFailed("the session of aiohttp was closed", sent=False)
        place = self._routes.get(url) or self._find_route(url)
        proxy = place.proxy
        if proxy.headers is not None and place.url.scheme == "http":
            # There is no tunnel: the proxy reads the request itself.
            headers = {**headers, **proxy.headers}
        data: Any = body
        if body is not None:
            # Names the payload class, so that aiohttp need not look for it.
            data = io.BytesIO(body) if len(body) > LARGE_BODY else aiohttp.BytesPayload(body)
        return self._session.request(
            method,
            place.url,
            headers=headers,
            data=data,
            allow_redirects=False,
            raise_for_status=False,
            timeout=self._timeout,
            proxy=proxy.url,
            proxy_headers=proxy.headers,
        )

    async def close(self) -> None:
        """Close the session if it is ours."""
        if self._owns_session:
            await self._session.close()

    def _find_route(self, url: str) -> "_ProxyRoute":
        # An ASCII URL is sent unchanged: it may be signed.
        address = URL(url, encoded=url.isascii())
        if len(self._routes) >= MAX_CACHED_ROUTES:
            self._routes.clear()
        place = self._routes[url] = _ProxyRoute(address, self._find_proxy(address))
        return place

    def _find_proxy(self, url: URL) -> "_Proxy":
        """Return the proxy that the environment names for an origin."""
        if self._proxies is None:
            return _NO_PROXY
        origin = url.origin()
        proxy = self._proxies.get(origin)
        if proxy is None:
            proxy = self._proxies[origin] = _read_proxy(origin)
        return proxy


class _Connector(aiohttp.TCPConnector):
    """Limits how much a connection reads at a time."""

    async def connect(self, *args: Any, **more: Any) -> Connection:
        connection = await super().connect(*args, **more)
        transport: Any = connection.transport
        if getattr(transport, "max_size", 0) > READ_SIZE:  # other loops have no such attribute
            transport.max_size = READ_SIZE
        return connection


class _Proxy(NamedTuple):
    url: URL | None = None
    headers: Mapping[str, str] | None = None


_NO_PROXY: Final = _Proxy()


class _ProxyRoute(NamedTuple):
    url: URL
    proxy: _Proxy


def _read_proxy(origin: URL) -> _Proxy:
    proxies = getproxies_environment()
    named = proxies.get(origin.scheme) or proxies.get("all")
    if not named or proxy_bypass(f"{origin.host}:{origin.port}"):
        return _NO_PROXY
    try:
        url = URL(named if "://" in named else f"http://{named}")
    except ValueError:  # its text repeats the URL, which may hold a password
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise RequestFailed(
            "the environment names a proxy that aiohttp cannot use",
            sent=False,
            hint=f"{origin.scheme}_proxy or all_proxy is the URL of an HTTP proxy; no_proxy lists exceptions",
        )
    if url.user is None:
        return _Proxy(url)
    login = aiohttp.encode_basic_auth(url.user, url.password or "")
    return _Proxy(url.with_user(None), {"Proxy-Authorization": login})


class _AiohttpExchange(Response):
    """A request, its response, and the iterator over its body. One object for all three is fastest."""

    def __init__(
        self, backend: AiohttpBackend, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> None:
        self._request = backend.request
        self._method = method
        self._url = url
        self._sent = headers
        self._body = body

    async def __aenter__(self) -> Response:
        try:
            response = self._response = await self._request(self._method, self._url, self._sent, self._body)
        except (aiohttp.ClientError, OSError) as error:
            raise _translate_error(error) from error
        self.status = response.status
        self.headers = response.headers
        self._content = response.content
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response.connection is not None:  # else the body has ended, and it is back in the pool
            self._response.close()

    async def read(self, limit: int = MAX_RESPONSE_BODY) -> bytes:
        content = self._content
        if content.is_eof() and content.exception() is None and content.total_bytes <= limit:
            return content.read_nowait()  # the usual case: all of it has come with the headers
        return await super().read(limit)

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

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
    """Return our error for one of the library."""
    sent = not isinstance(error, _UNSENT_ERRORS)
    match error:
        case aiohttp.ConnectionTimeoutError():
            text = "no connection came about in time"
        case aiohttp.ClientHttpProxyError():
            text = f"the proxy refuses to connect, with status {error.status}"
        case aiohttp.ClientProxyConnectionError():
            text = f"the proxy cannot be reached: {describe_error(error)}"
        case aiohttp.ServerFingerprintMismatch():
            text = "the certificate of the server has another fingerprint"
        case aiohttp.ServerDisconnectedError():
            text = "the server closed the connection instead of answering"
        case aiohttp.ClientPayloadError():
            text = "the answer was cut off or cannot be read"
        case aiohttp.ClientResponseError():
            text = "the answer is no HTTP"
        case _:
            text = describe_error(error)
    return RequestFailed(text, sent=sent)
