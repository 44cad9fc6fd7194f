"""The tokens of one server: those in use, with the headers that carry them, and those in the storage.

Owns the keys in the storage, so that no client finds the tokens of another, which challenge of a refusal is
answered with which scopes, and how often a user is asked. Sends no request and opens no page.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, NamedTuple, TypeAlias

from toolpost.auth.client.discovery import Challenge, DiscoveredServer, ServerRecord, parse_challenges
from toolpost.auth.client.signing import DPOP_ALGORITHM, DpopProver
from toolpost.auth.client.storage import ResilientStorage
from toolpost.auth.client.token_endpoint import Tokens, decode_record, encode_record
from toolpost.errors import AuthError, InsufficientScope, TokenRejected
from toolpost.protocol.urls import has_secret

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


class SelectedChallenge(NamedTuple):
    """The challenge to answer, and all schemes that the refusal offers."""

    challenge: Challenge
    schemes: frozenset[str]

    def compute_scopes(
        self, found: DiscoveredServer, last: Tokens | None, own: tuple[str, ...], *, asks_user: bool
    ) -> tuple[str, ...]:
        """Return the scopes to ask for: those of server and user, and those of before (AUTH-12)."""
        wanted = self.challenge.scopes or (() if own else found.resource.scopes_supported or ())
        before = () if last is None else last.asked
        scopes = [*dict.fromkeys((*before, *wanted, *own))]
        listed = found.issuer.scopes_supported or ()
        if OFFLINE_ACCESS in scopes and OFFLINE_ACCESS not in listed and OFFLINE_ACCESS not in own:
            scopes.remove(OFFLINE_ACCESS)
        elif scopes and OFFLINE_ACCESS in listed and OFFLINE_ACCESS not in scopes and asks_user:
            scopes.append(OFFLINE_ACCESS)
        return tuple(scopes)

    def make_prover(self, found: DiscoveredServer, dpop: object) -> DpopProver | None:
        """Return what binds new tokens to a key, where that is required."""
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


# --------------------------------------------------------------------- prompts

# How often a user is asked. A login and `MAX_STEP_UPS` make three questions about the same scopes (AUTH-59):
# they may have overlooked a tick the first time. A server could also invent new scopes without end, or accept
# a token now and refuse it then; so grants and logins count as well. Scopes that were granted, and then were
# enough, do not.
MAX_STEP_UPS: Final = 2  # times that the same scopes are not granted
MAX_FRUITLESS_GRANTS: Final = 3  # grants in a row without an accepted request
MAX_PROMPTS: Final = 6  # questions to a user within `PROMPT_WINDOW`
PROMPT_WINDOW: Final = 600.0  # seconds for which anything is remembered


class PromptLimiter:
    """Counts the prompts that one server has caused."""

    def __init__(self) -> None:
        self._step_ups: dict[frozenset[str], list[float]] = {}
        self._grants: list[float] = []
        self._prompts: list[float] = []
        self._has_gained_scopes = False

    def check_step_up(self, needed: frozenset[str], tokens: Tokens) -> None:
        """Raise InsufficientScope if it would not help to ask for more scopes."""
        in_vain = len(_drop_expired(self._step_ups.get(needed, []))) >= MAX_STEP_UPS
        if needed <= {*tokens.scopes} or in_vain or len(_drop_expired(self._grants)) >= MAX_FRUITLESS_GRANTS:
            why = "the server wants scopes that the token has, or that were asked for and not granted"
            raise _make_scope_error(why, needed, tokens)

    def record_prompt(self, needed: frozenset[str], tokens: Tokens | None) -> None:
        """Count that a user is asked, for scopes or to log in; raise if that happens too often."""
        self._prompts = _drop_expired(self._prompts)
        if len(self._prompts) >= MAX_PROMPTS:
            window = f"{MAX_PROMPTS} times within {PROMPT_WINDOW / 60:g} minutes"
            problem = f"the user was asked {window}, and the server still wants"
            if needed:
                raise _make_scope_error(f"{problem} more scopes", needed, tokens)
            raise TokenRejected(f"{problem} another token")
        self._prompts.append(time.monotonic())
        self._has_gained_scopes = False

    def record_grant(self, needed: frozenset[str], tokens: Tokens) -> None:
        """Count tokens that an authorization server has granted."""
        now = time.monotonic()
        self._grants = [*_drop_expired(self._grants), now]
        self._has_gained_scopes = bool(needed) and needed <= {*tokens.scopes}
        if needed and not self._has_gained_scopes:
            self._step_ups = {
                scopes: recent for scopes, then in self._step_ups.items() if (recent := _drop_expired(then))
            }
            self._step_ups.setdefault(needed, []).append(now)

    def record_success(self) -> None:
        """Note that a request with the new token was accepted."""
        self._grants.clear()
        if self._has_gained_scopes and self._prompts:
            self._prompts.pop()
        self._has_gained_scopes = False


def _drop_expired(times: list[float]) -> list[float]:
    now = time.monotonic()
    return [then for then in times if now - then < PROMPT_WINDOW]


def _make_scope_error(what: str, needed: frozenset[str], tokens: Tokens | None) -> InsufficientScope:
    wanted = " ".join(sorted(needed))[:200]
    if tokens is not None and has_secret(wanted, [tokens.access]):  # it may echo anything
        return InsufficientScope(what)
    return InsufficientScope(what, hint=f"it wants {wanted}; scopes=[…] asks for them from the start")
