"""Carries requests to one address, and says what a response means that is no answer.

Owns the headers of the address, redirects, which stay within the origin, and the words for a refusal. Who we
are is told by an authorizer. Knows nothing of sessions, eras or messages.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

from toolpost.errors import AuthError, ConnectFailed, InsufficientScope, RequestFailed, TokenRejected
from toolpost.protocol import headers as rules
from toolpost.protocol.jsonrpc import Reader, Unfit
from toolpost.transports.address import Http, resolve
from toolpost.transports.authorizer import (
    Asked,
    Authorizer,
    Errand,
    Refused,
    Token,
    authorizer_of,
    check_encrypted,
)
from toolpost.transports.http_backend import Backend, Response, open_backend
from toolpost.types.base import Struct
from toolpost.version import __version__

__all__ = [
    "EVENTS",
    "JSON",
    "Courier",
    "accepted",
    "is_events",
    "is_json",
    "is_success",
    "refusal",
    "stream_of",
]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

MAX_REDIRECTS: Final = 5
"""How often a request is sent on. A server that adds a slash to a path needs one."""

MAX_REFUSALS: Final = 6
"""How often a request is sent again with other credentials: a nonce, a refreshed token, a login, and more
scopes need one each. Whoever decides about them has limits of its own."""

MAX_QUOTE: Final = 300
"""How many characters of a refusal an error repeats."""

QUOTE_WAIT: Final = 2.0
"""Seconds to wait for the text of a refusal: the status alone says enough."""

MAX_LEFTOVER: Final = 64 * 1024
"""How much of a body that nobody wants is read, so that its connection can be used again."""

_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_SAME_REQUEST: Final = frozenset({307, 308})
_QUOTABLE: Final = ("text/plain", JSON, "application/problem+json")
_CREDENTIALS: Final = frozenset({401, 403})
_HINTS: Final = {
    401: 'it needs authorization: pass auth=OAuth(), auth="token" or headers={"Authorization": "…"}',
    403: 'it needs other authorization than it got: see auth=, or headers={"Authorization": …}',
    404: "is this the URL of an MCP endpoint?",
    405: "is this the URL of an MCP endpoint?",
}

logger: Final = logging.getLogger("toolpost.http")


class _Reason(Struct):
    message: str


class _Said(Struct):
    error: _Reason


_SAID: Final = Reader(_Said)


class Courier:
    """Carries requests to one address.

    Args:
        http: the address.

    Raises:
        ConnectFailed: the library that should carry them is not installed.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self._backend: Backend = open_backend(http.http)
        ours = (
            {"user-agent": f"toolpost/{__version__}"}
            if http.http is None or isinstance(http.http, str)
            else {}
        )
        self._headers = ours | dict(http.headers or {})
        self._authorizer: Authorizer | None = authorizer_of(http.auth)
        self._bare = isinstance(self._authorizer, Token | Asked) and not getattr(
            self._backend, "local", False
        )
        self._detained = 0
        self._tell: Callable[[bool], object] = bool

    def on_detained(self, tell: Callable[[bool], object]) -> None:
        """Tell somebody when requests begin to wait for a login, and when none does any more."""
        self._tell = tell
        if self._detained:
            tell(True)

    @asynccontextmanager
    async def send(
        self, method: str, headers: Mapping[str, str], body: bytes | None = None, *, url: str | None = None
    ) -> AsyncGenerator[Response]:
        """Send a request; entering the context waits for the status and headers of the response.

        Args:
            method: the verb.
            headers: what to send besides the headers of the address; these count more.
            body: the body.
            url: where to, if not to the address itself.

        Raises:
            RequestFailed: there is no response, or it leads elsewhere.
            AuthError: the server wants other credentials than we have or get.
        """
        here = url or self._http.url
        headers = {**self._headers, **headers}
        if self._authorizer is not None:
            async with self._authorized(self._authorizer, method, here, headers, body) as response:
                yield response
            return
        try:
            for left in reversed(range(MAX_REDIRECTS + 1)):
                async with self._backend.send(method, here, headers, body) as response:
                    if response.status not in _MOVED:
                        yield response
                        return
                    here = _next(here, response, left)
        except (ConnectFailed, RequestFailed) as error:
            error.peer = error.peer or self._http.label
            raise

    @asynccontextmanager
    async def _authorized(
        self, authorizer: Authorizer, method: str, here: str, headers: dict[str, str], body: bytes | None
    ) -> AsyncGenerator[Response]:
        """Send a request with credentials, and again with others if it is refused for them."""
        redirects, again = MAX_REDIRECTS, MAX_REFUSALS
        try:
            if self._bare:
                check_encrypted(here)
            while True:
                errand = Errand(self._http.url, method, here)
                sent = await authorizer.headers(errand)
                async with self._backend.send(method, here, {**headers, **sent}, body) as response:
                    refused = Refused(response.status, response.headers, sent)
                    if response.status in _MOVED:
                        here, redirects = _next(here, response, redirects), redirects - 1
                        continue
                    if not _wants(refused):
                        authorizer.heard(errand, response.headers, sent)
                        yield response
                        return
                # Nobody logs in to say goodbye.
                again = again - 1 if method != "DELETE" else 0
                if not again or not await self._renewed(authorizer, errand, refused):
                    raise _rejected(refused)
        except (ConnectFailed, RequestFailed, AuthError) as error:
            error.peer = error.peer or self._http.label
            raise

    async def _renewed(self, authorizer: Authorizer, errand: Errand, refused: Refused) -> bool:
        """Whether there are other credentials; the time that it takes is nobody's fault."""
        self._detained += 1
        if self._detained == 1:
            self._tell(True)
        try:
            return await authorizer.refused(errand, refused)
        finally:
            self._detained -= 1
            if not self._detained:
                self._tell(False)

    async def close(self) -> None:
        """Close the backend unless the user gave it. Raises nothing."""
        if self._backend is self._http.http:
            return
        try:
            await self._backend.close()
        except Exception:  # whatever a library raises, we leave
            logger.exception("%s: the connections could not be closed in order", self._http.label)


