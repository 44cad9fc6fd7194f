"""The tokens of one server: the cache with its headers, the stored records, and the limit of prompts.

Chooses the storage keys, so that no client finds the tokens of another, and the challenge to answer. Sends no
request and opens no page.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, NamedTuple, TypeAlias

from toolpost.auth.client.discovery import Challenge, DiscoveredServer, ServerRecord, parse_challenges
from toolpost.auth.client.storage import ResilientStorage
from toolpost.auth.client.token_endpoint import Tokens, decode_record, encode_record
from toolpost.auth.jose import DPOP_ALGORITHM, DpopProver
from toolpost.errors import AuthError, InsufficientScope, TokenRejected
from toolpost.protocol.urls import has_secret

logger: Final = logging.getLogger("toolpost.auth")

OFFLINE_ACCESS: Final = "offline_access"
TOKEN_PROBATION: Final = 600.0  # seconds for which the source of tokens counts: the first request may fail

TokenSource: TypeAlias = Literal["refreshed", "granted"]


class TokenRecords:
    """The stored records of one client about one server."""

    def __init__(self, storage: ResilientStorage, server: str, client_key: str) -> None:
        self._storage = storage
        self._server = server
        self._client_key = client_key
        self._server_key = f"server\n{server}\n{client_key}"
        self.server: ServerRecord | None = None  # as it is stored

    async def load_server(self) -> ServerRecord | None:
        """Return the stored record of the server."""
        self.server = decode_record(await self._storage.get(self._server_key), ServerRecord)
        return self.server

    async def save_server(self, known: ServerRecord) -> None:
        """Store the record of the server."""
        if self.server != known:
            await self._storage.put(self._server_key, encode_record(known))
            self.server = known

    async def load_tokens(self, known: ServerRecord) -> Tokens | None:
        """Return the stored tokens."""
        text = await self._storage.get(self._tokens_key(known))
        tokens = decode_record(text, Tokens)
        if text is not None and tokens is None:
            logger.warning("the stored tokens for %s cannot be read; requesting new ones", known.issuer)
        return tokens

    async def save_tokens(self, known: ServerRecord, tokens: Tokens) -> None:
        """Store new tokens, before they are used: a lost refresh token cannot be replaced."""
        await self._storage.put(self._tokens_key(known), encode_record(tokens))
        await self.save_server(known)

    async def delete_tokens(self, known: ServerRecord) -> None:
        """Delete the stored tokens."""
        await self._storage.delete(self._tokens_key(known))

    def lock(self, known: ServerRecord) -> AbstractAsyncContextManager[None]:
        """Return the lock of these tokens."""
        return self._storage.lock(self._tokens_key(known))

    def _tokens_key(self, known: ServerRecord) -> str:
        """Return the key of the tokens: issuer, resource, client, and the address if the resource is wider.

        Two servers may both name their whole host as resource, and must not share tokens.
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
        """Return the scopes to request: those of server and user, and the earlier ones (AUTH-12)."""
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
        """Return a prover for new tokens, if they have to be bound to a key."""
        if dpop is False or (dpop == "auto" and "dpop" not in self.schemes):
            return None
        if DPOP_ALGORITHM in (found.issuer.dpop_signing_alg_values_supported or ()):
            return DpopProver()
        if dpop == "auto" and "bearer" in self.schemes:
            return None
        raise AuthError(f"DPoP is required, but the authorization server does not list {DPOP_ALGORITHM}")


def select_challenge(challenge: str, dpop: object) -> SelectedChallenge:
    """Choose the challenge to answer: DPoP before Bearer, unless DPoP is off."""
    by_scheme = {each.scheme: each for each in reversed(parse_challenges(challenge))}
    order = ("bearer", "dpop") if dpop is False else ("dpop", "bearer")
    chosen = next((by_scheme[scheme] for scheme in order if scheme in by_scheme), Challenge("", {}))
    return SelectedChallenge(chosen, frozenset(by_scheme))


def load_prover(tokens: Tokens | None) -> DpopProver | None:
    """Return the prover for tokens that are bound to a key."""
    return None if tokens is None or tokens.key is None else DpopProver(tokens.key)


class DpopHeaders(dict[str, str]):
    """Headers with a proof, which differs for each request."""

    token_headers: Mapping[str, str]  # without the proof, shared by requests with the same token


