"""Carries requests to one address.

Owns the headers of the address and redirects, which stay within the origin. Who we are is told by an
authorizer, what a response means by `refusal`. Knows nothing of sessions, eras or messages.

PART refusal: What a response is, and what it means if it is no answer.

Owns the kinds of bodies and the words for a refusal. Sends nothing; knows nothing of sessions, eras or
messages.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import TracebackType
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
from toolpost.redaction import has_secret
from toolpost.transports.backends.backend import Backend, HeaderPreparing, Response, open_backend
from toolpost.transports.credentials import (
    Authorizer,
    CredentialsRejection,
    OutgoingRequest,
    StaticToken,
    TokenFunction,
    check_encrypted,
    make_authorizer,
)
from toolpost.transports.targets import Http, resolve_url
from toolpost.types.base import Struct
from toolpost.version import __version__

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

MAX_QUOTE_LENGTH: Final = 300
"""How many characters of a refusal an error repeats."""

QUOTE_TIMEOUT: Final = 2.0
"""Seconds to wait for the text of a refusal: the status alone says enough."""

MAX_DISCARDED_BODY: Final = 64 * 1024
"""How much of a body that nobody wants is read, so that its connection can be used again."""

MAX_RETRY_AFTER_DIGITS: Final = 9
"""How many digits of a wait are read: thirty years are for ever."""

_RETRY_AFTER_STATUSES: Final = frozenset({429, 503})
"""Refusals that may say when to come again, and that nothing was done."""

_QUOTABLE_TYPES: Final = ("text/plain", JSON, "application/problem+json")
_STATUS_HINTS: Final = {
    401: 'it needs authorization: pass auth=OAuth(), auth="token" or headers={"Authorization": "Bearer …"}',
    403: 'it needs other authorization than it got: see auth=, or headers={"Authorization": "Bearer …"}',
    404: "is this the URL of an MCP endpoint?",
    405: "is this the URL of an MCP endpoint?",
}


class _ErrorMessage(Struct):
    message: str


class _ErrorReply(Struct):
    error: _ErrorMessage


_ERROR_REPLY: Final = JSONReader(_ErrorReply)


class Unauthorized(RequestFailed, AuthorizationRequired):
    """A 401 to whom sent no credentials by `auth=`. Tracebacks show the name that can be imported."""

    __module__ = AuthorizationRequired.__module__
    __qualname__ = AuthorizationRequired.__qualname__


Unauthorized.__name__ = AuthorizationRequired.__name__


def is_success(response: Response) -> bool:
    """Whether the status says that all is well."""
    return 200 <= response.status < 300


def is_event_stream(response: Response) -> bool:
    """Whether the response is an event stream."""
    kind = response.headers.get("content-type", "")
    return is_success(response) and (kind == EVENTS or kind.partition(";")[0].strip().lower() == EVENTS)


def is_json(response: Response) -> bool:
    """Whether the body is JSON."""
    kind = response.headers.get("content-type")
    return kind == JSON or rules.is_json(kind)


async def open_event_stream(response: Response) -> AsyncIterator[bytes]:
    """The body of a response that is an event stream.

    Raises:
        RequestFailed: it is none.
    """
    if not is_event_stream(response):
        raise await build_refusal(response, lacks="no event stream")
    return response.chunks()


async def check_accepted(response: Response) -> None:
    """Return if the server has taken a message that has no answer.

    Raises:
        RequestFailed: it has not.
    """
    if not is_success(response):
        raise await build_refusal(response)
    size = response.headers.get("content-length", "")
    if size.isdigit() and int(size) <= MAX_DISCARDED_BODY:
        # It has taken the message, whatever becomes of what it says besides.
        with contextlib.suppress(RequestFailed, TimeoutError):
            async with asyncio.timeout(QUOTE_TIMEOUT):
                await response.read(MAX_DISCARDED_BODY)


async def build_refusal(
    response: Response, body: bytes | None = None, *, lacks: str = "neither JSON nor an event stream"
) -> RequestFailed:
    """The error for a response that is no answer.

    Args:
        response: the response.
        body: its body, if it was read already.
        lacks: what one that says that all is well is not.
    """
    status, kind = response.status, response.headers.get("content-type")
    if is_success(response):
        what = "without a content type" if kind is None else f"of type {rules.quote_value(kind)}"
        return RequestFailed(
            f"the server answered with {status_phrase(status)} {what}, which is {lacks}",
            status=status,
            hint="is this the URL of an MCP endpoint?",
        )
    start = await _read_start(response) if body is None else body
    reason = _read_error_message(start)
    text = _to_single_line(start if reason is None else reason.encode())
    said = f": {text}" if text else ""
    hint = (
        None if reason and status == HTTPStatus.FORBIDDEN else _STATUS_HINTS.get(status)
    )  # it may be the Host
    kind = Unauthorized if status == HTTPStatus.UNAUTHORIZED else RequestFailed
    failure = kind(f"the server answered with {status_phrase(status)}{said}", status=status, hint=hint)
    if status in _RETRY_AFTER_STATUSES:
        failure.retry_after = _parse_retry_after(response.headers.get("retry-after", ""))
    return failure


def _parse_retry_after(text: str) -> float | None:
    """The seconds after which a server wants to be asked again: a number, or a date by its own clock."""
    if text.isascii() and text.isdigit():
        return float(text[:MAX_RETRY_AFTER_DIGITS])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None


def _read_error_message(body: bytes) -> str | None:
    """What an error says that is JSON-RPC."""
    try:
        return _ERROR_REPLY(body).error.message
    except InvalidJSONValue:
        return None


def status_phrase(status: int) -> str:
    """A status with its name."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


