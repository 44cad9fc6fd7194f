"""The tokens of one server: those in use, with the headers that carry them, and those in the storage.

Owns the keys in the storage, so that no client finds the tokens of another, and which challenge of a refusal
is answered with which scopes. Sends no request.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, NamedTuple, TypeAlias

from toolpost.auth.client.discovery import Challenge, DiscoveredServer, ServerRecord, parse_challenges
from toolpost.auth.client.grant import Grant
from toolpost.auth.client.signing import DPOP_ALGORITHM, DpopProver
from toolpost.auth.client.storage import ResilientStorage
from toolpost.auth.client.token_endpoint import Tokens, decode_record, encode_record
from toolpost.errors import AuthError

logger: Final = logging.getLogger("toolpost.auth")

OFFLINE_ACCESS: Final = "offline_access"
TOKEN_PROBATION: Final = 600.0  # seconds for which the source of tokens counts: a first request may be lost

TokenSource: TypeAlias = Literal["refreshed", "granted"]


class TokenRecords:
    """The stored records of one client about one server."""

    def __init__(self, storage: ResilientStorage, server: str, client_key: str) -> None:
        self._storage = storage
        self._server = server
        self._client_key = client_key
        self._server_key = f"server\n{server}\n{client_key}"
        self._saved_server: ServerRecord | None = None

    async def load_server(self) -> ServerRecord | None:
        """Return the record of the server by the last run."""
        self._saved_server = decode_record(await self._storage.get(self._server_key), ServerRecord)
        return self._saved_server

    async def save_server(self, known: ServerRecord) -> None:
        """Store the record of the server."""
        if self._saved_server != known:
            await self._storage.put(self._server_key, encode_record(known))
            self._saved_server = known

    async def load_tokens(self, known: ServerRecord) -> Tokens | None:
        """Return the stored tokens."""
        text = await self._storage.get(self._tokens_key(known))
        tokens = decode_record(text, Tokens)
        if text is not None and tokens is None:
            logger.warning("the tokens for %s cannot be read; they are got anew", known.issuer)
        return tokens

    async def save_tokens(self, known: ServerRecord, tokens: Tokens) -> None:
        """Store new tokens, before they are used: a refresh token that is lost cannot be had again."""
        await self._storage.put(self._tokens_key(known), encode_record(tokens))
        await self.save_server(known)

    async def delete_tokens(self, known: ServerRecord) -> None:
        """Delete the stored tokens."""
        await self._storage.delete(self._tokens_key(known))

    def lock(self, known: ServerRecord) -> AbstractAsyncContextManager[None]:
        """Keep out others that need these tokens."""
        return self._storage.lock(self._tokens_key(known))

    def _tokens_key(self, known: ServerRecord) -> str:
        """Return the key of the tokens: issuer, resource, client; the address too, if the resource is wider.

        A server may call all of its host its resource. So may its neighbour, which got no token.
        """
        narrow = "" if known.resource == self._server else f"\n{self._server}"
        return f"tokens\n{known.issuer}\n{known.resource}\n{self._client_key}{narrow}"


# --------------------------------------------------------------------- challenges


class SelectedChallenge(NamedTuple):
    """The challenge to answer, and all schemes that the refusal offers."""

    challenge: Challenge
    schemes: frozenset[str]

    def compute_scopes(self, grant: Grant, found: DiscoveredServer, last: Tokens | None) -> tuple[str, ...]:
        """Return the scopes to ask for: those of server and user, and those of before (AUTH-12)."""
        own = grant.settings.scopes
        wanted = self.challenge.scopes or (() if own else found.resource.scopes_supported or ())
        before = () if last is None else last.asked
        scopes = [*dict.fromkeys((*before, *wanted, *own))]
        listed = found.issuer.scopes_supported or ()
        if OFFLINE_ACCESS in scopes and OFFLINE_ACCESS not in listed and OFFLINE_ACCESS not in own:
            scopes.remove(OFFLINE_ACCESS)
        elif scopes and OFFLINE_ACCESS in listed and OFFLINE_ACCESS not in scopes and grant.asks_user:
            scopes.append(OFFLINE_ACCESS)
        return tuple(scopes)

    def make_prover(self, grant: Grant, found: DiscoveredServer) -> DpopProver | None:
        """Return what binds new tokens to a key, where that is required."""
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
    """Choose the challenge to answer: for a token that is bound to a key, if that is allowed."""
    by_scheme = {each.scheme: each for each in reversed(parse_challenges(challenge))}
    order = ("bearer", "dpop") if dpop is False else ("dpop", "bearer")
    chosen = next((by_scheme[scheme] for scheme in order if scheme in by_scheme), Challenge("", {}))
    return SelectedChallenge(chosen, frozenset(by_scheme))


def load_prover(tokens: Tokens | None) -> DpopProver | None:
    """Return the prover for tokens that are bound to a key."""
    return None if tokens is None or tokens.key is None else DpopProver(tokens.key)


# --------------------------------------------------------------------- tokens in use


class DpopHeaders(dict[str, str]):
    """Headers with a proof in them, which is another one for each request."""

    token_headers: Mapping[str, str]  # those without it, which requests with the same token share


class TokenCache:
    """The tokens in use."""

    def __init__(self) -> None:
        self.tokens: Tokens | None = None
        self._acquisition: tuple[TokenSource, float] | None = None
        self.change_event = asyncio.Event()
        self._header: dict[str, str] = {}
        self._prover: DpopProver | None = None
        self._failure: tuple[Mapping[str, str], AuthError] | None = None

    def put(self, tokens: Tokens | None, how: TokenSource | None = None) -> None:
        """Use these tokens from here on."""
        self.tokens = tokens
        self._acquisition = None if how is None else (how, time.monotonic())
        self._failure = None
        if tokens is None:
            self._header, self._prover = {}, None
            return
        if tokens.kind != "dpop":
            self._prover = None
        elif self._prover is None or self._prover.jwk != tokens.key:
            self._prover = load_prover(tokens)
        scheme = "DPoP" if tokens.kind == "dpop" else "Bearer"
        self._header = {"authorization": f"{scheme} {tokens.access}"}
        self.change_event.set()
        self.change_event = asyncio.Event()

    @property
    def unproven_source(self) -> TokenSource | None:
        """How the tokens were got, as long as they should be good and were not accepted yet."""
        if self._acquisition is None or self.tokens is None or self.tokens.is_expired:
            return None
        how, then = self._acquisition
        return how if time.monotonic() - then < TOKEN_PROBATION else None

    def mark_accepted(self, sent: Mapping[str, str]) -> bool:
        """Return whether an accepted request is the first one with the tokens in use."""
        first = self._acquisition is not None and self.is_current(sent)
        if first:
            self._acquisition = None
        return first

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the headers that a request has to carry."""
        if self.tokens is None or self._prover is None:
            return self._header
        headers = DpopHeaders(self._header | self._prover.build_header(method, url, self.tokens.access))
        headers.token_headers = self._header
        return headers

    def is_current(self, sent: Mapping[str, str]) -> bool:
        """Whether a request carried the tokens that are in use."""
        return sent.get("authorization") == self._header.get("authorization")

    def store_nonce(self, url: str, headers: Mapping[str, str]) -> bool:
        """Store the nonce of a response; return whether it is new."""
        return self._prover is not None and self._prover.store_nonce(url, headers)

    @property
    def generation(self) -> object:
        """An object that stands for the tokens in use; see `record_failure`."""
        return self._header

    def record_failure(self, mark: object, error: AuthError) -> None:
        """Let all requests with the same tokens fail with an error."""
        if self._header is mark:
            self._failure = self._header, error
            self._header = dict(self._header)  # later requests try again

    def check_failure(self, sent: Mapping[str, str]) -> None:
        """Raise the failure to get other tokens that has happened since a request was sent."""
        shared = sent.token_headers if isinstance(sent, DpopHeaders) else sent  # by requests with one token
        if self._failure is not None and shared is self._failure[0]:
            raise self._failure[1]