def _wants(refused: Refused) -> bool:
    """Whether a response is about credentials. A plain 403 may be about anything, such as the Host."""
    if refused.status not in _CREDENTIALS:
        return False
    return refused.status == 401 or "insufficient_scope" in refused.challenge


def _rejected(refused: Refused) -> AuthError:
    """The error for credentials that were refused. What the server says may repeat them: it is not told."""
    if refused.status == 401:
        return TokenRejected(
            "the server does not accept the credentials", hint="the token may have expired: see auth="
        )
    return InsufficientScope(
        "the credentials are good, but not for this", hint="get a token with more scopes"
    )


def _next(here: str, response: Response, left: int) -> str:
    """Where a redirect leads, if we may go there, and that often."""
    if not left:
        raise RequestFailed(f"the server redirects more than {MAX_REDIRECTS} times", status=response.status)
    status, location = response.status, response.headers.get("location", "")
    try:
        there = resolve(here, location)
    except ConnectFailed as error:
        raise RequestFailed(
            f"the server redirects elsewhere: {error.message}",
            status=status,
            hint="connect to that URL if you trust it: headers and messages go nowhere else by themselves",
        ) from None
    if status not in _SAME_REQUEST:
        raise RequestFailed(
            f"the server redirects with {_phrase(status)}, which drops the message",
            status=status,
            hint=f"connect to {there.partition('?')[0]} instead",
        )
    return there


# --------------------------------------------------------------------- what a response is


def is_success(response: Response) -> bool:
    """Whether the status says that all is well."""
    return 200 <= response.status < 300


def is_events(response: Response) -> bool:
    """Whether the response is an event stream."""
    kind = response.headers.get("content-type", "")
    return is_success(response) and (kind == EVENTS or kind.partition(";")[0].strip().lower() == EVENTS)


def is_json(response: Response) -> bool:
    """Whether the body is JSON."""
    kind = response.headers.get("content-type")
    return kind == JSON or rules.is_json(kind)


async def stream_of(response: Response) -> AsyncIterator[bytes]:
    """The body of a response that is an event stream.

    Raises:
        RequestFailed: it is none.
    """
    if not is_events(response):
        raise await refusal(response, lacks="no event stream")
    return response.chunks()


async def accepted(response: Response) -> None:
    """Return if the server has taken a message that has no answer.

    Raises:
        RequestFailed: it has not.
    """
    if not is_success(response):
        raise await refusal(response)
    size = response.headers.get("content-length", "")
    if size.isdigit() and int(size) <= MAX_LEFTOVER:
        # It has taken the message, whatever becomes of what it says besides.
        with contextlib.suppress(RequestFailed, TimeoutError):
            async with asyncio.timeout(QUOTE_WAIT):
                await response.read(MAX_LEFTOVER)


async def refusal(
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
        what = "without a content type" if kind is None else f"of type {rules.show(kind)}"
        return RequestFailed(
            f"the server answered with {_phrase(status)} {what}, which is {lacks}",
            status=status,
            hint="is this the URL of an MCP endpoint?",
        )
    start = await _start(response) if body is None else body
    reason = _reason(start)
    text = _line(start if reason is None else reason.encode())
    said = f": {text}" if text else ""
    hint = None if reason and status == HTTPStatus.FORBIDDEN else _HINTS.get(status)  # it may be the Host
    return RequestFailed(f"the server answered with {_phrase(status)}{said}", status=status, hint=hint)


def _reason(body: bytes) -> str | None:
    """What an error says that is JSON-RPC."""
    try:
        return _SAID(body).error.message
    except Unfit:
        return None


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


async def _start(response: Response) -> bytes:
    """The start of a text that is meant for people, or at least can be read by them."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    start = bytearray()
    if kind in _QUOTABLE:
        try:
            async with asyncio.timeout(QUOTE_WAIT):
                async for chunk in response.chunks():
                    start += chunk
                    if len(start) >= MAX_LEFTOVER:
                        break
        except (RequestFailed, TimeoutError):
            pass  # what is there has to do
    return bytes(start)


def _line(start: bytes) -> str:
    text = " ".join(start[: 8 * MAX_QUOTE].decode("utf-8", "replace").split())
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= MAX_QUOTE else f"{text[: MAX_QUOTE - 1]}…"
