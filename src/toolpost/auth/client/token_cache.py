"""The tokens that a client uses at one server now, and how a request carries them.

Owns the header, the proofs where tokens are bound to a key, and whether they were good for anything yet.
Where they come from is not known here.

PART ledger: What is kept about one server between runs: who issues its tokens, and the tokens.

Owns the keys by which they are found, so that nobody finds what is for somebody else. What is done with
tokens is not known here.

PART demand: What a refusal wants, and so what is asked for: scopes, and whether tokens are bound to a key.

Owns which of several challenges is answered, and how the wishes of a server, of the user and of the last
time come together. Makes the key that tokens are to be bound to. Asks nobody.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from toolpost.auth.client.discovery import Challenge, parse_challenges
from toolpost.auth.client.signing import DPOP_ALGORITHM, DpopProver
from toolpost.auth.client.storage import ResilientStorage
from toolpost.auth.client.token_endpoint import ServerRecord, Tokens, decode_record, encode_record
from toolpost.errors import AuthError

if TYPE_CHECKING:
    from toolpost.auth.client.discovery import DiscoveredServer
    from toolpost.auth.client.grant import Grant

logger: Final = logging.getLogger("toolpost.auth")


class TokenRecords:
    """What one client keeps about one server."""

    def __init__(self, storage: ResilientStorage, server: str, who: str) -> None:
        self._storage = storage
        self._server = server
        self._client_key = who
        self._saved_server: ServerRecord | None = None

    async def load_server(self) -> ServerRecord | None:
        """What was found out about the server the last time."""
        text = await self._storage.get(f"server\n{self._server}\n{self._client_key}")
        self._saved_server = None if text is None else decode_record(text, ServerRecord)
        return self._saved_server

    async def save_server(self, known: ServerRecord) -> None:
        """Keep what was found out."""
        if self._saved_server != known:
            await self._storage.put(f"server\n{self._server}\n{self._client_key}", encode_record(known))
            self._saved_server = known

    async def load_tokens(self, known: ServerRecord) -> Tokens | None:
        """The tokens that were kept."""
        text = await self._storage.get(self._tokens_key(known))
        tokens = None if text is None else decode_record(text, Tokens)
        if text is not None and tokens is None:
            logger.warning("the tokens for %s cannot be read; they are got anew", known.issuer)
        return tokens

    async def save_tokens(self, known: ServerRecord, tokens: Tokens) -> None:
        """Keep new tokens, before they are used: a refresh token that is lost cannot be had again."""
        await self._storage.put(self._tokens_key(known), encode_record(tokens))
        await self.save_server(known)

    async def delete_tokens(self, known: ServerRecord) -> None:
        """Keep tokens no longer."""
        await self._storage.delete(self._tokens_key(known))

    def lock(self, known: ServerRecord) -> AbstractAsyncContextManager[None]:
        """Keep out others who want these tokens."""
        return self._storage.lock(self._tokens_key(known))

    def _tokens_key(self, known: ServerRecord) -> str:
        """The name of the tokens: issuer, resource, client; the address too, where the resource is wider.

        A server may call all of its host its resource. So may its neighbour, where nobody has logged in.
        """
        narrow = "" if known.resource == self._server else f"\n{self._server}"
        return f"tokens\n{known.issuer}\n{known.resource}\n{self._client_key}{narrow}"


# --------------------------------------------------------------------- demand

OFFLINE_ACCESS: Final = "offline_access"


class SelectedChallenge(NamedTuple):
    """What a refusal wants."""

    challenge: Challenge
    schemes: frozenset[str]

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs, as far as told."""
        return self.challenge.scopes

    def compute_scopes(
        self, grant: "Grant", found: "DiscoveredServer", last: "Tokens | None"
    ) -> tuple[str, ...]:
        """The scopes to ask for: what server and user want, and what was asked for before (AUTH-12)."""
        own = grant.settings.scopes
        wanted = self.scopes or (() if own else found.resource.scopes_supported or ())
        before = () if last is None else last.asked
        scopes = [*dict.fromkeys((*before, *wanted, *own))]
        listed = found.issuer.scopes_supported or ()
        if OFFLINE_ACCESS in scopes and OFFLINE_ACCESS not in listed and OFFLINE_ACCESS not in own:
            scopes.remove(OFFLINE_ACCESS)
        elif scopes and OFFLINE_ACCESS in listed and OFFLINE_ACCESS not in scopes and grant.asks_user:
            scopes.append(OFFLINE_ACCESS)
        return tuple(scopes)

    def make_prover(self, grant: "Grant", found: "DiscoveredServer") -> DpopProver | None:
        """What binds new tokens to a key, where that is wanted."""
        dpop = grant.settings.dpop
        if dpop is False or (dpop == "auto" and "dpop" not in self.schemes):
            return None
        if DPOP_ALGORITHM in (found.issuer.dpop_signing_alg_values_supported or ()):
            return DpopProver()
        if dpop == "auto" and "bearer" in self.schemes:
            return None
        raise AuthError(
            f"tokens shall be bound to a key, but the authorization server does not list {DPOP_ALGORITHM}"
        )


def select_challenge(challenge: str, dpop: object) -> SelectedChallenge:
    """What a refusal wants; a token that is bound to a key rather than another, if we may."""
    by_scheme = {each.scheme: each for each in reversed(parse_challenges(challenge))}
    order = ("bearer", "dpop") if dpop is False else ("dpop", "bearer")
    chosen = next((by_scheme[scheme] for scheme in order if scheme in by_scheme), Challenge("", {}))
    return SelectedChallenge(chosen, frozenset(by_scheme))


def load_prover(tokens: "Tokens | None") -> DpopProver | None:
    """What proves that tokens are ours, if they are bound to a key."""
    return None if tokens is None or tokens.key is None else DpopProver(tokens.key)


# --------------------------------------------------------------------- purse

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
    """The tokens in use."""

    def __init__(self) -> None:
        self.tokens: Tokens | None = None
        self._acquisition: tuple[Literal["refreshed", "granted"], float] | None = None
        self.change_event = asyncio.Event()
        self._header: SentHeaders = {}
        self._prover: DpopProver | None = None
        self._failure: tuple[SentHeaders, AuthError] | None = None

    def put(self, tokens: Tokens | None, how: Literal["refreshed", "granted"] | None = None) -> None:
        """Use these tokens from here on."""
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
        """Let those know who are under way with the same tokens that others cannot be had."""
        if self._header is mark:
            self._failure = self._header, error
            self._header = dict(self._header)  # who asks from here on tries anew

    def check_failure(self, sent: SentHeaders) -> None:
        """Return if nobody has tried in vain since a request was sent."""
        if self._failure is not None and DpopHeaders.strip_proof(sent) is self._failure[0]:
            raise self._failure[1]
