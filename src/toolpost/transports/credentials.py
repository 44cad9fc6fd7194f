"""Credentials of a client: the `Authorizer` protocol, and its simple kind, a bearer token.

An authorizer gives the headers for a request, and decides what to do when it was rejected. OAuth lives
elsewhere. No token is ever shown.
"""

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable
from urllib.parse import urlsplit

from toolpost.errors import AuthError
from toolpost.protocol.urls import is_loopback_host
from toolpost.single_flight import SingleFlight
from toolpost.threads import ThreadPool

MAX_TOKEN_THREADS: Final = 4  # how many token functions may block at a time
TOKEN_PROBATION: Final = 30.0  # seconds for which a new token that was not accepted yet is not replaced
_TOKEN_PATTERN: Final = re.compile(r"[\x21-\x7e]+")  # more than RFC 6750 allows, since some services use more


class OutgoingRequest(NamedTuple):
    """A request, as far as it matters for authorization."""

    server: str  # the address of the MCP server, whatever the request itself is sent to
    method: str
    url: str  # where the request goes; always of the server's origin
    unattended: bool = False  # whether no caller waits for it, so that no person may be asked to log in


class CredentialsRejection(NamedTuple):
    """A response that may ask for other credentials."""

    status: int
    headers: Mapping[str, str]
    sent: Mapping[str, str]  # the headers that the authorizer had given for the request

    def __repr__(self) -> str:
        return f"CredentialsRejection({self.status})"  # `sent` holds secrets

    @property
    def is_about_credentials(self) -> bool:
        """Whether it rejects the credentials. A plain 403 may be about the Host header, say."""
        return self.status == 401 or (self.status == 403 and "insufficient_scope" in self.challenge)

    @property
    def challenge(self) -> str:
        """The value of `WWW-Authenticate`; all values if there are several."""
        every = getattr(self.headers, "getall", None)  # aiohttp gives the first, the others give all
        values: list[str] = [] if every is None else every("www-authenticate", [])
        return ", ".join(values) if values else self.headers.get("www-authenticate", "")


@runtime_checkable
class Authorizer(Protocol):
    """Gives the credentials for requests. Any number of requests may be in flight at once."""

    async def headers(self, request: OutgoingRequest, /) -> Mapping[str, str]:
        """Return the headers that a request needs; none if nothing is known yet.

        Raises:
            AuthError: there can be none.
        """
        ...

    async def on_rejected(self, request: OutgoingRequest, rejection: CredentialsRejection, /) -> bool:
        """Return whether to send a request again that got 401 or 403; `headers` is called again then.

        It may take as long as a user needs: the timeouts of requests are paused meanwhile. For an
        unattended request no person is asked, and no timeout is paused.

        Raises:
            AuthError: another try would fail too; the caller of the request gets this error.
        """
        ...

    def on_accepted(
        self, request: OutgoingRequest, headers: Mapping[str, str], sent: Mapping[str, str], /
    ) -> None:
        """Note that the credentials of a request were not rejected. Must not wait."""


TokenSource: TypeAlias = Callable[[], "str | Awaitable[str]"]
"""Returns a token, sync or async. Called once, and again when the server rejects the token."""

ClientAuth: TypeAlias = "str | TokenSource | Authorizer"
"""How a client authorizes itself: a token, a function that returns one, or an authorizer such as `OAuth`."""


def make_authorizer(auth: object) -> Authorizer | None:
    """Return the authorizer for the `auth=` of a user; None for none."""
    if auth is None:
        return None
    if isinstance(auth, str):
        return BearerToken(auth)
    if isinstance(auth, type):
        raise TypeError(f"auth={auth.__name__} is a class; pass an instance: {auth.__name__}(…)")
    if isinstance(auth, Authorizer):
        return auth
    if callable(auth):
        return BearerToken(cast("TokenSource", auth))
    kind = type(auth).__name__
    raise TypeError(f"auth= must be a token, a function that returns one, or OAuth(…) etc., not {kind}")


def build_bearer_header(token: object) -> dict[str, str]:
    """Return the header that carries a token (AUTH-43). The error for an invalid one does not repeat it."""
    if not isinstance(token, str) or not _TOKEN_PATTERN.fullmatch(token):
        problem = "is not a string" if not isinstance(token, str) else "is malformed" if token else "is empty"
        raise AuthError(
            f"the token {problem}",
            hint="pass the token alone, without `Bearer` and without a line break at the end",
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


class BearerToken:
    """Sends a token, or the one that a function returns; calls that again when the server rejects the token.

    A function that is not async runs in a thread.
    """

    def __init__(self, source: "str | TokenSource") -> None:
        self._source = source
        self._threads = ThreadPool(MAX_TOKEN_THREADS)
        self._flight: SingleFlight[dict[str, str]] = SingleFlight()
        self._current_headers = build_bearer_header(source) if isinstance(source, str) else None
        self._unproven_since: float | None = None

    def __repr__(self) -> str:
        return f"BearerToken({'…' if isinstance(self._source, str) else self._name})"

    @property
    def _name(self) -> str:
        return getattr(self._source, "__qualname__", type(self._source).__name__)

    async def headers(self, _request: OutgoingRequest, /) -> Mapping[str, str]:
        """Return the header with the token; get one if there is none yet."""
        if self._current_headers is None:
            self._current_headers = await self._flight.join(self._fetch_token)
        return self._current_headers

    async def on_rejected(self, _request: OutgoingRequest, rejection: CredentialsRejection, /) -> bool:
        """Return whether there is another token than the rejected one."""
        if self._current_headers is not None and self._current_headers != rejection.sent:
            return True  # another request has renewed it meanwhile
        since = self._unproven_since
        if since is not None and time.monotonic() - since < TOKEN_PROBATION:
            return False
        if rejection.status != 401 or isinstance(self._source, str):
            return False
        fresh = await self._flight.join(self._fetch_token)
        if fresh == rejection.sent:
            return False
        if self._current_headers != fresh:
            self._unproven_since = time.monotonic()
        self._current_headers = fresh
        return True

    def on_accepted(
        self, _request: OutgoingRequest, _headers: Mapping[str, str], sent: Mapping[str, str], /
    ) -> None:
        """Note that the token works."""
        if sent is self._current_headers:
            self._unproven_since = None

    async def _fetch_token(self) -> dict[str, str]:
        """Call the function. Its exception may contain secrets, so only the cause of the error repeats it."""
        try:
            token = await self._threads.call_function(cast("TokenSource", self._source))
        except AuthError:
            raise
        except Exception as error:
            raise AuthError(
                f"the token function {self._name} (auth=) failed: {type(error).__name__}",
                hint="see the cause of this error",
            ) from error
        try:
            return build_bearer_header(token)
        except AuthError as error:
            kind = "None" if token is None else f"a {type(token).__name__}"
            problem = error.message if isinstance(token, str) else f"{kind} instead of a string"
            text = f"the token function {self._name} (auth=) returned an invalid token: {problem}"
            raise AuthError(text, hint=error.hint) from None
