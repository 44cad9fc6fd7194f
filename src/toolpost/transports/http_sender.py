"""Sends HTTP requests to one server, and explains responses without an answer.

Owns the headers of the target, redirects, which stay within the origin, and the repetition with other
credentials. Knows nothing of sessions, eras or messages.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from toolpost.channel import is_unattended
from toolpost.errors import (
    AuthError,
    AuthorizationRequired,
    ConnectFailed,
    InsufficientScope,
    MCPError,
    RequestFailed,
    TokenRejected,
)
from toolpost.protocol import headers as rules
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.urls import has_secret
from toolpost.transports.backends.backend import Backend, Response, open_backend
from toolpost.transports.credentials import (
    Authorizer,
    BearerToken,
    CredentialsRejection,
    OutgoingRequest,
    check_encrypted,
    make_authorizer,
)
from toolpost.transports.targets import Http, resolve_url
from toolpost.types.base import Struct
from toolpost.version import __version__

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

MAX_REDIRECTS: Final = 5  # a server that adds a slash to a path needs one
MAX_AUTH_ATTEMPTS: Final = 6  # a nonce, a refreshed token, a login, and more scopes need one each
MAX_QUOTE_LENGTH: Final = 300  # how many characters of a response an error repeats
QUOTE_TIMEOUT: Final = 2.0  # seconds to wait for the body of a refusal: the status alone says enough
MAX_DISCARDED_BODY: Final = 64 * 1024  # bytes of an unused body to read, so that its connection can be reused
MAX_RETRY_AFTER_DIGITS: Final = 9  # how many digits of `Retry-After` are read: that is thirty years
_SCOPE_PARAMETER: Final = re.compile(r'(?i)[\s,]scope="?([!#-\[\]-~ ]{1,300})')  # cannot break a line
_SECRET_HEADERS: Final = ("authorization", "proxy-authorization", "dpop", "cookie")  # no error repeats them
_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
_QUOTABLE_TYPES: Final = ("text/plain", JSON, "application/problem+json")
_STATUS_HINTS: Final = {
    401: 'authorization required: pass auth=OAuth(), auth="token" or headers={"Authorization": "Bearer …"}',
    403: 'the credentials are not sufficient: see auth=, or headers={"Authorization": "Bearer …"}',
    404: "is this the URL of an MCP endpoint?",
    405: "is this the URL of an MCP endpoint?",
}

logger: Final = logging.getLogger("toolpost.http")

# --------------------------------------------------------------------- responses


class _ErrorMessage(Struct):
    message: str


class _ErrorReply(Struct):
    error: _ErrorMessage


_ERROR_REPLY: Final = JSONReader(_ErrorReply)


class Unauthorized(RequestFailed, AuthorizationRequired):
    """A 401 without `auth=`. Tracebacks show the name that can be imported."""

    __module__ = AuthorizationRequired.__module__
    __qualname__ = AuthorizationRequired.__qualname__


Unauthorized.__name__ = AuthorizationRequired.__name__


def is_success(response: Response) -> bool:
    """Return whether the status is 2xx."""
    return 200 <= response.status < 300


def is_event_stream(response: Response) -> bool:
    """Return whether the response is an event stream."""
    kind = response.headers.get("content-type", "")
    return is_success(response) and (kind == EVENTS or kind.partition(";")[0].strip().lower() == EVENTS)


async def open_event_stream(response: Response) -> AsyncIterator[bytes]:
    """Return the body of an event stream; raise RequestFailed if the response is none."""
    if not is_event_stream(response):
        raise await build_refusal(response, expected="an event stream")
    return response.chunks()


async def check_accepted(response: Response) -> None:
    """Raise RequestFailed unless the server has accepted a message that has no answer."""
    if not is_success(response):
        raise await build_refusal(response)
    size = response.headers.get("content-length", "")
    if size.isdigit() and int(size) <= MAX_DISCARDED_BODY:
        await _read_start(response)


async def build_refusal(
    response: Response, body: bytes | None = None, *, expected: str = "JSON or an event stream"
) -> RequestFailed:
    """Return the error for a response without an answer; a successful one should have been `expected`."""
    status, kind = response.status, response.headers.get("content-type")
    if is_success(response):
        content = "no content type" if kind is None else f"content type {rules.quote_value(kind)}"
        return RequestFailed(
            f"the server responded with {status_phrase(status)} and {content}; expected {expected}",
            status=status,
            hint="is this the URL of an MCP endpoint?",
        )
    start = body or b""
    if body is None and (kind or "text/plain").partition(";")[0].strip().lower() in _QUOTABLE_TYPES:
        start = await _read_start(response)
    try:
        reason = _ERROR_REPLY(start).error.message
    except InvalidJSONValue:
        reason = None
    text = _to_single_line(start if reason is None else reason.encode())
    # A 403 with a reason may be about the Host header.
    hint = None if reason and status == HTTPStatus.FORBIDDEN else _STATUS_HINTS.get(status)
    kind = Unauthorized if status == HTTPStatus.UNAUTHORIZED else RequestFailed
    summary = f"the server responded with {status_phrase(status)}"
    failure = kind(f"{summary}: {text}" if text else summary, status=status, hint=hint)
    if status in {429, 503}:  # nothing was done, and Retry-After may say when to try
        failure.retry_after = _parse_retry_after(response.headers.get("retry-after", ""))
    return failure


def _parse_retry_after(text: str) -> float | None:
    """Return the seconds of a `Retry-After` header: a number, or a date by the server's clock."""
    if text.isascii() and text.isdigit():
        return float(text[:MAX_RETRY_AFTER_DIGITS])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None


