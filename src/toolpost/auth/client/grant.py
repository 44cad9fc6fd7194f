"""Grants, the ways in which a client gets tokens, and what each does with them at one server.

401  another token was used meanwhile ──→ again     use_dpop_nonce ──→ again, with the nonce
     else: discover ─→ a newer token in the storage, or a refresh, or a new grant ──→ again
     of an unattended request: the same without asking a person; it waits until a login brings a token
403  insufficient_scope ─→ a new grant with the union of scopes, as long as that may help ──→ again
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from toolpost.auth.arguments import check_flag, check_issuer_url
from toolpost.auth.client.discovery import DiscoveredServer, ServerRecord, discover, rediscover
from toolpost.auth.client.signing import DpopProver
from toolpost.auth.client.storage import MemoryTokens, ResilientStorage, Storage, check_storage
from toolpost.auth.client.token_cache import (
    PromptLimiter,
    SelectedChallenge,
    TokenCache,
    TokenRecords,
    TokenSource,
    load_prover,
    select_challenge,
)
from toolpost.auth.client.token_endpoint import (
    UNKNOWN_CLIENT_ERRORS,
    ClientIdentity,
    Tokens,
    parse_token_response,
    request_token,
)
from toolpost.auth.fetch import AuthHttpClient, use_backend
from toolpost.auth.urls import UrlPolicy, redact_url
from toolpost.errors import (
    AuthError,
    AuthorizationDenied,
    AuthorizationRequired,
    RequestFailed,
    TokenRejected,
)
from toolpost.single_flight import SingleFlight

if TYPE_CHECKING:
    from toolpost.transports.credentials import CredentialsRejection, OutgoingRequest

REFRESH_GRACE_PERIOD: Final = 10.0  # seconds that a refresh gets to end after its caller was cancelled
LOCK_TIMEOUT: Final = 0.5  # seconds to wait, with a good token, for another program that may refresh it
UNATTENDED_LOGIN_TIMEOUT: Final = 30.0  # seconds until an unattended request is tried with the same token

logger: Final = logging.getLogger("toolpost.auth")

Headers: TypeAlias = Mapping[str, str]
DpopMode: TypeAlias = "bool | Literal['auto']"
"""Whether tokens are bound to a key: always, never, or where both servers speak of it."""


class GrantSettings(NamedTuple):
    """The arguments that every grant has."""

    scopes: tuple[str, ...]
    dpop: DpopMode
    http: object
    allow_private: bool
    allow_http: bool


class TokenRequest(NamedTuple):
    """One attempt to get tokens."""

    fetch: AuthHttpClient
    server: DiscoveredServer
    scopes: tuple[str, ...]
    proofs: DpopProver | None = None

    @property
    def scope_param(self) -> dict[str, str]:
        """The scopes as a field of a form; nothing if there are none."""
        return {"scope": " ".join(self.scopes)} if self.scopes else {}

    @property
    def resource_param(self) -> dict[str, str]:
        """The resource as a field of a form, exactly as published (AUTH-40)."""
        return {"resource": self.server.resource.resource}

    async def send(self, form: Mapping[str, str], identity: ClientIdentity | None) -> Tokens:
        """Return the tokens that the token endpoint gives for a form."""
        document = await request_token(self.fetch, self.server.issuer, form, identity, self.proofs)
        return parse_token_response(document, self.scopes, None)


class Grant(ABC):
    """A way to get tokens, for any number of servers."""

    asks_user: ClassVar[bool] = False  # whether a person has to log in for tokens
    steps_up: ClassVar[bool] = True  # whether it helps to ask for more scopes

    def __init__(
        self,
        settings: GrantSettings,
        storage: Storage | None,
        *,
        who: str,
        issuer: str | None,
        is_pinned: bool = True,
    ) -> None:
        check_flag("dpop", settings.dpop, "auto")
        check_flag("allow_private", settings.allow_private)
        check_flag("allow_http", settings.allow_http)
        check_storage(storage)
        check_issuer_url(issuer)
        self.settings = settings
        self.storage = ResilientStorage(MemoryTokens() if storage is None else storage)
        self.client_key = f"{type(self).__name__} {who}"  # what one kind of grant got is not for another
        self.issuer = issuer
        self._is_pinned = is_pinned
        self._providers = WeakKeyDictionary[asyncio.AbstractEventLoop, "dict[str, TokenProvider]"]()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    async def headers(self, request: "OutgoingRequest", /) -> Headers:
        """Return the headers with the token for a request, if there is one."""
        return await self._get_provider(request.server).headers(request)

    async def on_rejected(self, request: "OutgoingRequest", refused: "CredentialsRejection", /) -> bool:
        """Get another token, if that may help."""
        return await self._get_provider(request.server).on_rejected(request, refused)

    def on_accepted(self, request: "OutgoingRequest", headers: Headers, sent: Headers, /) -> None:
        """Note that a request was accepted."""
        self._get_provider(request.server).on_accepted(request, headers, sent)

    def _get_provider(self, server: str) -> "TokenProvider":
        providers = self._providers.setdefault(asyncio.get_running_loop(), {})
        if server not in providers:
            providers[server] = TokenProvider(server, self)
        return providers[server]

    def pin(self, issuer: str) -> None:
        """Bind the credentials to an issuer, or check that they are bound to it (AUTH-29, AUTH-32)."""
        if not self._is_pinned:
            return
        if self.issuer is None:
            self.issuer = issuer
        elif self.issuer != issuer:
            problem = f"are for {redact_url(self.issuer)}, but the server names {redact_url(issuer)}"
            hint = "if the server has moved to another authorization server, register the client there"
            raise AuthError(f"the credentials {problem}", hint=hint)

    async def _send_form(self, request: TokenRequest, form: Mapping[str, str]) -> Tokens:
        """Return the tokens for a form of this grant, with the scopes and the resource added."""
        fields = {**form, **request.scope_param, **request.resource_param}
        return await request.send(fields, await self.identity(request))

    @abstractmethod
    async def obtain(self, request: TokenRequest) -> Tokens:
        """Return new tokens."""

    @abstractmethod
    async def identity(self, request: TokenRequest) -> ClientIdentity | None:
        """Return the client that refreshes a token; None if it cannot be refreshed."""

    async def forget_registration(self, request: TokenRequest) -> None:  # noqa: B027 - a hook; most have nothing to forget
        """Forget a client that the authorization server does not know any more."""


# --------------------------------------------------------------------- tokens at one server


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
        allow_private, allow_http = grant.settings.allow_private, grant.settings.allow_http
        self._url_policy = UrlPolicy(server, allow_private=allow_private, allow_http=allow_http)
        self._url_policy.check_scheme(server, "the URL of the server")
        self._cache = TokenCache()
        self._records = TokenRecords(grant.storage, server, grant.client_key)
        self._prompt_limiter = PromptLimiter()
        self._server_record: ServerRecord | None = None
        self._is_loaded = False
        self._skip_refresh_of: Tokens | None = None  # used to their end: another program refreshes them
        self._renewal: SingleFlight[None] = SingleFlight()
        self._unattended_renewal: SingleFlight[None] = SingleFlight()
        self._refreshing: SingleFlight[None] = SingleFlight()

    async def headers(self, request: "OutgoingRequest") -> Headers:
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

    def on_accepted(self, request: "OutgoingRequest", headers: Headers, sent: Headers) -> None:
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
                settings, asks_user = grant.settings, grant.asks_user
                scopes = selected.compute_scopes(server, last, settings.scopes, asks_user=asks_user)
                proofs = load_prover(last) or selected.make_prover(server, settings.dpop)
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
