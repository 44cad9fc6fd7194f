"""What a client holds at one server: its tokens, and what is done when they are refused.

    401  another token was used meanwhile ──→ again     use_dpop_nonce ──→ again, with the nonce
         else: discover ─→ somebody else's new token, or a refresh, or a new grant ──→ again
    403  insufficient_scope ─→ a new grant with the union of scopes, as long as that may help ──→ again

Owns the tokens, the order of these steps, and their limits. Parallel requests share one attempt.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from msgspec.structs import replace

from toolpost.auth.challenge import Challenge, parse
from toolpost.auth.discovery import Found, discover, look_up
from toolpost.auth.dpop import Proofs
from toolpost.auth.endpoint import Denied, ask
from toolpost.auth.fetch import Fetch, opened
from toolpost.auth.grant import Errand, Grant, Refused, Visit
from toolpost.auth.metadata import Resource
from toolpost.auth.signing import DPOP_ALGORITHM
from toolpost.auth.tokens import Known, Tokens, issued, read, written
from toolpost.errors import AuthError, InsufficientScope, TokenRejected
from toolpost.flight import Flight

__all__ = ["ServerAccount"]

MAX_STEPS: Final = 2
"""How often the same scopes are asked for because of a refusal (AUTH-59). With the login that makes three
questions to a user at most, who may have overlooked a tick the first time."""

MAX_QUESTIONS: Final = 3
"""How often a grant is asked for in a row without a request that goes through: a server could otherwise think
of ever new scopes, and have the user asked for each."""

MAX_WINDOWS: Final = 6
"""How often a user is asked within `WINDOW_SPAN`, whatever goes through in between."""

WINDOW_SPAN: Final = 600.0
"""Seconds for which a question to the user is remembered."""

LAST_WORD: Final = 10.0
"""Seconds that a refresh gets to end if nobody waits for it any more."""

OFFLINE: Final = "offline_access"

logger: Final = logging.getLogger("toolpost.auth")


class _Demand(NamedTuple):
    """What a refusal wants: the challenge to answer, and every scheme that would do."""

    challenge: Challenge
    schemes: frozenset[str]

    @property
    def scopes(self) -> tuple[str, ...]:
        return self.challenge.scopes


async def _finished(work: Coroutine[Any, Any, bool]) -> bool:
    """What comes of work that is finished, for a while, also if nobody waits for it any more.

    A refresh token that was shown is not good any more: who does not keep what came for it has none.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=LAST_WORD)
        task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # nobody is left to hear of it
        raise