def status_phrase(status: int) -> str:
    """Return a status with its name."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


async def _read_start(response: Response) -> bytes:
    """Return the start of a body, as far as it arrives in time."""
    start = bytearray()
    with contextlib.suppress(RequestFailed, TimeoutError):
        async with asyncio.timeout(QUOTE_TIMEOUT):
            async for chunk in response.chunks():
                start += chunk
                if len(start) >= MAX_DISCARDED_BODY:
                    break
    return bytes(start)


def _to_single_line(start: bytes) -> str:
    text = " ".join(start[: 8 * MAX_QUOTE_LENGTH].decode("utf-8", "replace").split())
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= MAX_QUOTE_LENGTH else f"{text[: MAX_QUOTE_LENGTH - 1]}…"


# --------------------------------------------------------------------- requests


class HttpSender:
    """Sends requests to one server. Raises ConnectFailed if the HTTP library is not installed."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._backend: Backend = open_backend(http.http)
        is_our_client = http.http is None or isinstance(http.http, str)
        self._headers = {"user-agent": f"toolpost/{__version__}"} if is_our_client else {}
        self._headers |= http.headers or {}
        self._authorizer: Authorizer | None = make_authorizer(http.auth)
        is_local: bool = getattr(self._backend, "local", False)
        self._requires_encryption = isinstance(self._authorizer, BearerToken) and not is_local
        self._pending_logins = 0
        self._on_login_pending: Callable[[bool], object] = lambda _: None
        self._timeouts: dict[asyncio.Timeout, float] = {}

    @asynccontextmanager
    async def limit_time(self, seconds: float) -> AsyncGenerator[None]:
        """Raise TimeoutError after these seconds, which start again after a login of a person."""
        async with asyncio.timeout(None if self._pending_logins else seconds) as scope:
            self._timeouts[scope] = seconds
            try:
                yield
            finally:
                del self._timeouts[scope]

    def on_login_pending(self, callback: Callable[[bool], object]) -> None:
        """Call back when requests begin to wait for a login, and when none does any more."""
        self._on_login_pending = callback
        if self._pending_logins:
            callback(True)

    def _count_pending_logins(self, by: int) -> None:
        before, self._pending_logins = self._pending_logins, self._pending_logins + by
        if before and self._pending_logins:
            return
        for scope, seconds in self._timeouts.items():
            if not scope.expired():
                until = asyncio.get_running_loop().time() + seconds
                scope.reschedule(None if self._pending_logins else until)
        self._on_login_pending(self._pending_logins > 0)

    @asynccontextmanager
    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        url: str | None = None,
    ) -> AsyncGenerator[Response]:
        """Send a request; entering the context waits for the status and headers of the response.

        `headers` override those of the target. Raises RequestFailed without a response of this origin,
        AuthError if the server rejects our credentials.
        """
        here, authorizer = url or self._http.url, self._authorizer
        ours = whole = {**self._headers, **headers}
        redirects, again = MAX_REDIRECTS, MAX_AUTH_ATTEMPTS
        try:
            if self._requires_encryption:
                check_encrypted(here)
            while True:
                request = None
                sent: Mapping[str, str] = {}
                if authorizer is not None:
                    request = OutgoingRequest(self._http.url, method, here, is_unattended())
                    with _wrap_auth_errors(authorizer):
                        sent = await authorizer.headers(request)
                whole = {**ours, **sent} if sent else ours
                async with self._backend.send(method, here, whole, body) as response:
                    if response.status in _REDIRECT_STATUSES:
                        here, redirects = _follow_redirect(here, response, redirects), redirects - 1
                        continue
                    if authorizer is None or request is None:
                        yield response
                        return
                    rejection = CredentialsRejection(response.status, response.headers, sent)
                    if not rejection.is_about_credentials:
                        authorizer.on_accepted(request, response.headers, sent)
                        yield response
                        return
                again = again - 1 if method != "DELETE" else 0  # no login to end a session
                if not again or not await self._renew_credentials(authorizer, request, rejection):
                    raise _make_credentials_error(rejection)
        except (ConnectFailed, RequestFailed, AuthError) as error:
            error.peer = error.peer or self._http.label
            _redact_error(error, whole)
            raise

    async def _renew_credentials(
        self, authorizer: Authorizer, request: OutgoingRequest, rejection: CredentialsRejection
    ) -> bool:
        """Return whether there are other credentials; timeouts are paused if a person may be asked."""
        with _wrap_auth_errors(authorizer):
            if request.unattended:
                return await authorizer.on_rejected(request, rejection)
            self._count_pending_logins(1)
            try:
                return await authorizer.on_rejected(request, rejection)
            finally:
                self._count_pending_logins(-1)

    async def close(self) -> None:
        """Close the backend unless the user gave it. Raises nothing."""
        if self._backend is self._http.http:
            return
        try:
            await self._backend.close()
        except Exception:  # whatever the library raises
            logger.exception("%s: failed to close the connections", self._http.label)


