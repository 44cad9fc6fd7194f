"""Access tokens that only their issuer can read: it is asked whose they are (RFC 7662).

Owns the question and what makes an answer good. Answers are remembered for a short while, so that a token
that was revoked is soon refused; how, is told in `verifier`.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from toolpost.auth.issuer import PATIENCE, check_url, engine_of, fetch, foreign, issuer_of, seconds_of
from toolpost.auth.jwt import LEEWAY, audience_of, check_audience, check_times, principal_of
from toolpost.auth.verifier import Memory
from toolpost.errors import RequestFailed, TokenRejected
from toolpost.flight import Flight
from toolpost.principal import Principal

__all__ = ["Introspection"]

KEEP: Final = 30.0
"""Seconds for which an answer is remembered, unless you say so: so long may a revoked token be good."""

REFUSED: Final = 10.0
"""Seconds for which it is remembered, at most, that a token is not good: it will hardly become so."""

MOST: Final = 32
"""Questions under way at once: whoever sends invented tokens must not flood the authorization server. About
tokens that were good before there may be as many besides, so that inventions are not in their way."""

WAITING: Final = 128
"""Questions that wait for that: more would be given up by who asks before they are answered."""

FAMILIAR: Final = 24 * 3600.0
"""Seconds for which it is remembered that a token was good, which gives it precedence and nothing else."""

_ACCESS: Final = frozenset(
    {"bearer", "dpop", "access", "access_token", "urn:ietf:params:oauth:token-type:access_token"}
)
"""What answers call an access token, in lower case; other tokens of the same issuer are not good here."""


class Introspection:
    """Asks the authorization server whose a token is.

    Args:
        endpoint: where to ask.
        client_id: by what name we are known there.
        client_secret: what proves it.
        issuer: who has to have issued the tokens, where the answer says it; it is the issuer of the principal
            in any case.
        audience: what tokens say they are for, if that is not the URL of the resource.
        keep: seconds for which an answer is remembered; 0 to ask each time.
        http: what carries HTTP, as in `Http(http=…)`.

    Raises:
        ValueError: an argument cannot work; the text names it.

    Examples:
        >>> asks = Introspection("https://login.example.com/introspect", "notes", "secret")
        >>> auth = Auth("https://login.example.com", verifier=asks)
    """

    def __init__(
        self,
        endpoint: str,
        client_id: str,
        client_secret: str,
        *,
        issuer: str = "",
        audience: str | None = None,
        keep: float = KEEP,
        http: object = None,
    ) -> None:
        self.keep = seconds_of(keep, "keep", 3600)
        self._endpoint = check_url(endpoint, "endpoint", "https://login.example.com/introspect")
        for name, value in (("client_id", client_id), ("client_secret", client_secret)):
            if not isinstance(value, str) or not value:  # pyright: ignore[reportUnnecessaryIsInstance] - it may come from an environment that lacks it
                raise ValueError(
                    f"{name} has to be a text; it is {'empty' if value == '' else type(value).__name__}"
                )
        # Both are form-encoded before they are joined (RFC 6749 §2.3.1).
        pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
        self._credentials = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self.issuer = issuer and issuer_of(issuer)
        self._audience = audience_of(audience)
        self._http = engine_of(http)
        self._refused, self._familiar = Memory(), Memory()
        self._lanes = {True: _Lane(), False: _Lane()}

    def __repr__(self) -> str:
        return f"Introspection({self._endpoint!r})"

    async def verify(self, token: str, *resources: str) -> Principal:
        """Whose the token is.

        Raises:
            TokenRejected: it is not good here.
            TransportError: the authorization server cannot be asked.
        """
        wanted = self._audience or resources
        about = " ".join((token, *wanted))  # what is refused for one server may be good for another
        why = self._refused.recall(about)
        if isinstance(why, str):
            raise TokenRejected(why)
        lane = self._lanes[self._familiar.recall(about) is not None]
        try:
            found = await lane.join(about, partial(self._found_out, token, wanted, lane))
        except TokenRejected as error:
            self._refused.note(about, error.message, min(self.keep, REFUSED))
            raise
        self._familiar.note(about, found, FAMILIAR)
        return found

    async def _found_out(self, token: str, wanted: tuple[str, ...], lane: "_Lane") -> Principal:
        told = await self._ask(token, lane)
        if told.get("active") is not True:
            raise TokenRejected("its issuer says that it is not active")
        for name in ("token_type", "token_use", "typ"):  # RFC 7662, and what providers add to it
            kind = told.get(name, "bearer")
            if not isinstance(kind, str) or kind.lower() not in _ACCESS:
                raise TokenRejected(f"it is no access token, by its {name}")
        if self.issuer and told.get("iss", self.issuer) != self.issuer:
            raise TokenRejected(foreign(told["iss"], self.issuer))
        check_audience(told, wanted)
        check_times(told, LEEWAY)
        return principal_of({"iss": self.issuer, **told} if self.issuer else told)

    async def _ask(self, token: str, lane: "_Lane") -> dict[str, Any]:
        headers = {
            "authorization": self._credentials,
            "content-type": "application/x-www-form-urlencoded",
        }
        body = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        try:
            async with asyncio.timeout(PATIENCE), lane.place():
                status, told = await fetch(self._http, "POST", self._endpoint, headers, body)
        except TimeoutError:
            raise RequestFailed(f"{self._endpoint} did not answer within {PATIENCE:g} s") from None
        if status == 401:
            raise RequestFailed(f"{self._endpoint} answers with 401: see client_id= and client_secret=")
        if status != 200 or "active" not in told:
            raise RequestFailed(f"{self._endpoint} answers to introspection with {status}")
        return told


class _Lane:
    """The questions about tokens of one kind: those that wait, and those that are asked."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight[Principal]] = {}
        self._places: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def join(self, about: str, ask: Callable[[], Awaitable[Principal]]) -> Principal:
        """What comes of a question, which is asked once for all who want to know.

        Raises:
            RequestFailed: too many wait.
        """
        flight = self._flights.get(about)
        if flight is None:
            if len(self._flights) >= MOST + WAITING:
                raise RequestFailed("too many tokens wait for the authorization server to be asked")
            flight = self._flights[about] = Flight()
        try:
            return await flight.join(ask)
        finally:
            if not flight.busy and self._flights.get(about) is flight:
                del self._flights[about]

    def place(self) -> asyncio.Semaphore:
        """Where to wait until one more may be asked."""
        loop = asyncio.get_running_loop()
        if self._places is None or self._places[0] is not loop:
            self._places = loop, asyncio.Semaphore(MOST)
        return self._places[1]
