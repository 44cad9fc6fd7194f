"""The one promise about authorization: headers for a request, and what to do when it was refused.

Owns the promise and the two plain ways to keep it, a token and a function that gives one. Knows no OAuth, and
never shows a token.
"""

import inspect
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable
from urllib.parse import urlsplit

from toolpost.errors import AuthError
from toolpost.single_flight import SingleFlight
from toolpost.threads import ThreadPool

TOKEN_PATTERN: Final = re.compile(r"[\x21-\x7e]+")
"""What a token may consist of. RFC 6750 allows less, and some services give more."""

MAX_TOKEN_THREADS: Final = 4
"""Functions at a time that give tokens and may block: all requests wait for the same token."""

TOKEN_PROBATION: Final = 30.0
"""Seconds for which a token that a function gave is in doubt: its first request may have been lost."""

SentHeaders: TypeAlias = Mapping[str, str]


class OutgoingRequest(NamedTuple):
    """A request, as far as it matters for authorization.

    Args:
        server: the address of the MCP server, whatever the request itself is sent to.
        method: the verb.
        url: where the request goes; always of the server's origin.
        unattended: whether nobody waits for it, so that no person may be bothered for it.
    """

    server: str
    method: str
    url: str
    unattended: bool = False


class CredentialsRejection(NamedTuple):
    """A response that wants other credentials.

    Args:
        status: 401 or 403.
        headers: of the response, by their names in lower case.
        sent: what the authorizer had given for the request.
    """

    status: int
    headers: Mapping[str, str]
    sent: SentHeaders

    def __repr__(self) -> str:
        return f"CredentialsRejection({self.status})"  # what was sent is a secret

    @property
    def challenge(self) -> str:
        """What `WWW-Authenticate` says; where it stands there twice, both."""
        every = getattr(self.headers, "getall", None)  # aiohttp gives the first, the others give all
        values: list[str] = [] if every is None else every("www-authenticate", [])
        return ", ".join(values) if values else self.headers.get("www-authenticate", "")


@runtime_checkable
class Authorizer(Protocol):
    """Says who we are. Any number of requests may be under way at once."""

    async def headers(self, errand: OutgoingRequest, /) -> Mapping[str, str]:
        """The headers that a request needs; none if nothing is known yet.

        Raises:
            AuthError: there can be none.
        """
        ...

    async def on_rejected(self, errand: OutgoingRequest, refused: CredentialsRejection, /) -> bool:
        """Whether to send a request again that was refused with 401 or 403; `headers` is asked anew then.

        It may take as long as a person needs: the time-outs of requests stand still meanwhile. For one that
        is unattended nobody is asked, and no time-out stands still.

        Raises:
            AuthError: it would be in vain; whoever waits for the request gets this error.
        """
        ...

    def on_accepted(self, errand: OutgoingRequest, headers: Mapping[str, str], sent: SentHeaders, /) -> None:
        """A request was not refused for lack of credentials. Must not wait."""
        ...


TokenSource: TypeAlias = Callable[[], "str | Awaitable[str]"]
"""Gives a token, sync or async. Asked once, and again when the server refuses the token."""

ClientAuth: TypeAlias = "str | TokenSource | Authorizer"
"""How a client authorizes itself: a token, a function that gives one, or an authorizer such as `OAuth`."""


def make_authorizer(auth: object) -> Authorizer | None:
    """What keeps the promise for what a user gave.

    Raises:
        TypeError: it is nothing that could authorize anybody.
        AuthError: it is a token that no header can carry.
    """
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
    """The header that carries a token (AUTH-43).

    Raises:
        AuthError: no header can carry it. The text does not repeat it.
    """
    if not isinstance(token, str) or not TOKEN_PATTERN.fullmatch(token):
        what = "is no text" if not isinstance(token, str) else "holds what none has" if token else "is empty"
        raise AuthError(
            f"the token {what}",
            hint="it is a single word, without `Bearer` before it and without a line break at its end",
        )
    return {"authorization": f"Bearer {token}"}


def check_encrypted(url: str) -> None:
    """Return if a token may be sent to an address: over https, or to this machine.

    Raises:
        AuthError: everybody on the way could read it.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        here = ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost" or host.endswith(".localhost")
    if parts.scheme != "https" and not here:
        raise AuthError(
            f"the token would be sent to {host} without encryption",
            hint="use https, or a tunnel that ends on this machine",
        )


class StaticToken:
    """A token that was given.

    Args:
        token: the token.
    """

    def __init__(self, token: str) -> None:
        self._headers = build_bearer_header(token)

    def __repr__(self) -> str:
        return "StaticToken(…)"

    async def headers(self, _errand: OutgoingRequest, /) -> Mapping[str, str]:
        """The token."""
        return self._headers

    async def on_rejected(self, _errand: OutgoingRequest, _refused: CredentialsRejection, /) -> bool:
        """There is no other token."""
        return False

    def on_accepted(
        self, _errand: OutgoingRequest, _headers: Mapping[str, str], _sent: SentHeaders, /
    ) -> None:
        """Nothing is learnt from that."""


class TokenFunction:
    """A token that a function gives: asked for once, and again when the server refuses it.

    Args:
        source: gives the token. One that is not async runs in a thread.
    """

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._threads = ThreadPool(MAX_TOKEN_THREADS)
        self._flight: SingleFlight[dict[str, str]] = SingleFlight()
        self._current_headers: dict[str, str] | None = None
        self._unproven_since: float | None = None  # since when

    def __repr__(self) -> str:
        return f"TokenFunction({self._name})"

    @property
    def _name(self) -> str:
        return getattr(self._source, "__qualname__", type(self._source).__name__)

    async def headers(self, _errand: OutgoingRequest, /) -> Mapping[str, str]:
        """The token, asked for if there is none yet."""
        if self._current_headers is None:
            self._current_headers = await self._flight.join(self._fetch_token)
        return self._current_headers

    async def on_rejected(self, _errand: OutgoingRequest, refused: CredentialsRejection, /) -> bool:
        """Whether there is another token than the one that was refused."""
        if self._current_headers is not None and self._current_headers != refused.sent:
            return True  # somebody else has asked in the meantime
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
        """The token is good."""
        if sent is self._current_headers:
            self._unproven_since = None

    async def _fetch_token(self) -> dict[str, str]:
        """The token that the function gives now.

        Raises:
            AuthError: it fails, or gives none. What it says may hold secrets, and is told by the cause only.
        """
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
        call = getattr(source, "__call__", source)  # noqa: B004 - the method of an object, looked at
        if inspect.iscoroutinefunction(source) or inspect.iscoroutinefunction(call):
            return await cast("Awaitable[str]", source())
        given = await self._threads.run_in_thread(source)
        return await given if inspect.isawaitable(given) else given
