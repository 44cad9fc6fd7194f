"""Carries requests to one address.

Owns the headers of the address and redirects, which stay within the origin. Who we are is told by an
authorizer, what a response means by `refusal`. Knows nothing of sessions, eras or messages.
"""

import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Final

from toolpost.channel import is_unattended
from toolpost.errors import (
    AuthError,
    ConnectFailed,
    InsufficientScope,
    MCPError,
    RequestFailed,
    TokenRejected,
)
from toolpost.secret import has_secret
from toolpost.transports.address import Http, resolve_url
from toolpost.transports.authorizer import (
    Authorizer,
    CredentialsRejection,
    OutgoingRequest,
    StaticToken,
    TokenFunction,
    check_encrypted,
    make_authorizer,
)
from toolpost.transports.http_backend import Backend, HeaderPreparing, Response, open_backend
from toolpost.transports.refusal import status_phrase
from toolpost.version import __version__

__all__ = ["HttpSender"]

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
