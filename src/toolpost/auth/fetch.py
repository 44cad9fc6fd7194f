"""Small JSON documents over HTTP: metadata, registrations and tokens, bounded in size, time and redirects.

Owns the requests of a client to authorization servers. Sends no credentials by itself, follows redirects of
metadata only, and only within an origin. What a document means is not known here.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urljoin

import msgspec

from toolpost.auth.urls import UrlPolicy, normalize_origin, redact_url
from toolpost.errors import AuthError, ConnectFailed, RequestFailed
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.transports.backends.backend import Backend, Response, open_backend
from toolpost.version import __version__

MAX_DOCUMENT_BYTES: Final = 256 * 1024
"""Bytes of a document: metadata of large providers has a few tens of KiB."""

FETCH_TIMEOUT: Final = 30.0
"""Seconds for one document."""

MAX_REDIRECTS: Final = 3
"""How often metadata may lead elsewhere within its origin."""

JSON_TYPE: Final = "application/json"
FORM_TYPE: Final = "application/x-www-form-urlencoded"

_TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})
_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
_OBJECT_READER: Final = JSONReader(dict[str, Any])


class AuthHttpResponse(NamedTuple):
    """What came back.

    Args:
        status: the HTTP status.
        headers: by their names in lower case.
        body: the body, at most `MAX_DOCUMENT_BYTES` bytes.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"AuthHttpResponse({self.status})"  # the body may be a token

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return 200 <= self.status < 300

    @property
    def is_transient(self) -> bool:
        """Whether this says nothing about what was asked, but that nobody can say it at the moment."""
        return self.status >= 500 or self.status in _TRANSIENT_STATUSES

    @property
    def document(self) -> dict[str, Any] | None:
        """The body if it is a JSON object."""
        try:
            return _OBJECT_READER(self.body)
        except InvalidJSONValue:
            return None


class AuthHttpClient:
    """Sends requests to where the guard lets them go.

    Args:
        backend: carries them.
        url_policy: says where they may go.
    """

    def __init__(self, backend: Backend, guard: UrlPolicy) -> None:
        self._backend = backend
        self.url_policy = guard

    async def get(self, url: str, what: str) -> AuthHttpResponse:
        """A document of metadata.

        Args:
            url: where it is.
            what: what to call it in an error.

        Raises:
            AuthError: it may not be asked for, or cannot be had.
        """
        here = url
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._send("GET", here, what, {"accept": JSON_TYPE})
            if answer.status not in _REDIRECT_STATUSES:
                return answer
            there = _resolve_redirect(here, answer.headers.get("location", ""), what)
            if normalize_origin(there) != normalize_origin(url):
                raise AuthError(f"{what} is redirected to another origin: {redact_url(there)}")
            here = there
        raise AuthError(f"{what} is redirected more than {MAX_REDIRECTS} times")

    async def post_json(self, url: str, what: str, document: Mapping[str, Any]) -> AuthHttpResponse:
        """The answer to a JSON document. Redirects are not followed."""
        return await self._send(
            "POST", url, what, {"accept": JSON_TYPE, "content-type": JSON_TYPE}, msgspec.json.encode(document)
        )

    async def post_form(
        self, url: str, what: str, fields: Mapping[str, str], headers: Mapping[str, str]
    ) -> AuthHttpResponse:
        """The answer to a form. Redirects are not followed: what is in it is for one address only."""
        sent = {"accept": JSON_TYPE, "content-type": FORM_TYPE, **headers}
        return await self._send("POST", url, what, sent, urlencode(fields).encode())

    async def _send(
        self, method: str, url: str, what: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AuthHttpResponse:
        site = await self.url_policy.check(url, what)
        fields = {"user-agent": f"toolpost/{__version__}", **headers}
        try:
            async with (
                asyncio.timeout(FETCH_TIMEOUT),
                self._backend.send(method, site.url, fields, body) as response,
            ):
                read = await _read_bounded(response, what)
                return AuthHttpResponse(response.status, response.headers, read)
        except TimeoutError:
            raise AuthError(f"{what} did not come within {FETCH_TIMEOUT:g} s: {redact_url(url)}") from None
        except (ConnectFailed, RequestFailed) as error:
            raise AuthError(
                f"{what} cannot be had: {error.message} ({redact_url(url)})", hint=error.hint, retry_safe=True
            ) from error


async def _read_bounded(response: Response, what: str) -> bytes:
    read = bytearray()
    async for chunk in response.chunks():
        read += chunk
        if len(read) > MAX_DOCUMENT_BYTES:
            raise AuthError(f"{what} has more than {MAX_DOCUMENT_BYTES} bytes, which is the limit")
    return bytes(read)


def _resolve_redirect(base: str, reference: str, what: str) -> str:
    try:
        there = urljoin(base, reference)
        normalize_origin(there)  # whose port may be none
    except ValueError:
        raise AuthError(f"{what} is redirected to what is no URL") from None
    return there


@asynccontextmanager
async def use_backend(engine: object) -> AsyncGenerator[Backend]:
    """A backend for a few requests; one that a user gave is not closed."""
    backend = open_backend(engine)
    try:
        yield backend
    finally:
        if backend is not engine:
            await backend.close()