class TokenCache:
    """The tokens in use."""

    def __init__(self) -> None:
        self.tokens: Tokens | None = None
        self._acquisition: tuple[TokenSource, float] | None = None
        self.change_event = asyncio.Event()
        self.token_header: dict[str, str] = {}  # the same object for all requests with these tokens
        self._prover: DpopProver | None = None
        self._failure: tuple[Mapping[str, str], AuthError] | None = None

    def put(self, tokens: Tokens | None, how: TokenSource | None = None) -> None:
        """Replace the tokens."""
        self.tokens = tokens
        self._acquisition = None if how is None else (how, time.monotonic())
        self._failure = None
        if tokens is None:
            self.token_header, self._prover = {}, None
            return
        if tokens.kind != "dpop":
            self._prover = None
        elif self._prover is None or self._prover.jwk != tokens.key:
            self._prover = load_prover(tokens)
        scheme = "DPoP" if tokens.kind == "dpop" else "Bearer"
        self.token_header = {"authorization": f"{scheme} {tokens.access}"}
        self.change_event.set()
        self.change_event = asyncio.Event()

    @property
    def unproven_source(self) -> TokenSource | None:
        """The source of valid tokens that no server has accepted yet."""
        if self._acquisition is None or self.tokens is None or self.tokens.is_expired:
            return None
        how, then = self._acquisition
        return how if time.monotonic() - then < TOKEN_PROBATION else None

    def mark_accepted(self, sent: Mapping[str, str]) -> bool:
        """Return whether an accepted request is the first one with the current tokens."""
        first = self._acquisition is not None and self.is_current(sent)
        if first:
            self._acquisition = None
        return first

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        """Return the headers for a request."""
        if self.tokens is None or self._prover is None:
            return self.token_header
        headers = DpopHeaders(self.token_header | self._prover.build_header(method, url, self.tokens.access))
        headers.token_headers = self.token_header
        return headers

    def is_current(self, sent: Mapping[str, str]) -> bool:
        """Return whether a request carried the current tokens."""
        return sent.get("authorization") == self.token_header.get("authorization")

    def store_nonce(self, url: str, headers: Mapping[str, str]) -> bool:
        """Store the nonce of a response; return whether it is new."""
        return self._prover is not None and self._prover.store_nonce(url, headers)

    def record_failure(self, header: Mapping[str, str], error: AuthError) -> None:
        """Let all requests that carry this header object fail with an error."""
        if self.token_header is header:
            self._failure = header, error
            self.token_header = dict(header)  # later requests try again

    def check_failure(self, sent: Mapping[str, str]) -> None:
        """Raise the error if a renewal has failed since a request was sent."""
        shared = sent.token_headers if isinstance(sent, DpopHeaders) else sent
        if self._failure is not None and shared is self._failure[0]:
            raise self._failure[1]


# --------------------------------------------------------------------- prompts

# A login and `MAX_STEP_UPS` make three prompts for the same scopes (AUTH-59): the user may have missed a
# checkbox. A server could also ask for new scopes again and again, or accept a token and reject it later; so
# grants and logins count as well. Scopes that were granted and sufficient do not.
MAX_STEP_UPS: Final = 2  # requests for the same scopes that are not granted
MAX_FRUITLESS_GRANTS: Final = 3  # grants in a row without an accepted request
MAX_PROMPTS: Final = 6  # within `PROMPT_WINDOW`
PROMPT_WINDOW: Final = 600.0  # seconds for which events count


class PromptLimiter:
    """Limits the prompts that one server can cause."""

    def __init__(self) -> None:
        self._times: dict[str | frozenset[str], list[float]] = {}  # of grants, prompts and failed step-ups
        self._has_gained_scopes = False

    def _get_recent(self, event: str | frozenset[str]) -> list[float]:
        """Return the times of an event within the window, as a list to append to."""
        earliest = time.monotonic() - PROMPT_WINDOW
        recent = {key: [then for then in times if then > earliest] for key, times in self._times.items()}
        self._times = {key: times for key, times in recent.items() if times}
        return self._times.setdefault(event, [])

    def check_step_up(self, needed: frozenset[str], tokens: Tokens) -> None:
        """Raise InsufficientScope if another request for scopes would not help."""
        is_fruitless = len(self._get_recent("grant")) >= MAX_FRUITLESS_GRANTS
        if needed <= {*tokens.scopes} or len(self._get_recent(needed)) >= MAX_STEP_UPS or is_fruitless:
            why = "the server requires scopes that the token already has, or that were not granted"
            raise _make_scope_error(why, needed, tokens)

    def record_prompt(self, needed: frozenset[str], tokens: Tokens | None) -> None:
        """Count a prompt, for scopes or a login; raise if there are too many."""
        prompts = self._get_recent("prompt")
        if len(prompts) >= MAX_PROMPTS:
            window = f"{MAX_PROMPTS} times within {PROMPT_WINDOW / 60:g} minutes"
            problem = f"the user was asked {window}, but the server still requires"
            if needed:
                raise _make_scope_error(f"{problem} more scopes", needed, tokens)
            raise TokenRejected(f"{problem} another token")
        prompts.append(time.monotonic())
        self._has_gained_scopes = False

    def record_grant(self, needed: frozenset[str], tokens: Tokens) -> None:
        """Count a grant of tokens."""
        self._get_recent("grant").append(time.monotonic())
        self._has_gained_scopes = bool(needed) and needed <= {*tokens.scopes}
        if needed and not self._has_gained_scopes:
            self._get_recent(needed).append(time.monotonic())

    def record_success(self) -> None:
        """Record that a request with the new token was accepted."""
        self._times.pop("grant", None)
        prompts = self._get_recent("prompt")
        if self._has_gained_scopes and prompts:
            prompts.pop()
        self._has_gained_scopes = False


def _make_scope_error(message: str, needed: frozenset[str], tokens: Tokens | None) -> InsufficientScope:
    wanted = " ".join(sorted(needed))[:200]
    if tokens is not None and has_secret(wanted, [tokens.access]):  # the server may echo it
        return InsufficientScope(message)
    return InsufficientScope(message, hint=f"required: {wanted}; request them first with scopes=[…]")
