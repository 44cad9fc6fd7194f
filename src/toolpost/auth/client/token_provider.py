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
from typing import Any, Final, Literal

from msgspec.structs import replace

from toolpost.auth.client.discovery import (
    DiscoveredServer,
    ProtectedResourceMetadata,
    discover,
    fetch_server_metadata,
)
from toolpost.auth.client.grant import AuthorizableRequest, Grant, TokenRequest, UnauthorizedResponse
from toolpost.auth.client.signing import DpopProver
from toolpost.auth.client.token_cache import (
    SelectedChallenge,
    TokenCache,
    TokenRecords,
    load_prover,
    select_challenge,
)
from toolpost.auth.client.token_endpoint import (
    ServerRecord,
    Tokens,
    is_client_unknown,
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

MAX_STEP_UPS: Final = 2
"""How often the same scopes are not granted (AUTH-59). With the login that makes three questions to a user at
most, who may have overlooked a tick the first time."""

MAX_FRUITLESS_GRANTS: Final = 3
"""How many grants in a row bring no accepted request: a server could invent new scopes without end."""

MAX_PROMPTS: Final = 6
"""How often a user is asked within `PROMPT_WINDOW`. Scopes that were granted and then were enough do not
count. Logins do, also if they help: a server may accept a token now, and refuse it then."""

PROMPT_WINDOW: Final = 600.0
"""Seconds for which anything is remembered."""


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
            often = (
                f"the user was asked {MAX_PROMPTS} times within {PROMPT_WINDOW / 60:g} minutes, "
                "and the server still wants"
            )
            if needed:
                raise _make_scope_error(f"{often} more scopes", needed, tokens)
            raise TokenRejected(f"{often} another token")
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


# --------------------------------------------------------------------- token_provider

REFRESH_GRACE_PERIOD: Final = 10.0
"""Seconds that a refresh gets to end after its caller was cancelled."""

LOCK_TIMEOUT: Final = 0.5
"""Seconds that requests wait, with a token that is still good, for another program that may refresh it. One
that takes longer has a person log in."""

UNATTENDED_LOGIN_TIMEOUT: Final = 30.0
"""Seconds that an unattended request waits for another token. Then it is tried again with the same one."""

logger: Final = logging.getLogger("toolpost.auth")


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


async def refresh_tokens(grant: Grant, visit: TokenRequest, last: Tokens) -> Tokens | None:
    """Return the tokens for a refresh token; None if it is not good any more."""
    assert last.refresh is not None
    identity = await grant.identity(visit)
    if identity is None:
        return None
    proofs = load_prover(last)
    form = {"grant_type": "refresh_token", "refresh_token": last.refresh, **visit.resource_param}
    try:
        document = await request_token(visit.fetch, visit.server.issuer, form, identity, proofs)
    except AuthorizationDenied as error:
        logger.debug("a token could not be refreshed: %s", error)
        if is_client_unknown(error):
            await grant.forget_registration(visit)
        return None
    return _bind_to_key(grant, parse_token_response(document, last.asked, last), proofs)


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

    async def headers(self, errand: AuthorizableRequest, /) -> Mapping[str, str]:
        """Return the headers with the token; empty if there is none yet."""
        if not self._is_loaded:
            await self._refreshing.join(self._load_stored)
        if self._needs_refresh(self._cache.tokens):
            await self._refreshing.join(self._refresh_early)
        return self._cache.headers(errand.method, errand.url)

    def _needs_refresh(self, tokens: Tokens | None) -> bool:
        """Whether to get a new token first: without a prompt, and if that is not under way."""
        if (
            tokens is None
            or not tokens.is_stale()
            or (tokens is self._skip_refresh_of and not tokens.is_expired)
        ):
            return False
        return (tokens.refresh is not None or not self._grant.asks_user) and not self._renewal.is_running

    def on_accepted(
        self, errand: AuthorizableRequest, headers: Mapping[str, str], sent: Mapping[str, str], /
    ) -> None:
        """Note that a token was accepted."""
        if self._cache.mark_accepted(sent):
            self._prompt_limiter.record_success()
        self._cache.store_nonce(errand.url, headers)

    async def on_rejected(self, errand: AuthorizableRequest, refused: UnauthorizedResponse, /) -> bool:
        """Return whether there is another token now; RequestFailed if an unattended request has to wait."""
        purse = self._cache
        demand = select_challenge(refused.challenge, self._grant.settings.dpop)
        unasked = errand.unattended and self._grant.asks_user
        new_nonce = purse.store_nonce(errand.url, refused.headers)
        if new_nonce and refused.status == 401 and demand.challenge.error == "use_dpop_nonce":
            return True
        if not purse.is_current(refused.sent):
            return True  # it was sent with a token that is no longer ours
        if not unasked:
            purse.check_failure(refused.sent)
        if refused.status != 401:
            return not unasked and await self._step_up(demand)
        if purse.unproven_source == "granted":
            raise TokenRejected(
                "the server does not accept the token that its authorization server has just issued",
                hint="it may not know that authorization server, or not be the resource it says it is",
            )
        renew = partial(self._renew, demand, refresh=purse.unproven_source is None)
        if unasked:
            await self._await_new_tokens(partial(renew, may_ask=False))
        else:
            await self._share_renewal(renew)
        return True

    async def _step_up(self, demand: SelectedChallenge) -> bool:
        """Get a token with more scopes (AUTH-55, AUTH-56)."""
        tokens, needed = self._cache.tokens, frozenset(demand.challenge.scopes)
        if tokens is None or not needed or not self._grant.steps_up:
            return False
        self._prompt_limiter.check_step_up(needed, tokens)
        await self._share_renewal(partial(self._renew, demand, refresh=False, enough=needed))
        return True

    async def _share_renewal(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something once for all requests that need it; if it fails, it fails for all of them."""
        mark = self._cache.generation
        try:
            await self._renewal.join(work)
        except AuthError as error:
            self._cache.record_failure(mark, error)
            raise

    async def _await_new_tokens(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for other tokens, which come of work, or when another request has a person log in."""
        news = self._cache.change_event
        try:
            await self._unattended_renewal.join(work)
        except AuthError as error:
            logger.debug("there is no other token unless a person logs in: %s", error)
        try:
            async with asyncio.timeout(UNATTENDED_LOGIN_TIMEOUT):
                await news.wait()
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
        demand: SelectedChallenge,
        *,
        refresh: bool,
        enough: frozenset[str] = frozenset(),
        may_ask: bool = True,
    ) -> None:
        """Get other tokens than those that were refused."""
        grant, refused = self._grant, self._cache.tokens
        place = demand.challenge.params.get("resource_metadata")
        async with use_backend(grant.settings.http) as backend:
            fetch = AuthHttpClient(backend, self._url_policy)
            found = await discover(fetch, self._server, place, grant.issuer)
            grant.pin(found.issuer.issuer)
            known = ServerRecord(found.resource.resource, found.issuer.issuer, found.published)
            async with self._records.lock(known):
                kept = await self._records.load_tokens(known)
                fresh = kept is not None and self._is_sufficient(kept) and _is_newer(kept, refused)
                if kept is not None and fresh and enough <= {*kept.scopes}:
                    await self._records.save_server(known)
                    self._server_record = known
                    self._cache.put(kept)
                    return
                last = kept or (refused if self._server_record == known else None)
                scopes = demand.compute_scopes(grant, found, last)
                proofs = load_prover(last) or demand.make_prover(grant, found)
                visit = TokenRequest(fetch, grant.storage, found, scopes, proofs)
                # A refresh gives no more scopes than there were (RFC 6749, section 6).
                may = refresh and last is not None and last.refresh is not None and self._is_sufficient(last)
                if may and last is not None and await run_to_completion(self._refresh(known, visit, last)):
                    return
                if may_ask:
                    await self._obtain(known, visit, "granted", enough)

    async def _refresh_early(self) -> None:
        """Get a new token before the old one ends, or just after."""
        grant, known, tokens = self._grant, self._server_record, self._cache.tokens
        assert known is not None
        assert tokens is not None
        if not tokens.is_stale():
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
                if kept is not None and _is_newer(kept, tokens):
                    self._cache.put(kept)
                    return
                fetch = AuthHttpClient(backend, self._url_policy)
                issuer = await fetch_server_metadata(fetch, known.issuer, legacy=not known.published)
                found = DiscoveredServer(ProtectedResourceMetadata(known.resource), issuer, known.published)
                last = kept or tokens
                visit = TokenRequest(fetch, grant.storage, found, last.asked, load_prover(last))
                if last.refresh is None and not grant.asks_user:
                    await self._obtain(known, visit, "refreshed")
                elif last.refresh is None or not await run_to_completion(self._refresh(known, visit, last)):
                    self._cache.put(None)
                    await self._records.delete_tokens(known)
        except AuthorizationDenied:
            raise  # only a program gets here: what it has shown in vain is not shown again
        except AuthError as error:
            # The token may be good for some seconds; if not, the server says so, and more can be done.
            self._skip_refresh_of = tokens
            logger.debug("a token could not be refreshed: %s", error)

    async def _refresh(self, known: ServerRecord, visit: TokenRequest, last: Tokens) -> bool:
        """Return whether a refresh token was good, and store what it gave."""
        tokens = await refresh_tokens(self._grant, visit, last)
        if tokens is not None:
            await self._store(known, tokens, "refreshed")
        return tokens is not None

    async def _obtain(
        self,
        known: ServerRecord,
        visit: TokenRequest,
        how: Literal["refreshed", "granted"],
        needed: frozenset[str] = frozenset(),
    ) -> None:
        if self._grant.asks_user:
            self._prompt_limiter.record_prompt(needed, self._cache.tokens)
        try:
            tokens = _bind_to_key(self._grant, await self._grant.obtain(visit), visit.proofs)
        except AuthorizationRequired:
            raise
        except AuthError as error:
            raise visit.server.annotate_error(error) from error.__cause__
        self._prompt_limiter.record_grant(needed, tokens)
        await self._store(known, tokens, how)

    async def _store(self, known: ServerRecord, tokens: Tokens, how: Literal["refreshed", "granted"]) -> None:
        await self._records.save_tokens(known, tokens)
        self._server_record = known
        self._cache.put(tokens, how)


def _is_newer(kept: Tokens, ours: Tokens | None) -> bool:
    """Whether the storage has newer tokens than ours."""
    return (ours is None or kept.access != ours.access) and not kept.is_stale()
