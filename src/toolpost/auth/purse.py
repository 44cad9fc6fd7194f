"""The tokens that a client uses at one server now, and how a request carries them.

Owns the header, the proofs where tokens are bound to a key, and whether they were good for anything yet.
Where they come from is not known here.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, Literal

from toolpost.auth.demand import load_prover
from toolpost.auth.dpop import DpopProver
from toolpost.auth.tokens import Tokens
from toolpost.errors import AuthError

__all__ = ["DpopHeaders", "TokenCache"]

TOKEN_PROBATION: Final = 600.0
"""Seconds after which nothing follows any more from how tokens were got: their first request may have been
lost, and they may have been revoked since."""

SentHeaders = Mapping[str, str]


class DpopHeaders(dict[str, str]):
    """Headers with a proof in them, which is another one for each request."""

    def __init__(self, headers: SentHeaders, token: SentHeaders) -> None:
        super().__init__(headers)
        self.token_headers = token

    @staticmethod
    def strip_proof(sent: SentHeaders) -> SentHeaders:
        """The headers that requests with the same token share."""
        return sent.token_headers if isinstance(sent, DpopHeaders) else sent


class TokenCache:
    """The tokens in use.

    Attributes:
        tokens: the tokens; None if there are none.
        change_event: set when there are other tokens; each has an event of its own.
    """

    def __init__(self) -> None:
        self.tokens: Tokens | None = None
        self._acquisition: tuple[Literal["refreshed", "granted"], float] | None = None
        self.change_event = asyncio.Event()
        self._header: SentHeaders = {}
        self._prover: DpopProver | None = None
        self._failure: tuple[SentHeaders, AuthError] | None = None

    def put(self, tokens: Tokens | None, how: Literal["refreshed", "granted"] | None = None) -> None:
        """Use these tokens from here on.

        Args:
            tokens: the tokens; None for none.
            how: how they were got just now.
        """
        self.tokens = tokens
        self._acquisition = None if how is None else (how, time.monotonic())
        self._failure = None
        if tokens is None:
            self._header, self._prover = {}, None
            return
        if tokens.kind == "dpop":
            if self._prover is None or self._prover.jwk != tokens.key:
                self._prover = load_prover(tokens)
            self._header = {"authorization": f"DPoP {tokens.access}"}
        else:
            self._header, self._prover = {"authorization": f"Bearer {tokens.access}"}, None
        self.change_event.set()
        self.change_event = asyncio.Event()

    @property
    def unproven_source(self) -> Literal["refreshed", "granted"] | None:
        """How the tokens were got, as long as they should be good, and none has gone through with them."""
        if self._acquisition is None or self.tokens is None or self.tokens.is_expired:
            return None
        how, then = self._acquisition
        return how if time.monotonic() - then < TOKEN_PROBATION else None

    def mark_accepted(self, sent: SentHeaders) -> bool:
        """Whether a request that has gone through is the first one with the tokens in use."""
        first = self._acquisition is not None and self.is_current(sent)
        if first:
            self._acquisition = None
        return first

    def headers(self, method: str, url: str) -> SentHeaders:
        """What a request has to carry."""
        if self.tokens is None or self._prover is None:
            return self._header
        return DpopHeaders(
            {**self._header, **self._prover.build_header(method, url, self.tokens.access)}, self._header
        )

    def is_current(self, sent: SentHeaders) -> bool:
        """Whether a request carried the tokens that are in use."""
        return sent.get("authorization") == self._header.get("authorization")

    def store_nonce(self, url: str, headers: Mapping[str, str]) -> bool:
        """Remember the nonce that a response names, for proofs; whether it is another one than before."""
        return self._prover is not None and self._prover.store_nonce(url, headers)

    @property
    def generation(self) -> object:
        """Stands for the tokens as they are carried now; see `record_failure`."""
        return self._header

    def record_failure(self, mark: object, error: AuthError) -> None:
        """Let those know who are under way with the same tokens that others cannot be had.

        Args:
            mark: what stood for the tokens when that was begun.
            error: why.
        """
        if self._header is mark:
            self._failure = self._header, error
            self._header = dict(self._header)  # who asks from here on tries anew

    def check_failure(self, sent: SentHeaders) -> None:
        """Return if nobody has tried in vain since a request was sent.

        Raises:
            AuthError: somebody has.
        """
        if self._failure is not None and DpopHeaders.strip_proof(sent) is self._failure[0]:
            raise self._failure[1]