@contextlib.contextmanager
def _wrap_auth_errors(authorizer: Authorizer) -> Generator[None]:
    """Turn exceptions of a user's authorizer into an AuthError."""
    try:
        yield
    except MCPError:
        raise
    except Exception as error:
        raise AuthError(
            f"auth={type(authorizer).__name__} failed: {type(error).__name__}",
            hint="see the cause of this error",
        ) from error


def _collect_secrets(sent: Mapping[str, str]) -> list[str]:
    """Return the values of headers that only we and the server may know."""
    return [value.rpartition(" ")[2] for name, value in sent.items() if name in _SECRET_HEADERS]


def _redact_error(error: MCPError, sent: Mapping[str, str]) -> None:
    """Remove the server's own words from an error if they repeat a secret that it was sent."""
    summary, _, quoted = error.message.partition(": ")
    if has_secret(quoted, _collect_secrets(sent)):
        error.message, error.args = summary, (summary,)
        error.__cause__, error.__suppress_context__ = None, True


def _make_credentials_error(rejection: CredentialsRejection) -> AuthError:
    """Return the error for rejected credentials. The server's words may repeat them, so they are left out."""
    if rejection.status == 401:
        return TokenRejected(
            "the server rejected the credentials", hint="the token may have expired: see auth="
        )
    wanted = _SCOPE_PARAMETER.search(rejection.challenge)
    if wanted is None or has_secret(wanted[1], _collect_secrets(rejection.sent)):
        return InsufficientScope(
            "the token lacks a scope, but the server does not say which",
            hint="ask the operator of the server",
        )
    return InsufficientScope(
        "the token lacks a scope for this request", hint=f"get a token with these scopes: {wanted[1]}"
    )


def _follow_redirect(here: str, response: Response, left: int) -> str:
    """Return where a redirect leads; raise RequestFailed if it is not allowed, or one too many."""
    if not left:
        raise RequestFailed(f"the server redirects more than {MAX_REDIRECTS} times", status=response.status)
    status, location = response.status, response.headers.get("location", "")
    try:
        there = resolve_url(here, location)
    except ConnectFailed as error:
        raise RequestFailed(
            f"the server redirects to another place: {error.message}",
            status=status,
            hint="connect to that URL if you trust it: redirects are followed only within one origin",
        ) from None
    if status not in {307, 308}:  # the others turn a POST into a GET
        raise RequestFailed(
            f"the server redirects with {status_phrase(status)}, which drops the message",
            status=status,
            hint=f"connect to {there.partition('?')[0]} instead",
        )
    return there