class _Proven(dict[str, str]):
    """Headers with a proof in them, which is another one for each request."""

    def __init__(self, headers: Mapping[str, str], token: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.token = token

    @staticmethod
    def without_proof(sent: Mapping[str, str]) -> Mapping[str, str]:
        """The headers that requests with the same token share."""
        return sent.token if isinstance(sent, _Proven) else sent


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
        self._tokens: Tokens | None = None
        self._header: Mapping[str, str] = {}
        self._proofs: Proofs | None = None
        self._known: Known | None = None
        self._looked = False
        self._unproven: Literal["refreshed", "granted"] | None = None
        self._steps: dict[frozenset[str], int] = {}
        self._questions = 0
        self._windows: list[float] = []
        self._renewal: Flight[None] = Flight()
        self._refreshing: Flight[None] = Flight()
        self._spoiled: tuple[Mapping[str, str], AuthError] | None = None

    # ----------------------------------------------------------------- requests

    async def headers(self, errand: Errand, /) -> Mapping[str, str]:
        """The token for a request; nothing if there is none yet."""
        if not self._looked:
            await self._refreshing.join(self._look)
        tokens = self._tokens
        if tokens is not None and tokens.stale() and self._refreshable(tokens):
            await self._refreshing.join(self._refresh_early)
            tokens = self._tokens
        if tokens is not None and self._proofs is not None:
            proof = self._proofs.header(errand.method, errand.url, tokens.access)
            return _Proven({**self._header, **proof}, self._header)
        return self._header

    def _refreshable(self, tokens: Tokens) -> bool:
        """Whether a new token can be had without bothering anybody, and nobody is at it already."""
        return (tokens.refresh is not None or not self._grant.asks_user) and not self._renewal.busy

    def heard(self, errand: Errand, headers: Mapping[str, str], sent: Mapping[str, str], /) -> None:
        """A request was not refused: its token is good."""
        if self._unproven is not None and sent.get("authorization") == self._header.get("authorization"):
            self._unproven = None
            self._questions = 0
        if self._proofs is not None:
            self._proofs.note(errand.url, headers)

    async def refused(self, errand: Errand, refused: Refused, /) -> bool:
        """Whether there is another token now.

        Raises:
            AuthError: there is none, and will be none.
        """
        demand = _demand(parse(refused.challenge), self._grant.settings.dpop)
        new_nonce = self._proofs is not None and self._proofs.note(errand.url, refused.headers)
        if new_nonce and refused.status == 401 and demand.challenge.error == "use_dpop_nonce":
            return True
        if refused.sent.get("authorization") != self._header.get("authorization"):
            return True  # it was sent with a token that is no longer ours
        if self._spoiled is not None and _Proven.without_proof(refused.sent) is self._spoiled[0]:
            raise self._spoiled[1]  # it was on its way when somebody else tried in vain
        if refused.status != 401:
            return await self._step_up(demand)
        if self._unproven == "granted":
            raise TokenRejected(
                "the server does not accept the token that its authorization server has just issued",
                hint="it may not know that authorization server, or not be the resource it says it is",
            )
        await self._try(partial(self._renew, demand, refresh=self._unproven is None))
        return True

    async def _step_up(self, demand: _Demand) -> bool:
        """Get a token with more scopes (AUTH-55, AUTH-56)."""
        tokens, needed = self._tokens, frozenset(demand.scopes)
        if tokens is None or not needed or not self._grant.steps_up:
            return False
        if (
            needed <= {*tokens.scopes}
            or self._steps.get(needed, 0) >= MAX_STEPS
            or self._questions >= MAX_QUESTIONS
        ):
            raise InsufficientScope(
                "the server wants scopes that the token has, or that were asked for and not granted",
                hint=f"it wants {' '.join(sorted(needed))[:200]}",
            )
        await self._try(partial(self._step, demand, needed))
        return True

    async def _step(self, demand: _Demand, needed: frozenset[str]) -> None:
        self._steps[needed] = self._steps.get(needed, 0) + 1
        await self._renew(demand, refresh=False, enough=needed)

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something once for all who need it, and tell all of them if it fails."""
        header = self._header
        try:
            await self._renewal.join(work)
        except AuthError as error:
            if self._header is header:
                self._spoiled = header, error
                self._header = dict(header)  # who asks from here on tries anew
            raise

    # ----------------------------------------------------------------- getting tokens

    async def _look(self) -> None:
        """Find what was kept from the last time."""
        text = await self._grant.vault.get(self._server_key)
        known = None if text is None else read(text, Known)
        if known is not None:
            if self._grant.issuer is None:
                self._grant.pin(known.issuer)
            self._known = known
            if self._grant.issuer in {None, known.issuer}:
                self._adopt(await self._kept(known))
        self._looked = True

    async def _renew(self, demand: _Demand, *, refresh: bool, enough: frozenset[str] = frozenset()) -> None:
        """Get other tokens than those that were refused.

        Args:
            demand: what the server wants.
            refresh: whether a refresh may help.
            enough: the scopes that tokens must have which somebody else has got in the meantime.
        """
        grant, refused = self._grant, self._tokens
        place = demand.challenge.params.get("resource_metadata")
        async with opened(grant.settings.http) as backend:
            fetch = Fetch(backend, self._guard)
            found = await discover(fetch, self._server, place, grant.issuer)
            grant.pin(found.issuer.issuer)
            known = Known(found.resource.resource, found.issuer.issuer, found.published)
            async with grant.vault.lock(self._tokens_key(known)):
                kept = await self._kept(known)
                if kept is not None and _is_fresh(kept, refused) and enough <= {*kept.scopes}:
                    await self._note(known)
                    self._adopt(kept)
                    return
                same_place = self._known is not None and self._known == known
                last = kept or (refused if same_place else None)
                visit = self._visit(fetch, found, demand, last)
                may = refresh and last is not None and last.refresh is not None
                if may and last is not None and await _finished(self._refresh(known, visit, last)):
                    return
                await self._keep(known, await self._obtained(visit), "granted")

    def _check_windows(self) -> None:
        """Return if the user may be bothered once more.

        Raises:
            TokenRejected: a server that takes a token now, and refuses it then, has them asked all the time.
        """
        now = time.monotonic()
        self._windows = [then for then in self._windows if now - then < WINDOW_SPAN]
        if len(self._windows) >= MAX_WINDOWS:
            raise TokenRejected(
                f"the user was asked {MAX_WINDOWS} times within {WINDOW_SPAN / 60:g} minutes, and the server "
                "still wants another token"
            )
        self._windows.append(now)

    async def _refresh_early(self) -> None:
        """Get a new token before the old one ends, or just after."""
        grant, known, tokens = self._grant, self._known, self._tokens
        assert known is not None
        assert tokens is not None
        if not tokens.stale():
            return  # somebody else has done it
        try:
            async with opened(grant.settings.http) as backend, grant.vault.lock(self._tokens_key(known)):
                kept = await self._kept(known)
                if kept is not None and _is_fresh(kept, tokens):
                    self._adopt(kept)
                    return
                fetch = Fetch(backend, self._guard)
                issuer = await look_up(fetch, known.issuer, legacy=not known.published)
                found = Found(Resource(known.resource), issuer, known.published)
                last = kept or tokens
                visit = Visit(fetch, grant.vault, found, last.asked, _proofs_of(last))
                if last.refresh is not None:
                    done = await _finished(self._refresh(known, visit, last))
                elif not grant.asks_user:
                    await self._keep(known, await self._obtained(visit), "refreshed")
                    done = True
                else:
                    done = False
                if not done:
                    await grant.vault.delete(self._tokens_key(known))
                    self._adopt(None)
        except Denied:
            raise  # only a program gets here: what it has shown in vain is not shown again
        except AuthError as error:
            # The token may be good for some seconds; if not, the server says so, and more can be done.
            logger.debug("a token could not be refreshed: %s", error)

    async def _refresh(self, known: Known, visit: Visit, last: Tokens) -> bool:
        """Whether a refresh token was good, and what it gave is kept."""
        tokens = await self._refreshed(visit, last)
        if tokens is not None:
            await self._keep(known, tokens, "refreshed")
        return tokens is not None

    async def _refreshed(self, visit: Visit, last: Tokens) -> Tokens | None:
        """What a refresh token gives; None if it is not good any more."""
        assert last.refresh is not None
        identity = await self._grant.identity(visit)
        if identity is None:
            return None
        proofs = _proofs_of(last)
        form = {"grant_type": "refresh_token", "refresh_token": last.refresh, **visit.resource}
        try:
            document = await ask(visit.fetch, visit.found.issuer, form, identity, proofs)
        except Denied as error:
            logger.debug("a token could not be refreshed: %s", error)
            if error.forgets:
                await self._grant.forgotten(visit)
            return None
        return issued(document, last.asked, last)

    async def _obtained(self, visit: Visit) -> Tokens:
        self._questions += 1
        if self._grant.asks_user:
            self._check_windows()
        tokens = await self._grant.obtain(visit)
        if tokens.kind == "dpop" and visit.proofs is None:
            raise AuthError("the authorization server bound the token to a key, though none was shown to it")
        if visit.proofs is not None and tokens.kind == "dpop":
            tokens = replace(tokens, key=visit.proofs.jwk)
        elif self._grant.settings.dpop is True:
            raise AuthError(
                "the authorization server did not bind the token to our key, though dpop=True wants it"
            )
        return tokens

    # ----------------------------------------------------------------- scopes and proofs

    def _visit(self, fetch: Fetch, found: Found, demand: _Demand, last: Tokens | None) -> Visit:
        scopes = self._scopes(found, demand, last)
        proofs = _proofs_of(last) or self._bound(found, demand)
        return Visit(fetch, self._grant.vault, found, scopes, proofs)

    def _scopes(self, found: Found, demand: _Demand, last: Tokens | None) -> tuple[str, ...]:
        """What to ask for: what the server wants and the user, and what was asked for before (AUTH-12)."""
        own = self._grant.settings.scopes
        wanted = demand.scopes or (() if own else found.resource.scopes_supported or ())
        before = () if last is None else last.asked
        scopes = [*dict.fromkeys((*before, *wanted, *own))]
        listed = found.issuer.scopes_supported or ()
        if OFFLINE in scopes and OFFLINE not in listed and OFFLINE not in own:
            scopes.remove(OFFLINE)
        elif scopes and OFFLINE in listed and OFFLINE not in scopes and self._grant.asks_user:
            scopes.append(OFFLINE)
        return tuple(scopes)

    def _bound(self, found: Found, demand: _Demand) -> Proofs | None:
        """What binds new tokens to a key, where that is wanted.

        Raises:
            AuthError: it is wanted, and cannot be done.
        """
        dpop = self._grant.settings.dpop
        if dpop is False or (dpop == "auto" and "dpop" not in demand.schemes):
            return None
        if DPOP_ALGORITHM in (found.issuer.dpop_signing_alg_values_supported or ()):
            return Proofs()
        if dpop == "auto" and "bearer" in demand.schemes:
            return None
        raise AuthError(
            f"tokens shall be bound to a key, but the authorization server does not list {DPOP_ALGORITHM}"
        )

    # ----------------------------------------------------------------- keeping tokens

    @property
    def _server_key(self) -> str:
        return f"server\n{self._server}\n{self._grant.who}"

    def _tokens_key(self, known: Known) -> str:
        return f"tokens\n{known.issuer}\n{known.resource}\n{self._grant.who}"

    async def _kept(self, known: Known) -> Tokens | None:
        text = await self._grant.vault.get(self._tokens_key(known))
        tokens = None if text is None else read(text, Tokens)
        if text is not None and tokens is None:
            logger.warning("the tokens for %s cannot be read; they are got anew", known.issuer)
        return tokens

    async def _keep(self, known: Known, tokens: Tokens, how: Literal["refreshed", "granted"]) -> None:
        """Keep new tokens before they are used: a refresh token that is lost cannot be had again."""
        await self._grant.vault.put(self._tokens_key(known), written(tokens))
        await self._note(known)
        self._adopt(tokens)
        self._unproven = how

    async def _note(self, known: Known) -> None:
        if self._known != known:
            await self._grant.vault.put(self._server_key, written(known))
            self._known = known

    def _adopt(self, tokens: Tokens | None) -> None:
        """Use these tokens from here on."""
        self._tokens = tokens
        self._unproven = None
        self._spoiled = None
        if tokens is None:
            self._header, self._proofs = {}, None
        elif tokens.kind == "dpop":
            if self._proofs is None or self._proofs.jwk != tokens.key:
                self._proofs = _proofs_of(tokens)
            self._header = {"authorization": f"DPoP {tokens.access}"}
        else:
            self._header, self._proofs = {"authorization": f"Bearer {tokens.access}"}, None


def _is_fresh(kept: Tokens, ours: Tokens | None) -> bool:
    """Whether somebody else has got newer tokens."""
    return (ours is None or kept.access != ours.access) and not kept.stale()


def _proofs_of(tokens: Tokens | None) -> Proofs | None:
    return None if tokens is None or tokens.key is None else Proofs(tokens.key)


def _demand(challenges: list[Challenge], dpop: object) -> _Demand:
    """What a refusal wants; a token that is bound to a key rather than another, if we may."""
    by_scheme = {challenge.scheme: challenge for challenge in reversed(challenges)}
    order = ("bearer", "dpop") if dpop is False else ("dpop", "bearer")
    chosen = next((by_scheme[scheme] for scheme in order if scheme in by_scheme), Challenge("", {}))
    return _Demand(chosen, frozenset(by_scheme))
