"""Credentials of a client: the `Authorizer` protocol, and its two simple kinds, a token and a token function.

An authorizer gives the headers for a request, and decides what to do when it was rejected. OAuth lives
elsewhere. No token is ever shown.
"""

import inspect
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable
from urllib.parse import urlsplit

from toolpost.errors import AuthError
from toolpost.protocol.urls import is_loopback_host
from toolpost.single_flight import SingleFlight
from toolpost.threads import ThreadPool

TOKEN_PATTERN: Final = re.compile(r"[\x21-\x7e]+")
"""What a token may consist of: more than RFC 6750 allows, since some services use more."""

MAX_TOKEN_THREADS: Final = 4
"""How many token functions may block at a time: all requests wait for the same token."""

TOKEN_PROBATION: Final = 30.0
"""Seconds for which a new token that was not accepted yet is not replaced by another one."""

SentHeaders: TypeAlias = Mapping[str, str]


class OutgoingRequest(NamedTuple):
    """A request, as far as it matters for authorization.

    Args:
        server: the address of the MCP server, whatever the request itself is sent to.
        method: the verb.
        url: where the request goes; always of the server's origin.
        unattended: whether no caller waits for it, so that no person may be asked to log in.
    """

    server: str
    method: str
    url: str
    unattended: bool = False


class CredentialsRejection(NamedTuple):
    """A response that asks for other credentials.

    Args:
        status: 401 or 403.
        headers: of the response, by their names in lower case.
        sent: the headers that the authorizer had given for the request.
    """

    status: int
    headers: Mapping[str, str]
    sent: SentHeaders

    def __repr__(self) -> str:
        return f"CredentialsRejection({self.status})"  # what was sent is a secret

    @property
    def challenge(self) -> str:
        """The value of `WWW-Authenticate`; all values if there are several."""
        every = getattr(self.headers, "getall", None)  # aiohttp gives the first, the others give all
        values: list[str] = [] if every is None else every("www-authenticate", [])
        return ", ".join(values) if values else self.headers.get("www-authenticate", "")


@runtime_checkable
class Authorizer(Protocol):
    """Gives the credentials for requests. Any number of requests may be in flight at once."""

    async def headers(self, errand: OutgoingRequest, /) -> Mapping[str, str]:
        """Return the headers that a request needs; none if nothing is known yet.

        Raises:
            AuthError: there can be none.
        """
        ...

    async def on_rejected(self, errand: OutgoingRequest, refused: CredentialsRejection, /) -> bool:
        """Return whether to send a request again that got 401 or 403; `headers` is called again then.

        It may take as long as a person needs: the time-outs of requests are paused meanwhile. For an
        unattended request no person is asked, and no time-out is paused.

        Raises:
            AuthError: another try would fail too; the caller of the request gets this error.
        """
        ...

    def on_accepted(self, errand: OutgoingRequest, headers: Mapping[str, str], sent: SentHeaders, /) -> None:
        """Note that the credentials of a request were not rejected. Must not wait."""


TokenSource: TypeAlias = Callable[[], "str | Awaitable[str]"]
"""Returns a token, sync or async. Called once, and again when the server rejects the token."""

ClientAuth: TypeAlias = "str | TokenSource | Authorizer"
"""How a client authorizes itself: a token, a function that gives one, or an authorizer such as `OAuth`."""


def make_authorizer(auth: object) -> Authorizer | None:
    """Return the authorizer for the `auth=` of a user; None for none."""
    if auth is None:
        return None
    if isinstance(auth, str):
        return StaticToken(auth)
    if isinstance(auth, type):
        raise TypeError(f"auth={auth.__name__}: this is a class; make one of it, as in {auth.__name__}(…)")
    if isinstance(auth, Authorizer):
        return auth
    if callable(auth):
        return TokenFunction(cast("TokenSource", auth))
    kind = type(auth).__name__
    raise TypeError(f"auth= takes a token, a function that gives one, or OAuth(…) and the like, not a {kind}")


