"""HTTP requests to authorization servers: small JSON documents, bounded in size, time and redirects.

A client follows redirects of metadata only, and only within an origin. A server follows none.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote_plus, urljoin

import msgspec

from toolpost.auth.urls import UrlPolicy, normalize_origin, redact_url
from toolpost.errors import AuthError, ConnectFailed, RequestFailed
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.transports.backends.backend import Backend, open_backend
from toolpost.version import __version__

MAX_DOCUMENT_BYTES: Final = 256 * 1024  # metadata of large providers has some tens of thousands
FETCH_TIMEOUT: Final = 30.0  # seconds for one request of a client
ISSUER_TIMEOUT: Final = 10.0  # seconds for one request of a server, whose own client waits
MAX_REDIRECTS: Final = 3  # of metadata, within an origin

JSON_TYPE: Final = "application/json"
FORM_TYPE: Final = "application/x-www-form-urlencoded"

_TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})
_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
_OBJECT_READER: Final = JSONReader(dict[str, Any])

S = TypeVar("S", bound=msgspec.Struct)


class AuthHttpResponse(NamedTuple):
    """A response with its whole body; header names are in lower case."""

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
        """Whether a retry may succeed."""
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


def convert_document(document: object, kind: type[S], problem: str) -> S:
    """Return a document as a struct. Raises AuthError, which names types and places, but no values."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise AuthError(f"{problem}: {error}") from None


class _DocumentTooLarge(Exception):
    def __str__(self) -> str:
        return f"exceeds the limit of {MAX_DOCUMENT_BYTES} bytes"


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
    """Sends the requests of a client to URLs that the policy allows."""

    def __init__(self, backend: Backend, url_policy: UrlPolicy) -> None:
        self._backend = backend
        self.url_policy = url_policy

    async def get(self, url: str, label: str) -> AuthHttpResponse:
        """Return a metadata document; `label` names it in errors."""
        here = url
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self.send(here, label)
            if answer.status not in _REDIRECT_STATUSES:
                return answer
            try:
                here = urljoin(here, answer.headers.get("location", ""))
                origin = normalize_origin(here)  # raises if the port is invalid
            except ValueError:
                raise AuthError(f"{label} redirects to an invalid URL") from None
            if origin != normalize_origin(url):
                raise AuthError(f"{label} redirects to another origin: {redact_url(here)}")
        raise AuthError(f"{label} redirects more than {MAX_REDIRECTS} times")

    async def send(
        self, url: str, label: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> AuthHttpResponse:
        """Return the response to a GET, or to a POST if there is a body. Redirects are not followed."""
        await self.url_policy.check(url, label)
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                sent = {"user-agent": f"toolpost/{__version__}", **(headers or {})}
                return await _exchange(self._backend, url, sent, body)
        except TimeoutError:
            problem = f"{label} did not respond within {FETCH_TIMEOUT:g} s: {redact_url(url)}"
            raise AuthError(problem) from None
        except _DocumentTooLarge as error:
            raise AuthError(f"{label} {error}") from None
        except (ConnectFailed, RequestFailed) as error:
            problem = f"could not fetch {label}: {error.message} ({redact_url(url)})"
            raise AuthError(problem, hint=error.hint, retry_safe=True) from error


async def fetch_json(
    engine: object, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> tuple[int, dict[str, Any]]:
    """Send a request of a server; return the status and the JSON object in the response, if any."""
    try:
        async with asyncio.timeout(ISSUER_TIMEOUT), use_backend(engine) as backend:
            answer = await _exchange(backend, url, headers or {}, body)
    except TimeoutError:
        raise RequestFailed(f"{url} did not respond within {ISSUER_TIMEOUT:g} s") from None
    except _DocumentTooLarge as error:
        raise RequestFailed(f"{url} {error}") from None
    except RequestFailed as error:
        raise RequestFailed(error.message if url in str(error) else f"{url}: {error}") from None
    return answer.status, answer.document or {}


@asynccontextmanager
async def use_backend(engine: object) -> AsyncGenerator[Backend]:
    """Open a backend for a few requests; a backend that the user passed in stays open."""
    backend = open_backend(engine)
    try:
        yield backend
    finally:
        if backend is not engine:
            await backend.close()


def check_backend(given: object) -> object:
    """Check the `http=` of a user and return it. Libraries are imported when they are needed."""
    if given not in (None, "aiohttp", "httpx2"):  # their sessions need a loop
        try:
            open_backend(given)
        except ConnectFailed as error:
            raise ValueError(str(error)) from None
    return given
