"""Access tokens that only their issuer can read: it is asked whose they are (RFC 7662).

Owns the question and what makes an answer good. Answers are remembered for a short while, so that a token
that was revoked is soon refused; how, is told in `verifier`.
"""

import asyncio
import base64
import time
from typing import Any, Final, cast
from urllib.parse import quote_plus, urlencode

from toolpost.auth.issuer import check_url, fetch
from toolpost.auth.jwt import principal_of
from toolpost.auth.places import same_place
from toolpost.errors import RequestFailed, TokenRejected
from toolpost.principal import Principal

__all__ = ["Introspection"]

KEEP: Final = 30.0
"""Seconds for which an answer is remembered, unless you say so: so long may a revoked token be good."""

MOST: Final = 32
"""Questions under way at once: whoever sends invented tokens must not flood the authorization server."""


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
        if not 0 <= keep <= 3600:
            raise ValueError(f"keep is {keep!r}; give seconds, 0 to 3600")
        self.keep = float(keep)
        self._endpoint = check_url(endpoint, "endpoint")
        # Both are form-encoded before they are joined (RFC 6749 §2.3.1).
        pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
        self._credentials = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._issuer = issuer
        self._audience = audience
        self._http = http
        self._places: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    def __repr__(self) -> str:
        return f"Introspection({self._endpoint!r})"

    async def verify(self, token: str, resource: str) -> Principal:
        """Whose the token is.

        Raises:
            TokenRejected: it is not good here.
            TransportError: the authorization server cannot be asked.
        """
        told = await self._ask(token)
        if told.get("active") is not True:
            raise TokenRejected("its issuer says that it is not active")
        self._check(told, self._audience or resource)
        return principal_of({"iss": self._issuer, **told} if self._issuer else told)

    async def _ask(self, token: str) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if self._places is None or self._places[0] is not loop:
            self._places = loop, asyncio.Semaphore(MOST)
        headers = {
            "authorization": self._credentials,
            "content-type": "application/x-www-form-urlencoded",
        }
        body = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        async with self._places[1]:
            status, told = await fetch(self._http, "POST", self._endpoint, headers, body)
        if status != 200 or "active" not in told:
            raise RequestFailed(f"the authorization server answers to introspection with {status}")
        return told

    def _check(self, told: dict[str, Any], audience: str) -> None:
        now = time.time()
        if self._issuer and told.get("iss", self._issuer) != self._issuer:
            raise TokenRejected("another issuer has issued it")
        meant = told.get("aud")
        named = cast("list[Any]", meant) if isinstance(meant, list) else [meant]
        if not any(same_place(each, audience) for each in named):
            raise TokenRejected("it was issued for another resource")
        for name, sign in (("exp", 1), ("nbf", -1)):
            value = told.get(name)
            if value is not None and not (isinstance(value, int | float) and (value - now) * sign > 0):
                raise TokenRejected(f"by its {name}, it is not good now")
