"""The tokens that a client uses at one server now, and how a request carries them.

Owns the header, the proofs where tokens are bound to a key, and whether they were good for anything yet.
Where they come from is not known here.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, Literal

from toolpost.auth.demand import proofs_of
from toolpost.auth.dpop import Proofs
from toolpost.auth.tokens import Tokens
from toolpost.errors import AuthError

__all__ = ["Proven", "Purse"]

LAPSE: Final = 600.0
"""Seconds after which nothing follows any more from how tokens were got: their first request may have been
lost, and they may have been revoked since."""

Sent = Mapping[str, str]


class Proven(dict[str, str]):
    """Headers with a proof in them, which is another one for each request."""

    def __init__(self, headers: Sent, token: Sent) -> None:
        super().__init__(headers)
        self.token = token

    @staticmethod
    def without_proof(sent: Sent) -> Sent:
        """The headers that requests with the same token share."""
        return sent.token if isinstance(sent, Proven) else sent


class Purse:
    """The tokens in use.

    Attributes:
        tokens: the tokens; None if there are none.
        news: set when there are other tokens; each has an event of its own.
    """

    def __init__(self) -> None:
        self.tokens: Tokens | None = None
        self._got: tuple[Literal["refreshed", "granted"], float] | None = None
        self.news = asyncio.Event()
        self._header: Sent = {}
        self._proofs: Proofs | None = None
        self._spoiled: tuple[Sent, AuthError] | None = None

    def put(self, tokens: Tokens | None, how: Literal["refreshed", "granted"] | None = None) -> None:
        """Use these tokens from here on.

        Args:
            tokens: the tokens; None for none.
            how: how they were got just now.
        """
        self.tokens = tokens
        self._got = None if how is None else (how, time.monotonic())
        self._spoiled = None
        if tokens is None:
            self._header, self._proofs = {}, None
            return
        if tokens.kind == "dpop":
            if self._proofs is None or self._proofs.jwk != tokens.key:
                self._proofs = proofs_of(tokens)
            self._header = {"authorization": f"DPoP {tokens.access}"}
        else:
            self._header, self._proofs = {"authorization": f"Bearer {tokens.access}"}, None
        self.news.set()
        self.news = asyncio.Event()

    @property
    def unproven(self) -> Literal["refreshed", "granted"] | None:
        """How the tokens were got, as long as they should be good, and none has gone through with them."""
        if self._got is None or self.tokens is None or self.tokens.ended:
            return None
        how, then = self._got
        return how if time.monotonic() - then < LAPSE else None

    def proves(self, sent: Sent) -> bool:
        """Whether a request that has gone through is the first one with the tokens in use."""
        first = self._got is not None and self.has(sent)
        if first:
            self._got = None
        return first

    def headers(self, method: str, url: str) -> Sent:
        """What a request has to carry."""
        if self.tokens is None or self._proofs is None:
            return self._header
        return Proven({**self._header, **self._proofs.header(method, url, self.tokens.access)}, self._header)

    def has(self, sent: Sent) -> bool:
        """Whether a request carried the tokens that are in use."""
        return sent.get("authorization") == self._header.get("authorization")

    def note(self, url: str, headers: Mapping[str, str]) -> bool:
        """Remember the nonce that a response names, for proofs; whether it is another one than before."""
        return self._proofs is not None and self._proofs.note(url, headers)

    @property
    def mark(self) -> object:
        """Stands for the tokens as they are carried now; see `spoil`."""
        return self._header

    def spoil(self, mark: object, error: AuthError) -> None:
        """Let those know who are under way with the same tokens that others cannot be had.

        Args:
            mark: what stood for the tokens when that was begun.
            error: why.
        """
        if self._header is mark:
            self._spoiled = self._header, error
            self._header = dict(self._header)  # who asks from here on tries anew

    def check_spoiled(self, sent: Sent) -> None:
        """Return if nobody has tried in vain since a request was sent.

        Raises:
            AuthError: somebody has.
        """
        if self._spoiled is not None and Proven.without_proof(sent) is self._spoiled[0]:
            raise self._spoiled[1]