async def _read_start(response: Response) -> bytes:
    """The start of a text that is meant for people, or at least can be read by them."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    start = bytearray()
    if kind in _QUOTABLE_TYPES:
        try:
            async with asyncio.timeout(QUOTE_TIMEOUT):
                async for chunk in response.chunks():
                    start += chunk
                    if len(start) >= MAX_DISCARDED_BODY:
                        break
        except (RequestFailed, TimeoutError):
            pass  # what is there has to do
    return bytes(start)


def _to_single_line(start: bytes) -> str:
    text = " ".join(start[: 8 * MAX_QUOTE_LENGTH].decode("utf-8", "replace").split())
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= MAX_QUOTE_LENGTH else f"{text[: MAX_QUOTE_LENGTH - 1]}…"


# --------------------------------------------------------------------- courier

MAX_REDIRECTS: Final = 5
"""How often a request is sent on. A server that adds a slash to a path needs one."""

MAX_AUTH_ATTEMPTS: Final = 6
"""How often a request is sent again with other credentials: a nonce, a refreshed token, a login, and more
scopes need one each. Whoever decides about them has limits of its own."""

_SCOPE_PARAMETER: Final = re.compile(r'(?i)[\s,]scope="?([!#-\[\]-~ ]{1,300})')
"""The scopes in a challenge; nothing in them could break a line."""

_SECRET_HEADERS: Final = ("authorization", "proxy-authorization", "dpop", "cookie")
"""Headers whose values no error repeats."""

_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
_METHOD_PRESERVING_STATUSES: Final = frozenset({307, 308})
_AUTH_STATUSES: Final = frozenset({401, 403})
logger: Final = logging.getLogger("toolpost.http")


class HttpSender:
    """Carries requests to one address.

    Args:
        http: the address.

    Raises:
        ConnectFailed: the library that should carry them is not installed.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self._label = http.label
        self._backend: Backend = open_backend(http.http)
        ours = (
            {"user-agent": f"toolpost/{__version__}"}
            if http.http is None or isinstance(http.http, str)
            else {}
        )
        self._headers = ours | dict(http.headers or {})
        self._prepare = self._backend.prepare_headers if isinstance(self._backend, HeaderPreparing) else None
        self._authorizer: Authorizer | None = make_authorizer(http.auth)
        self._requires_encryption = isinstance(self._authorizer, StaticToken | TokenFunction) and not getattr(
            self._backend, "local", False
        )
        self._pending_logins = 0
        self._login_listeners: list[Callable[[bool], object]] = []

    @property
    def is_login_pending(self) -> bool:
        """Whether requests wait for a login."""
        return self._pending_logins > 0

    def on_login_pending(self, tell: Callable[[bool], object]) -> None:
        """Tell somebody, too, when requests begin to wait for a login, and when none does any more."""
        self._login_listeners.append(tell)
        if self._pending_logins:
            tell(True)

    def _count_pending_logins(self, by: int) -> None:
        before, self._pending_logins = self._pending_logins, self._pending_logins + by
        if not before or not self._pending_logins:
            for tell in self._login_listeners:
                tell(self._pending_logins > 0)

    def prepare_headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """What to send for these headers and those of the address, to be kept by who sends it often."""
        whole = {**self._headers, **headers}
        return whole if self._prepare is None else self._prepare(whole)

    def send(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        url: str | None = None,
        dressed: bool = False,
    ) -> AbstractAsyncContextManager[Response]:
        """Send a request; entering the context waits for the status and headers of the response.

        Args:
            method: the verb.
            headers: what to send besides the headers of the address; these count more.
            body: the body.
            url: where to, if not to the address itself.
            dressed: whether these headers come from `prepare_headers`.

        Raises:
            RequestFailed: there is no response, or it leads elsewhere.
            AuthError: the server wants other credentials than we have or get.
        """
        here = url or self._http.url
        if not dressed or self._prepare is None:  # else a backend might write into what is kept
            headers = {**self._headers, **headers}
        if self._authorizer is not None:
            return self._send_authorized(self._authorizer, method, here, headers, body)
        return _PlainRequest(self._backend, self._label, method, here, headers, body=body)

    @asynccontextmanager
    async def _send_authorized(
        self,
        authorizer: Authorizer,
        method: str,
        here: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> AsyncGenerator[Response]:
        """Send a request with credentials, and again with others if it is refused for them."""
        redirects, again = MAX_REDIRECTS, MAX_AUTH_ATTEMPTS
        sent: Mapping[str, str] = {}
        try:
            if self._requires_encryption:
                check_encrypted(here)
            while True:
                errand = OutgoingRequest(self._http.url, method, here, is_unattended())
                with _wrap_auth_errors(authorizer):
                    sent = await authorizer.headers(errand)
                async with self._backend.send(method, here, {**headers, **sent}, body) as response:
                    refused = CredentialsRejection(response.status, response.headers, sent)
                    if response.status in _REDIRECT_STATUSES:
                        here, redirects = _follow_redirect(here, response, redirects), redirects - 1
                        continue
                    if not _is_credentials_rejection(refused):
                        authorizer.on_accepted(errand, response.headers, sent)
                        yield response
                        return
                # Nobody logs in to say goodbye.
                again = again - 1 if method != "DELETE" else 0
                if not again or not await self._renew_credentials(authorizer, errand, refused):
                    raise _make_credentials_error(refused)
        except (ConnectFailed, RequestFailed, AuthError) as error:
            error.peer = error.peer or self._http.label
            _redact_error(error, {**headers, **sent})
            raise

    async def _renew_credentials(
        self, authorizer: Authorizer, errand: OutgoingRequest, refused: CredentialsRejection
    ) -> bool:
        """Whether there are other credentials; the time that it takes is nobody's fault."""
        with _wrap_auth_errors(authorizer):
            if errand.unattended:
                return await authorizer.on_rejected(errand, refused)
            self._count_pending_logins(1)
            try:
                return await authorizer.on_rejected(errand, refused)
            finally:
                self._count_pending_logins(-1)

    async def close(self) -> None:
        """Close the backend unless the user gave it. Raises nothing."""
        if self._backend is self._http.http:
            return
        try:
            await self._backend.close()
        except Exception:  # whatever a library raises, we leave
            logger.exception("%s: the connections could not be closed in order", self._http.label)


class _PlainRequest:
    """A request without credentials, on its way to where it is answered, and the response.

    A class, because a generator as a context takes 1.4 µs more for each request.
    """

    __slots__ = ("_backend", "_body", "_headers", "_here", "_method", "_open", "_peer")

    def __init__(
        self,
        backend: Backend,
        peer: str,
        method: str,
        here: str,
        headers: Mapping[str, str],
        *,
        body: bytes | None,
    ) -> None:
        self._backend = backend
        self._peer = peer
        self._method = method
        self._here = here
        self._headers = headers
        self._body = body

    async def __aenter__(self) -> Response:
        here, left = self._here, MAX_REDIRECTS
        try:
            while True:
                self._open = self._backend.send(self._method, here, self._headers, self._body)
                response = await self._open.__aenter__()
                if response.status not in _REDIRECT_STATUSES:
                    return response
                try:
                    here, left = _follow_redirect(here, response, left), left - 1
                finally:
                    await self._open.__aexit__(None, None, None)
        except (ConnectFailed, RequestFailed) as error:
            self._label_error(error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if isinstance(error, ConnectFailed | RequestFailed):
            self._label_error(error)
        return await self._open.__aexit__(kind, error, trace)

    def _label_error(self, error: MCPError) -> None:
        """Say who has failed, and no secrets."""
        error.peer = error.peer or self._peer
        _redact_error(error, self._headers)


@contextlib.contextmanager
def _wrap_auth_errors(authorizer: Authorizer) -> Generator[None]:
    """Makes a failure of authorization what it is, whatever an authorizer of one's own raises."""
    try:
        yield
    except MCPError:
        raise
    except Exception as error:
        raise AuthError(
            f"auth={type(authorizer).__name__} failed: {type(error).__name__}",
            hint="the cause of this error tells more",
        ) from error


def _is_credentials_rejection(refused: CredentialsRejection) -> bool:
    """Whether a response is about credentials. A plain 403 may be about anything, such as the Host."""
    if refused.status not in _AUTH_STATUSES:
        return False
    return refused.status == 401 or "insufficient_scope" in refused.challenge


def _collect_secrets(sent: Mapping[str, str]) -> list[str]:
    """What only we and the server know."""
    return [value.rpartition(" ")[2] for name, value in sent.items() if name in _SECRET_HEADERS]


def _redact_error(error: MCPError, sent: Mapping[str, str]) -> None:
    """Take out of an error what the server has said, if it repeats what it was sent."""
    what, _, said = error.message.partition(": ")
    if has_secret(said, _collect_secrets(sent)):
        error.message, error.args = what, (what,)
        error.__cause__, error.__suppress_context__ = None, True


def _make_credentials_error(refused: CredentialsRejection) -> AuthError:
    """The error for credentials that were refused. What the server says may repeat them: it is not told."""
    if refused.status == 401:
        return TokenRejected(
            "the server does not accept the credentials", hint="the token may have expired: see auth="
        )
    wanted = _SCOPE_PARAMETER.search(refused.challenge)
    if wanted is None or has_secret(wanted[1], _collect_secrets(refused.sent)):
        return InsufficientScope(
            "the server says that the token does not allow this, but not which scopes would",
            hint="whoever runs the server knows",
        )
    return InsufficientScope(
        "the token is good, but not for this", hint=f"get one with these scopes: {wanted[1]}"
    )


def _follow_redirect(here: str, response: Response, left: int) -> str:
    """Where a redirect leads, if we may go there, and that often."""
    if not left:
        raise RequestFailed(f"the server redirects more than {MAX_REDIRECTS} times", status=response.status)
    status, location = response.status, response.headers.get("location", "")
    try:
        there = resolve_url(here, location)
    except ConnectFailed as error:
        raise RequestFailed(
            f"the server redirects elsewhere: {error.message}",
            status=status,
            hint="connect to that URL if you trust it: headers and messages go nowhere else by themselves",
        ) from None
    if status not in _METHOD_PRESERVING_STATUSES:
        raise RequestFailed(
            f"the server redirects with {status_phrase(status)}, which drops the message",
            status=status,
            hint=f"connect to {there.partition('?')[0]} instead",
        )
    return there