def build_bearer_header(token: object) -> dict[str, str]:
    """Return the header that carries a token (AUTH-43). The error for an invalid one does not repeat it."""
    if not isinstance(token, str) or not TOKEN_PATTERN.fullmatch(token):
        what = "is no text" if not isinstance(token, str) else "holds what none has" if token else "is empty"
        raise AuthError(
            f"the token {what}",
            hint="it is a single word, without `Bearer` before it and without a line break at its end",
        )
    return {"authorization": f"Bearer {token}"}


def check_encrypted(url: str) -> None:
    """Raise AuthError unless a token may be sent to a URL: over https, or to this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback_host(parts.hostname):
        raise AuthError(
            f"the token would be sent to {parts.hostname or ''} without encryption",
            hint="use https, or a tunnel that ends on this machine",
        )


class StaticToken:
    """Sends one token; there is no other."""

    def __init__(self, token: str) -> None:
        self._headers = build_bearer_header(token)

    def __repr__(self) -> str:
        return "StaticToken(…)"

    async def headers(self, _errand: OutgoingRequest, /) -> Mapping[str, str]:
        """Return the header with the token."""
        return self._headers

    async def on_rejected(self, _errand: OutgoingRequest, _refused: CredentialsRejection, /) -> bool:
        """Return False: there is no other token."""
        return False

    def on_accepted(
        self, _errand: OutgoingRequest, _headers: Mapping[str, str], _sent: SentHeaders, /
    ) -> None:
        """Do nothing."""


class TokenFunction:
    """Sends a token that a function returns; calls it again when the server rejects the token.

    A function that is not async runs in a thread.
    """

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._threads = ThreadPool(MAX_TOKEN_THREADS)
        self._flight: SingleFlight[dict[str, str]] = SingleFlight()
        self._current_headers: dict[str, str] | None = None
        self._unproven_since: float | None = None

    def __repr__(self) -> str:
        return f"TokenFunction({self._name})"

    @property
    def _name(self) -> str:
        return getattr(self._source, "__qualname__", type(self._source).__name__)

    async def headers(self, _errand: OutgoingRequest, /) -> Mapping[str, str]:
        """Return the header with the token; get one if there is none yet."""
        if self._current_headers is None:
            self._current_headers = await self._flight.join(self._fetch_token)
        return self._current_headers

    async def on_rejected(self, _errand: OutgoingRequest, refused: CredentialsRejection, /) -> bool:
        """Return whether there is another token than the rejected one."""
        if self._current_headers is not None and self._current_headers != refused.sent:
            return True  # another request has renewed it meanwhile
        doubtful = (
            self._unproven_since is not None and time.monotonic() - self._unproven_since < TOKEN_PROBATION
        )
        if refused.status != 401 or doubtful:
            return False
        fresh = await self._flight.join(self._fetch_token)
        if fresh == refused.sent:
            return False
        if self._current_headers != fresh:
            self._unproven_since = time.monotonic()
        self._current_headers = fresh
        return True

    def on_accepted(
        self, _errand: OutgoingRequest, _headers: Mapping[str, str], sent: SentHeaders, /
    ) -> None:
        """Note that the token works."""
        if sent is self._current_headers:
            self._unproven_since = None

    async def _fetch_token(self) -> dict[str, str]:
        """Call the function. What it raises may hold secrets: only the cause of the error repeats it."""
        try:
            token = await self._call_source()
        except AuthError:
            raise
        except Exception as error:
            raise AuthError(
                f"{self._name}, which gives the token (auth=), failed: {type(error).__name__}",
                hint="the cause of this error tells more",
            ) from error
        try:
            return build_bearer_header(token)
        except AuthError as error:
            kind = "None" if token is None else f"a {type(token).__name__}"
            what = f"none: {error.message}" if isinstance(token, str) else f"{kind} instead of a text"
            raise AuthError(
                f"{self._name}, which gives the token (auth=), returned {what}",
                hint=error.hint,
            ) from None

    async def _call_source(self) -> object:
        source = self._source
        call = getattr(source, "__call__", source)  # noqa: B004 - its method may be async
        if inspect.iscoroutinefunction(source) or inspect.iscoroutinefunction(call):
            return await cast("Awaitable[str]", source())
        given = await self._threads.run_in_thread(source)
        return await given if inspect.isawaitable(given) else given
