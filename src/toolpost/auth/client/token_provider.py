"""Provides the tokens of a client at one server: for each request, and again after the server refuses one.

401  another token was used meanwhile ──→ again     use_dpop_nonce ──→ again, with the nonce
     else: discover ─→ a newer token in the storage, or a refresh, or a new grant ──→ again
     of an unattended request: the same without asking a person; it waits until a login brings a token
403  insufficient_scope ─→ a new grant with the union of scopes, as long as that may help ──→ again
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from toolpost.auth.client.discovery import ServerRecord, discover, rediscover
from toolpost.auth.client.grant import Grant, TokenRequest
from toolpost.auth.client.signing import DpopProver
from toolpost.auth.client.token_cache import (
    SelectedChallenge,
    TokenCache,
    TokenRecords,
    TokenSource,
    load_prover,
    select_challenge,
)
from toolpost.auth.client.token_endpoint import (
    UNKNOWN_CLIENT_ERRORS,
    Tokens,
    parse_token_response,
    request_token,
)
from toolpost.auth.fetch import AuthHttpClient, use_backend
from toolpost.errors import (
    AuthError,
    AuthorizationDenied,
    AuthorizationRequired,
    InsufficientScope,
    RequestFailed,
    TokenRejected,
)
from toolpost.protocol.urls import has_secret
from toolpost.single_flight import SingleFlight

if TYPE_CHECKING:
    from toolpost.transports.credentials import CredentialsRejection, OutgoingRequest

# How often a user is asked. A login and `MAX_STEP_UPS` make three questions about the same scopes (AUTH-59):
# they may have overlooked a tick the first time. A server could also invent new scopes without end, or accept
# a token now and refuse it then; so grants and logins count as well. Scopes that were granted, and then were
# enough, do not.
MAX_STEP_UPS: Final = 2  # times that the same scopes are not granted
MAX_FRUITLESS_GRANTS: Final = 3  # grants in a row without an accepted request
MAX_PROMPTS: Final = 6  # questions to a user within `PROMPT_WINDOW`
PROMPT_WINDOW: Final = 600.0  # seconds for which anything is remembered

REFRESH_GRACE_PERIOD: Final = 10.0  # seconds that a refresh gets to end after its caller was cancelled
LOCK_TIMEOUT: Final = 0.5
"""Seconds that requests wait, with a token that is still good, for another program that may refresh it. One
that takes longer has a person log in."""
UNATTENDED_LOGIN_TIMEOUT: Final = 30.0  # seconds until an unattended request is tried with the same token

logger: Final = logging.getLogger("toolpost.auth")


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


async def run_to_completion(work: Coroutine[Any, Any, bool]) -> bool:
    """Return the result of work that goes on for a while if its caller is cancelled.

    A refresh token that was used is worthless: without its result there is none any more.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=REFRESH_GRACE_PERIOD)
        task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # marks it as retrieved
        raise


