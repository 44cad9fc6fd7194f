"""What a client holds at one server: its tokens, and what is done when they are refused.

    401  another token was used meanwhile ──→ again     use_dpop_nonce ──→ again, with the nonce
         else: discover ─→ somebody else's new token, or a refresh, or a new grant ──→ again
         of a request that nobody waits for: the same, but no person is asked; it waits until one was
    403  insufficient_scope ─→ a new grant with the union of scopes, as long as that may help ──→ again

Owns the order of these steps. Parallel requests share one attempt.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Literal

from toolpost.auth.demand import Demand, demand_of, proofs_of
from toolpost.auth.discovery import Found, discover, look_up
from toolpost.auth.fetch import Fetch, opened
from toolpost.auth.grant import Errand, Grant, Refused, Visit
from toolpost.auth.ledger import Ledger
from toolpost.auth.metadata import Resource
from toolpost.auth.purse import Purse
from toolpost.auth.renewal import finished, obtained, refreshed
from toolpost.auth.tally import Tally
from toolpost.auth.tokens import Known, Tokens
from toolpost.errors import (
    AuthError,
    AuthorizationDenied,
    AuthorizationRequired,
    RequestFailed,
    TokenRejected,
)
from toolpost.flight import Flight

__all__ = ["ServerAccount"]

LOCK_WAIT: Final = 0.5
"""Seconds that requests wait, with a token that is still good, for somebody else who may be refreshing it.
Whoever takes longer has a person log in."""

LOGIN_WAIT: Final = 30.0
"""Seconds that a request which nobody waits for waits for another token. Then it is tried again with the one
that there is: a refusal may pass."""

logger: Final = logging.getLogger("toolpost.auth")


class ServerAccount:
    """The tokens for one server, in one event loop.

    Args:
        server: its address.
        grant: gets the tokens.
    """

    def __init__(self, server: str, grant: Grant) -> None:
        self._server = server
        self._grant = grant
        self._guard = grant.settings.guard(server)
        self._purse = Purse()
        self._ledger = Ledger(grant.vault, server, grant.who)
        self._tally = Tally()
        self._known: Known | None = None
        self._looked = False
        self._left: Tokens | None = None  # used to their end: somebody else is at them
        self._renewal: Flight[None] = Flight()
        self._unasked: Flight[None] = Flight()
        self._refreshing: Flight[None] = Flight()

    # ----------------------------------------------------------------- requests

    async def headers(self, errand: Errand, /) -> Mapping[str, str]:
        """The token for a request; nothing if there is none yet."""
        if not self._looked:
            await self._refreshing.join(self._look)
        if self._is_due(self._purse.tokens):
            await self._refreshing.join(self._refresh_early)
        return self._purse.headers(errand.method, errand.url)

    def _is_due(self, tokens: Tokens | None) -> bool:
        """Whether to get a new token first: one can be had without bothering anybody, and nobody is at it."""
        if tokens is None or not tokens.stale() or (tokens is self._left and not tokens.ended):
            return False
        return (tokens.refresh is not None or not self._grant.asks_user) and not self._renewal.busy

    def heard(self, errand: Errand, headers: Mapping[str, str], sent: Mapping[str, str], /) -> None:
        """A request was not refused: its token is good."""
        if self._purse.proves(sent):
            self._tally.went_through()
        self._purse.note(errand.url, headers)

    async def refused(self, errand: Errand, refused: Refused, /) -> bool:
        """Whether there is another token now.

        Raises:
            AuthError: there is none, and will be none.
            RequestFailed: there is none yet, and nobody waits for this request.
        """
        purse = self._purse
        demand = demand_of(refused.challenge, self._grant.settings.dpop)
        unasked = errand.unattended and self._grant.asks_user
        new_nonce = purse.note(errand.url, refused.headers)
        if new_nonce and refused.status == 401 and demand.challenge.error == "use_dpop_nonce":
            return True
        if not purse.has(refused.sent):
            return True  # it was sent with a token that is no longer ours
        if not unasked:
            purse.check_spoiled(refused.sent)
        if refused.status != 401:
            return not unasked and await self._step_up(demand)
        if purse.unproven == "granted":
            raise TokenRejected(
                "the server does not accept the token that its authorization server has just issued",
                hint="it may not know that authorization server, or not be the resource it says it is",
            )
        renew = partial(self._renew, demand, refresh=purse.unproven is None)
        if unasked:
            await self._wait(partial(renew, may_ask=False))
        else:
            await self._try(renew)
        return True

    async def _step_up(self, demand: Demand) -> bool:
        """Get a token with more scopes (AUTH-55, AUTH-56)."""
        tokens, needed = self._purse.tokens, frozenset(demand.scopes)
        if tokens is None or not needed or not self._grant.steps_up:
            return False
        self._tally.check_step(needed, tokens)
        await self._try(partial(self._renew, demand, refresh=False, enough=needed))
        return True

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something once for all who need it, and tell all of them if it fails."""
        mark = self._purse.mark
        try:
            await self._renewal.join(work)
        except AuthError as error:
            self._purse.spoil(mark, error)
            raise

    async def _wait(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for other tokens, which come of work, or when somebody else has a person log in."""
        news = self._purse.news
        try:
            await self._unasked.join(work)
        except AuthError as error:
            logger.debug("there is no other token unless a person logs in: %s", error)
        try:
            async with asyncio.timeout(LOGIN_WAIT):
                await news.wait()
        except TimeoutError:
            raise RequestFailed("nobody has logged in yet", sent=False) from None

    # ----------------------------------------------------------------- getting tokens

    async def _look(self) -> None:
        """Find what was kept from the last time."""
        known = await self._ledger.known()
        if known is not None:
            if self._grant.issuer is None:
                self._grant.pin(known.issuer)
            self._known = known
            if self._grant.issuer in {None, known.issuer}:
                kept = await self._ledger.tokens(known)
                self._purse.put(kept if self._suffices(kept) else None)
        self._looked = True

    def _suffices(self, tokens: Tokens | None) -> bool:
        """Whether tokens were asked for with all that the user wants now: scopes, and a key."""
        settings = self._grant.settings
        if tokens is None or (settings.dpop is True and tokens.kind != "dpop"):
            return False
        return {*settings.scopes} <= {*tokens.scopes, *tokens.asked}

    async def _renew(
        self, demand: Demand, *, refresh: bool, enough: frozenset[str] = frozenset(), may_ask: bool = True
    ) -> None:
        """Get other tokens than those that were refused.

        Args:
            demand: what the server wants.
            refresh: whether a refresh may help.
            enough: the scopes that it is about, if the tokens were not enough.
            may_ask: whether a new grant may be asked for.
        """
        grant, refused = self._grant, self._purse.tokens
        place = demand.challenge.params.get("resource_metadata")
        async with opened(grant.settings.http) as backend:
            fetch = Fetch(backend, self._guard)
            found = await discover(fetch, self._server, place, grant.issuer)
            grant.pin(found.issuer.issuer)
            known = Known(found.resource.resource, found.issuer.issuer, found.published)
            async with self._ledger.lock(known):
                kept = await self._ledger.tokens(known)
                fresh = kept is not None and self._suffices(kept) and _is_fresh(kept, refused)
                if kept is not None and fresh and enough <= {*kept.scopes}:
                    await self._ledger.note(known)
                    self._known = known
                    self._purse.put(kept)
                    return
                last = kept or (refused if self._known == known else None)
                scopes = demand.asks_for(grant, found, last)
                proofs = proofs_of(last) or demand.binds(grant, found)
                visit = Visit(fetch, grant.vault, found, scopes, proofs)
                # A refresh gives no more scopes than there were (RFC 6749, section 6).
                may = refresh and last is not None and last.refresh is not None and self._suffices(last)
                if may and last is not None and await finished(self._refresh(known, visit, last)):
                    return
                if may_ask:
                    await self._obtain(known, visit, "granted", enough)

    async def _refresh_early(self) -> None:
        """Get a new token before the old one ends, or just after."""
        grant, known, tokens = self._grant, self._known, self._purse.tokens
        assert known is not None
        assert tokens is not None
        if not tokens.stale():
            return  # somebody else has done it
        try:
            async with opened(grant.settings.http) as backend, AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(None if tokens.ended else LOCK_WAIT):
                        await held.enter_async_context(self._ledger.lock(known))
                except TimeoutError:
                    self._left = tokens
                    return
                kept = await self._ledger.tokens(known)
                if kept is not None and _is_fresh(kept, tokens):
                    self._purse.put(kept)
                    return
                fetch = Fetch(backend, self._guard)
                issuer = await look_up(fetch, known.issuer, legacy=not known.published)
                found = Found(Resource(known.resource), issuer, known.published)
                last = kept or tokens
                visit = Visit(fetch, grant.vault, found, last.asked, proofs_of(last))
                if last.refresh is None and not grant.asks_user:
                    await self._obtain(known, visit, "refreshed")
                elif last.refresh is None or not await finished(self._refresh(known, visit, last)):
                    self._purse.put(None)
                    await self._ledger.drop(known)
        except AuthorizationDenied:
            raise  # only a program gets here: what it has shown in vain is not shown again
        except AuthError as error:
            # The token may be good for some seconds; if not, the server says so, and more can be done.
            self._left = tokens
            logger.debug("a token could not be refreshed: %s", error)

    async def _refresh(self, known: Known, visit: Visit, last: Tokens) -> bool:
        """Whether a refresh token was good, and what it gave is kept."""
        tokens = await refreshed(self._grant, visit, last)
        if tokens is not None:
            await self._keep(known, tokens, "refreshed")
        return tokens is not None

    async def _obtain(
        self,
        known: Known,
        visit: Visit,
        how: Literal["refreshed", "granted"],
        needed: frozenset[str] = frozenset(),
    ) -> None:
        if self._grant.asks_user:
            self._tally.question(needed, self._purse.tokens)
        try:
            tokens = await obtained(self._grant, visit)
        except AuthorizationRequired:
            raise
        except AuthError as error:
            raise visit.found.doubted(error) from error.__cause__
        self._tally.granted(needed, tokens)
        await self._keep(known, tokens, how)

    async def _keep(self, known: Known, tokens: Tokens, how: Literal["refreshed", "granted"]) -> None:
        await self._ledger.keep(known, tokens)
        self._known = known
        self._purse.put(tokens, how)


def _is_fresh(kept: Tokens, ours: Tokens | None) -> bool:
    """Whether somebody else has got newer tokens."""
    return (ours is None or kept.access != ours.access) and not kept.stale()
