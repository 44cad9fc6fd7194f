"""Small JSON documents over HTTP, bounded in size, time and redirects: what authorization servers are asked.

A client follows redirects of metadata only, and only within an origin. A server asks the issuer that its
operator chose, without redirects. What a document means is left to the callers.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urljoin

from toolpost.auth.urls import UrlPolicy, normalize_origin, redact_url
from toolpost.errors import AuthError, ConnectFailed, RequestFailed
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.transports.backends.backend import Backend, open_backend
from toolpost.version import __version__

MAX_DOCUMENT_BYTES: Final = 256 * 1024  # of a document: metadata of large providers has a few tens of KiB
FETCH_TIMEOUT: Final = 30.0  # seconds for one document that a client asks for
ISSUER_TIMEOUT: Final = 10.0  # seconds for one document that a server asks for, while its client waits
MAX_REDIRECTS: Final = 3
"""How often metadata may lead elsewhere within its origin."""

JSON_TYPE: Final = "application/json"
FORM_TYPE: Final = "application/x-www-form-urlencoded"

_TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})
_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
_OBJECT_READER: Final = JSONReader(dict[str, Any])


class AuthHttpResponse(NamedTuple):
    """A whole response, whose body is bounded; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"AuthHttpResponse({self.status})"  # the body may be a token

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def is_transient(self) -> bool:
        """Whether the server cannot answer at the moment."""
        return self.status >= 500 or self.status in _TRANSIENT_STATUSES

    @property
    def document(self) -> dict[str, Any] | None:
        """The body if it is a JSON object."""
        try:
            return _OBJECT_READER(self.body)
        except InvalidJSONValue:
            return None


def encode_basic(name: str, secret: str) -> str:
    """Return Basic credentials; both parts are form-encoded before they are joined (RFC 6749 §2.3.1)."""
    pair = f"{quote_plus(name)}:{quote_plus(secret)}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


class _DocumentTooLarge(Exception):
    def __str__(self) -> str:
        return f"has more than {MAX_DOCUMENT_BYTES} bytes, which is the limit"


async def _exchange(
    backend: Backend, url: str, headers: Mapping[str, str], body: bytes | None
) -> AuthHttpResponse:
    method = "GET" if body is None else "POST"
    async with backend.send(method, url, {"accept": JSON_TYPE, **headers}, body) as response:
        read = bytearray()
        async for chunk in response.chunks():
            read += chunk
            if len(read) > MAX_DOCUMENT_BYTES:
                raise _DocumentTooLarge
        return AuthHttpResponse(response.status, response.headers, bytes(read))


class AuthHttpClient:
    """Sends the requests of a client to where the URL policy lets them go."""

    def __init__(self, backend: Backend, url_policy: UrlPolicy) -> None:
        self._backend = backend
        self.url_policy = url_policy

    async def get(self, url: str, what: str) -> AuthHttpResponse:
        """Return a document of metadata; `what` names it in errors."""
        here = url
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._send(here, what, {})
            if answer.status not in _REDIRECT_STATUSES:
                return answer
            try:
                here = urljoin(here, answer.headers.get("location", ""))
                origin = normalize_origin(here)  # whose port may be none
            except ValueError:
                raise AuthError(f"{what} is redirected to what is no URL") from None
            if origin != normalize_origin(url):
                raise AuthError(f"{what} is redirected to another origin: {redact_url(here)}")
        raise AuthError(f"{what} is redirected more than {MAX_REDIRECTS} times")

    async def post(
        self, url: str, what: str, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
    ) -> AuthHttpResponse:
        """Return the response to a document. Redirects are not followed: it is for one address only."""
        return await self._send(url, what, {"content-type": content_type, **(headers or {})}, body)

    async def _send(
        self, url: str, what: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AuthHttpResponse:
        await self.url_policy.check(url, what)
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                sent = {"user-agent": f"toolpost/{__version__}", **headers}
                return await _exchange(self._backend, url, sent, body)
        except TimeoutError:
            raise AuthError(f"{what} did not come within {FETCH_TIMEOUT:g} s: {redact_url(url)}") from None
        except _DocumentTooLarge as error:
            raise AuthError(f"{what} {error}") from None
        except (ConnectFailed, RequestFailed) as error:
            raise AuthError(
                f"{what} cannot be had: {error.message} ({redact_url(url)})", hint=error.hint, retry_safe=True
            ) from error


async def fetch_json(
    engine: object, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the status of a response to a server, and the JSON object in it, empty where it is none."""
    try:
        async with asyncio.timeout(ISSUER_TIMEOUT), use_backend(engine) as backend:
            answer = await _exchange(backend, url, headers or {}, body)
    except TimeoutError:
        raise RequestFailed(f"{url} did not answer within {ISSUER_TIMEOUT:g} s") from None
    except _DocumentTooLarge as error:
        raise RequestFailed(f"{url} {error}") from None
    except RequestFailed as error:
        raise RequestFailed(error.message if url in str(error) else f"{url}: {error}") from None
    return answer.status, answer.document or {}


@asynccontextmanager
async def use_backend(engine: object) -> AsyncGenerator[Backend]:
    """Open a backend for a few requests; one that a user gave is not closed."""
    backend = open_backend(engine)
    try:
        yield backend
    finally:
        if backend is not engine:
            await backend.close()


def check_backend(given: object) -> object:
    """Return what a user gave to carry HTTP; whether its library is installed shows when it is needed."""
    if given not in (None, "aiohttp", "httpx2"):  # whose sessions need a loop
        try:
            open_backend(given)
        except ConnectFailed as error:
            raise ValueError(str(error)) from None
    return given