class TokenProvider:
    """The tokens for one server, in one event loop."""

    def __init__(self, server: str, grant: Grant) -> None:
        self._server = server
        self._grant = grant
        self._url_policy = grant.settings.make_url_policy(server)
        self._cache = TokenCache()
        self._records = TokenRecords(grant.storage, server, grant.client_key)
        self._prompt_limiter = PromptLimiter()
        self._server_record: ServerRecord | None = None
        self._is_loaded = False
        self._skip_refresh_of: Tokens | None = None  # used to their end: another program refreshes them
        self._renewal: SingleFlight[None] = SingleFlight()
        self._unattended_renewal: SingleFlight[None] = SingleFlight()
        self._refreshing: SingleFlight[None] = SingleFlight()

    # ----------------------------------------------------------------- requests

    async def headers(self, request: "OutgoingRequest") -> Mapping[str, str]:
        """Return the headers with the token; empty if there is none yet."""
        if not self._is_loaded:
            await self._refreshing.join(self._load_stored)
        if self._needs_refresh(self._cache.tokens):
            await self._refreshing.join(self._refresh_early)
        return self._cache.headers(request.method, request.url)

    def _needs_refresh(self, tokens: Tokens | None) -> bool:
        """Whether to get a new token first: without a prompt, and if that is not under way."""
        if tokens is None or not tokens.is_stale:
            return False
        if tokens is self._skip_refresh_of and not tokens.is_expired:
            return False
        return (tokens.refresh is not None or not self._grant.asks_user) and not self._renewal.is_running

    def on_accepted(
        self, request: "OutgoingRequest", headers: Mapping[str, str], sent: Mapping[str, str]
    ) -> None:
        """Note that a token was accepted."""
        if self._cache.mark_accepted(sent):
            self._prompt_limiter.record_success()
        self._cache.store_nonce(request.url, headers)

    async def on_rejected(self, request: "OutgoingRequest", refused: "CredentialsRejection") -> bool:
        """Return whether there is another token now; RequestFailed if an unattended request has to wait."""
        cache = self._cache
        selected = select_challenge(refused.challenge, self._grant.settings.dpop)
        may_ask = not (request.unattended and self._grant.asks_user)
        has_new_nonce = cache.store_nonce(request.url, refused.headers)
        if has_new_nonce and refused.status == 401 and selected.challenge.error == "use_dpop_nonce":
            return True
        if not cache.is_current(refused.sent):
            return True  # it was sent with a token that is no longer ours
        if may_ask:
            cache.check_failure(refused.sent)
        if refused.status != 401:
            return may_ask and await self._step_up(selected)
        if cache.unproven_source == "granted":
            raise TokenRejected(
                "the server does not accept the token that its authorization server has just issued",
                hint="it may not know that authorization server, or not be the resource it says it is",
            )
        renew = partial(self._renew, selected, refresh=cache.unproven_source is None, may_ask=may_ask)
        await (self._share_renewal(renew) if may_ask else self._await_new_tokens(renew))
        return True

    async def _step_up(self, selected: SelectedChallenge) -> bool:
        """Get a token with more scopes (AUTH-55, AUTH-56)."""
        tokens, needed = self._cache.tokens, frozenset(selected.challenge.scopes)
        if tokens is None or not needed or not self._grant.steps_up:
            return False
        self._prompt_limiter.check_step_up(needed, tokens)
        await self._share_renewal(partial(self._renew, selected, refresh=False, needed=needed))
        return True

    async def _share_renewal(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something once for all requests that need it; if it fails, it fails for all of them."""
        generation = self._cache.generation
        try:
            await self._renewal.join(work)
        except AuthError as error:
            self._cache.record_failure(generation, error)
            raise

    async def _await_new_tokens(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for other tokens, which come of work, or when another request has a person log in."""
        change = self._cache.change_event
        try:
            await self._unattended_renewal.join(work)
        except AuthError as error:
            logger.debug("there is no other token unless a person logs in: %s", error)
        try:
            async with asyncio.timeout(UNATTENDED_LOGIN_TIMEOUT):
                await change.wait()
        except TimeoutError:
            raise RequestFailed("nobody has logged in yet", sent=False) from None

    # ----------------------------------------------------------------- getting tokens

    async def _load_stored(self) -> None:
        """Load what was stored by the last run."""
        known = await self._records.load_server()
        if known is not None:
            if self._grant.issuer is None:
                self._grant.pin(known.issuer)
            self._server_record = known
            if self._grant.issuer in {None, known.issuer}:
                kept = await self._records.load_tokens(known)
                self._cache.put(kept if self._is_sufficient(kept) else None)
        self._is_loaded = True

    def _is_sufficient(self, tokens: Tokens | None) -> bool:
        """Whether tokens were asked for with all that the user wants now: scopes, and a key."""
        settings = self._grant.settings
        if tokens is None or (settings.dpop is True and tokens.kind != "dpop"):
            return False
        return {*settings.scopes} <= {*tokens.scopes, *tokens.asked}

    async def _renew(
        self,
        selected: SelectedChallenge,
        *,
        refresh: bool,
        needed: frozenset[str] = frozenset(),
        may_ask: bool = True,
    ) -> None:
        """Get other tokens than those that were refused."""
        grant, refused = self._grant, self._cache.tokens
        place = selected.challenge.params.get("resource_metadata")
        async with use_backend(grant.settings.http) as backend:
            fetch = AuthHttpClient(backend, self._url_policy)
            server = await discover(fetch, self._server, place, grant.issuer)
            known = server.record
            grant.pin(known.issuer)
            async with self._records.lock(known):
                kept = await self._records.load_tokens(known)
                fresh = self._is_sufficient(kept) and _is_newer(kept, refused)
                if kept is not None and fresh and needed <= {*kept.scopes}:
                    await self._records.save_server(known)
                    self._server_record = known
                    self._cache.put(kept)
                    return
                last = kept or (refused if self._server_record == known else None)
                scopes = selected.compute_scopes(grant, server, last)
                proofs = load_prover(last) or selected.make_prover(grant, server)
                request = TokenRequest(fetch, server, scopes, proofs)
                # A refresh gives no more scopes than there were (RFC 6749, section 6).
                can_refresh = refresh and self._is_sufficient(last)
                if can_refresh and last and await run_to_completion(self._refresh(request, last)):
                    return
                if may_ask:
                    await self._obtain(request, "granted", needed)

    async def _refresh_early(self) -> None:
        """Get a new token before the old one ends, or just after."""
        grant, known, tokens = self._grant, self._server_record, self._cache.tokens
        assert known is not None
        assert tokens is not None
        if not tokens.is_stale:
            return
        try:
            async with use_backend(grant.settings.http) as backend, AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(None if tokens.is_expired else LOCK_TIMEOUT):
                        await held.enter_async_context(self._records.lock(known))
                except TimeoutError:
                    self._skip_refresh_of = tokens
                    return
                kept = await self._records.load_tokens(known)
                if _is_newer(kept, tokens):
                    self._cache.put(kept)
                    return
                fetch = AuthHttpClient(backend, self._url_policy)
                last = kept or tokens
                server = await rediscover(fetch, known)
                request = TokenRequest(fetch, server, last.asked, load_prover(last))
                if last.refresh is None and not grant.asks_user:
                    await self._obtain(request, "refreshed")
                elif not await run_to_completion(self._refresh(request, last)):
                    self._cache.put(None)
                    await self._records.delete_tokens(known)
        except AuthorizationDenied:
            raise  # only a program gets here: credentials that were refused are not shown again
        except AuthError as error:
            # The token may be good for some seconds; if not, the server says so, and more can be done.
            self._skip_refresh_of = tokens
            logger.debug("a token could not be refreshed: %s", error)

    async def _refresh(self, request: TokenRequest, last: Tokens) -> bool:
        """Return whether there is a refresh token that is good, and store what it gave."""
        identity = None if last.refresh is None else await self._grant.identity(request)
        if last.refresh is None or identity is None:
            return False
        proofs = load_prover(last)
        form = {"grant_type": "refresh_token", "refresh_token": last.refresh, **request.resource_param}
        try:
            document = await request_token(request.fetch, request.server.issuer, form, identity, proofs)
        except AuthorizationDenied as error:
            logger.debug("a token could not be refreshed: %s", error)
            if error.code in UNKNOWN_CLIENT_ERRORS:
                await self._grant.forget_registration(request)
            return False
        tokens = _bind_to_key(self._grant, parse_token_response(document, last.asked, last), proofs)
        await self._store(request.server.record, tokens, "refreshed")
        return True

    async def _obtain(
        self, request: TokenRequest, source: TokenSource, needed: frozenset[str] = frozenset()
    ) -> None:
        """Get new tokens by the grant, and store them."""
        if self._grant.asks_user:
            self._prompt_limiter.record_prompt(needed, self._cache.tokens)
        try:
            tokens = _bind_to_key(self._grant, await self._grant.obtain(request), request.proofs)
        except AuthorizationRequired:
            raise
        except AuthError as error:
            raise request.server.annotate_error(error) from error.__cause__
        self._prompt_limiter.record_grant(needed, tokens)
        await self._store(request.server.record, tokens, source)

    async def _store(self, known: ServerRecord, tokens: Tokens, source: TokenSource) -> None:
        await self._records.save_tokens(known, tokens)
        self._server_record = known
        self._cache.put(tokens, source)


def _bind_to_key(grant: Grant, tokens: Tokens, proofs: DpopProver | None) -> Tokens:
    """Return tokens with the key that they are bound to, if they are bound as they should be."""
    if tokens.kind == "dpop":
        if proofs is None:
            raise AuthError("the authorization server bound the token to a key, though none was shown to it")
        return replace(tokens, key=proofs.jwk)
    if grant.settings.dpop is True:
        raise AuthError(
            "the authorization server did not bind the token to our key, though dpop=True wants it"
        )
    return tokens


def _is_newer(kept: Tokens | None, ours: Tokens | None) -> bool:
    """Whether the storage has newer tokens than ours."""
    return kept is not None and (ours is None or kept.access != ours.access) and not kept.is_stale
