"""HTTP by httpx2, for users who have configured a client of it, or want HTTP/2.

Owns a client unless it is given one. Knows httpx2's settings and errors, and nothing of MCP.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx2

from toolpost.errors import ConnectFailed, RequestFailed
from toolpost.transports.backends.backend import (
    CONNECT_TIMEOUT,
    KEEP_ALIVE_TIMEOUT,
    IteratedResponse,
    Response,
    describe_error,
)

_UNSENT_ERRORS: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.InvalidURL,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)
_ERROR_TEXTS: Final = (
    ((httpx2.ConnectTimeout, httpx2.PoolTimeout), "the connection attempt timed out"),
    (httpx2.ProxyError, "the proxy refused to connect"),
    ((httpx2.InvalidURL, httpx2.UnsupportedProtocol), "the URL is not supported"),
    (httpx2.RemoteProtocolError, "the server closed the connection early, or does not speak HTTP"),
    (httpx2.DecodingError, "the response was cut off or cannot be decoded"),
)
_HTTPX2_ERRORS: Final = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError)


class Httpx2Backend:
    """Sends requests by a client of httpx2.

    A client of the user is not closed here, and only its timeouts for connecting count.
    """

    def __init__(self, client: httpx2.AsyncClient | None = None) -> None:
        self._owns_client = client is None
        if client is None:
            try:
                client = httpx2.AsyncClient(
                    timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
                    limits=httpx2.Limits(keepalive_expiry=KEEP_ALIVE_TIMEOUT),
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                )
            except (ImportError, ValueError, httpx2.InvalidURL):  # the text may repeat a password
                raise ConnectFailed(
                    "httpx2 cannot use the proxy from the environment",
                    hint="http_proxy, https_proxy and all_proxy must be URLs; SOCKS requires httpx2[socks]",
                ) from None
        given = client.timeout
        self._timeout = httpx2.Timeout(None, connect=given.connect or CONNECT_TIMEOUT, pool=given.pool)
        self._client = client

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[Response]:
        """Send a request, as `Backend` promises."""
        if self._client.is_closed:
            raise RequestFailed("the httpx2 client was closed", sent=False)
        try:
            request = self._client.build_request(
                method, url, headers=headers, content=body, timeout=self._timeout
            )
            response = await self._client.send(request, stream=True, follow_redirects=False)
        except _HTTPX2_ERRORS as error:
            raise _translate_error(error) from error
        try:
            async with aclosing(response.aiter_bytes()) as body_of:
                yield _Httpx2Response(response, body_of)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close the client if it is ours."""
        if self._owns_client:
            await self._client.aclose()


class _Httpx2Response(IteratedResponse):
    """A response of httpx2, and the iterator over its body."""

    def __init__(self, response: httpx2.Response, body: AsyncIterator[bytes]) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self._body = body

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._body)
        except _HTTPX2_ERRORS as error:
            raise _translate_error(error) from error


def _translate_error(error: Exception) -> RequestFailed:
    return RequestFailed(describe_error(error, _ERROR_TEXTS), sent=not isinstance(error, _UNSENT_ERRORS))
