"""Grants (the ways to get tokens), and the provider of tokens for one server: what to do on 401 and 403.

401  another token is in use now ──→ retry     use_dpop_nonce ──→ retry with the nonce
     else: discover ─→ a newer token in the storage, or a refresh, or a new grant ──→ retry
     of an unattended request: the same without a prompt; it waits until a login brings a token
403  insufficient_scope ─→ a new grant with the union of scopes, within the limits of prompts ──→ retry
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, TypedDict
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from toolpost.auth.arguments import check_flag, check_http_url, check_texts
from toolpost.auth.client.discovery import DiscoveredServer, ServerRecord, discover, rediscover
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
from toolpost.auth.jose import DpopProver
from toolpost.auth.urls import UrlPolicy, redact_url
from toolpost.errors import (
    AuthError,
    AuthorizationDenied,
    AuthorizationRequired,
    RequestFailed,
    TokenRejected,
)
from toolpost.principal import list_scopes
from toolpost.single_flight import SingleFlight

if TYPE_CHECKING:
    from toolpost.transports.credentials import CredentialsRejection, OutgoingRequest

REFRESH_GRACE_PERIOD: Final = 10.0  # seconds for a refresh to end after its caller was cancelled
LOCK_TIMEOUT: Final = 0.5  # seconds to wait, with a valid token, for another program that refreshes it
UNATTENDED_LOGIN_TIMEOUT: Final = 30.0  # seconds until an unattended request is retried with the same token

logger: Final = logging.getLogger("toolpost.auth")

Headers: TypeAlias = Mapping[str, str]
DpopMode: TypeAlias = "bool | Literal['auto']"
"""Whether tokens are bound to a key: always, never, or where both servers support it."""


class GrantOptions(TypedDict, total=False):
    """The options that all grants without a login have in common."""

    issuer: str | None
    scopes: "str | Iterable[str] | None"
    storage: Storage | None
    dpop: DpopMode
    http: object
    allow_private: bool
    allow_http: bool


class TokenRequest(NamedTuple):
    """One attempt to get tokens."""

    fetch: AuthHttpClient
    server: DiscoveredServer
    scopes: tuple[str, ...]
    proofs: DpopProver | None
    dpop: DpopMode

    @property
    def scope_param(self) -> dict[str, str]:
        """The scopes as a form field; empty if there are none."""
        return {"scope": " ".join(self.scopes)} if self.scopes else {}

    @property
    def resource_param(self) -> dict[str, str]:
        """The resource as a form field, exactly as published (AUTH-40)."""
        return {"resource": self.server.resource.resource}

    async def send(
        self, form: Mapping[str, str], identity: ClientIdentity | None, before: Tokens | None = None
    ) -> Tokens:
        """Send a form; return the tokens, with their key if any. `before` are the tokens to refresh."""
        document = await request_token(self.fetch, self.server.issuer, form, identity, self.proofs)
        tokens = parse_token_response(document, self.scopes, before)
        if tokens.kind == "dpop":
            if self.proofs is None:
                raise AuthError("the authorization server issued a DPoP token without a proof")
            return replace(tokens, key=self.proofs.jwk)
        if self.dpop is True:
            raise AuthError("the authorization server did not issue a DPoP token, but dpop=True requires it")
        return tokens


class Grant(ABC):
    """A way to get tokens, for any number of servers."""

    asks_user: ClassVar[bool] = False  # whether a person has to log in
    steps_up: ClassVar[bool] = True  # whether a new grant may bring more scopes

    def __init__(
        self,
        client: str,
        *,
        issuer: str | None = None,
        scopes: "str | Iterable[str] | None" = None,
        storage: Storage | None = None,
        dpop: DpopMode = "auto",
        http: object = None,
        allow_private: bool = False,
        allow_http: bool = False,
        is_pinned: bool = True,
    ) -> None:
        check_flag("dpop", dpop, "auto")
        check_flag("allow_private", allow_private)
        check_flag("allow_http", allow_http)
        check_storage(storage)
        check_texts(issuer=issuer)
        if issuer is not None:
            check_http_url(issuer, f"issuer={issuer[:80]!r}", "; example: https://login.example.com")
        self.scopes = () if scopes is None else list_scopes(scopes)
        self.dpop: DpopMode = dpop
        self.http = http
        self.allow_private = allow_private
        self.allow_http = allow_http
        self.storage = ResilientStorage(MemoryTokens() if storage is None else storage)
        self.client_key = f"{type(self).__name__} {client}"  # kinds of grants share no tokens
        self.issuer = issuer
        self._is_pinned = is_pinned
        self._providers = WeakKeyDictionary[asyncio.AbstractEventLoop, "dict[str, TokenProvider]"]()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    async def headers(self, request: "OutgoingRequest", /) -> Headers:
        """Return the headers with the token for a request; none if there is no token yet."""
        return await self._get_provider(request.server).headers(request)

    async def on_rejected(self, request: "OutgoingRequest", refused: "CredentialsRejection", /) -> bool:
        """Return whether there is another token, after a 401 or 403."""
        return await self._get_provider(request.server).on_rejected(request, refused)

    def on_accepted(self, request: "OutgoingRequest", headers: Headers, sent: Headers, /) -> None:
        """Record that a request was accepted."""
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
        """Send a form of this grant, with the scopes and the resource added; return the tokens."""
        fields = {**form, **request.scope_param, **request.resource_param}
        return await request.send(fields, await self.identity(request))

    @abstractmethod
    async def obtain(self, request: TokenRequest) -> Tokens:
        """Return new tokens."""

    @abstractmethod
    async def identity(self, request: TokenRequest) -> ClientIdentity | None:
        """Return the client that refreshes a token; None if it cannot be refreshed."""

    async def forget_registration(self, request: TokenRequest) -> None:  # noqa: B027 - most grants have none
        """Delete a registration that the authorization server no longer knows."""


# --------------------------------------------------------------------- tokens at one server


async def run_to_completion(work: Coroutine[Any, Any, bool]) -> bool:
    """Return the result of work. If cancelled, let it finish: a refresh token works only once."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=REFRESH_GRACE_PERIOD)
        task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # mark it as retrieved
        raise


class TokenProvider:
    """The tokens for one server, in one event loop."""

    def __init__(self, server: str, grant: Grant) -> None:
        self._server = server
        self._grant = grant
        self._url_policy = UrlPolicy(server, allow_private=grant.allow_private, allow_http=grant.allow_http)
        self._url_policy.check_scheme(server, "the URL of the server")
        self._cache = TokenCache()
        self._records = TokenRecords(grant.storage, server, grant.client_key)
        self._prompt_limiter = PromptLimiter()
        self._is_loaded = False
        self._skip_refresh_of: Tokens | None = None  # tokens to use until they expire: a refresh has failed
        self._renewal: SingleFlight[None] = SingleFlight()
        self._unattended_renewal: SingleFlight[None] = SingleFlight()
        self._refreshing: SingleFlight[None] = SingleFlight()

    async def headers(self, request: "OutgoingRequest") -> Headers:
        """Return the headers with the token; none if there is no token yet."""
        if not self._is_loaded:
            await self._refreshing.join(self._load_stored)
        if self._needs_refresh(self._cache.tokens):
            await self._refreshing.join(self._refresh_early)
        return self._cache.headers(request.method, request.url)

    def _needs_refresh(self, tokens: Tokens | None) -> bool:
        """Return whether to refresh tokens first: without a prompt, and if no renewal is running."""
        if tokens is None or not tokens.is_stale:
            return False
        if tokens is self._skip_refresh_of and not tokens.is_expired:
            return False
        return (tokens.refresh is not None or not self._grant.asks_user) and not self._renewal.is_running

    def on_accepted(self, request: "OutgoingRequest", headers: Headers, sent: Headers) -> None:
        """Record that a token was accepted."""
        if self._cache.mark_accepted(sent):
            self._prompt_limiter.record_success()
        self._cache.store_nonce(request.url, headers)

    async def on_rejected(self, request: "OutgoingRequest", refused: "CredentialsRejection") -> bool:
        """Return whether there is another token; RequestFailed if an unattended request has to wait."""
        cache = self._cache
        selected = select_challenge(refused.challenge, self._grant.dpop)
        may_ask = not (request.unattended and self._grant.asks_user)
        has_new_nonce = cache.store_nonce(request.url, refused.headers)
        if has_new_nonce and refused.status == 401 and selected.challenge.error == "use_dpop_nonce":
            return True
        if not cache.is_current(refused.sent):
            return True  # another request has replaced the token
        if may_ask:
            cache.check_failure(refused.sent)
        if refused.status != 401:
            return may_ask and await self._step_up(selected)
        if cache.unproven_source == "granted":
            raise TokenRejected(
                "the server rejected a token that its authorization server has just issued",
                hint="the server may trust another authorization server, or expect another audience",
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
        """Renew the tokens once for all requests that need it; an error is raised for all of them."""
        header = self._cache.token_header
        try:
            await self._renewal.join(work)
        except AuthError as error:
            self._cache.record_failure(header, error)
            raise

    async def _await_new_tokens(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for new tokens, from `work` or from a login of another request."""
        change = self._cache.change_event
        try:
            await self._unattended_renewal.join(work)
        except AuthError as error:
            logger.debug("no other token is available without a login: %s", error)
        try:
            async with asyncio.timeout(UNATTENDED_LOGIN_TIMEOUT):
                await change.wait()
        except TimeoutError:
            raise RequestFailed("the user has not logged in yet", sent=False) from None

    async def _load_stored(self) -> None:
        """Load the tokens of the last run."""
        known = await self._records.load_server()
        if known is not None:
            if self._grant.issuer is None:
                self._grant.pin(known.issuer)
            if self._grant.issuer in {None, known.issuer}:
                kept = await self._records.load_tokens(known)
                self._cache.put(kept if self._is_sufficient(kept) else None)
        self._is_loaded = True

    def _is_sufficient(self, tokens: Tokens | None) -> bool:
        """Return whether tokens were requested with all scopes and the key that the user wants now."""
        if tokens is None or (self._grant.dpop is True and tokens.kind != "dpop"):
            return False
        return {*self._grant.scopes} <= {*tokens.scopes, *tokens.asked}

    async def _renew(
        self,
        selected: SelectedChallenge,
        *,
        refresh: bool,
        needed: frozenset[str] = frozenset(),
        may_ask: bool = True,
    ) -> None:
        """Replace the tokens that were refused."""
        grant, refused = self._grant, self._cache.tokens
        metadata_url = selected.challenge.params.get("resource_metadata")
        async with use_backend(grant.http) as backend:
            fetch = AuthHttpClient(backend, self._url_policy)
            server = await discover(fetch, self._server, metadata_url, grant.issuer)
            known = server.record
            grant.pin(known.issuer)
            async with self._records.lock(known):
                kept = await self._records.load_tokens(known)
                fresh = self._is_sufficient(kept) and _is_newer(kept, refused)
                if kept is not None and fresh and needed <= {*kept.scopes}:
                    await self._records.save_server(known)
                    self._cache.put(kept)
                    return
                last = kept or (refused if self._records.server == known else None)
                scopes = selected.compute_scopes(server, last, grant.scopes, asks_user=grant.asks_user)
                proofs = load_prover(last) or selected.make_prover(server, grant.dpop)
                request = TokenRequest(fetch, server, scopes, proofs, grant.dpop)
                # A refresh does not add scopes (RFC 6749, section 6).
                can_refresh = refresh and self._is_sufficient(last)
                if can_refresh and last and await run_to_completion(self._refresh(request, last)):
                    return
                if may_ask:
                    await self._obtain(request, "granted", needed)

    async def _refresh_early(self) -> None:
        """Refresh a token that has expired or soon will."""
        grant, known, tokens = self._grant, self._records.server, self._cache.tokens
        assert known is not None
        assert tokens is not None
        if not tokens.is_stale:
            return
        try:
            async with use_backend(grant.http) as backend, AsyncExitStack() as held:
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
                request = TokenRequest(fetch, server, last.asked, load_prover(last), grant.dpop)
                if last.refresh is None and not grant.asks_user:
                    await self._obtain(request, "refreshed")
                elif not await run_to_completion(self._refresh(request, last)):
                    self._cache.put(None)
                    await self._records.delete_tokens(known)
        except AuthorizationDenied:
            raise  # refused credentials of a program are not sent again
        except AuthError as error:
            # The token may still be valid; if not, the server answers with 401.
            self._skip_refresh_of = tokens
            logger.debug("could not refresh a token: %s", error)

    async def _refresh(self, request: TokenRequest, last: Tokens) -> bool:
        """Use the refresh token and store the new tokens. Return False if that is impossible or refused."""
        identity = None if last.refresh is None else await self._grant.identity(request)
        if last.refresh is None or identity is None:
            return False
        request = request._replace(scopes=last.asked, proofs=load_prover(last))
        form = {"grant_type": "refresh_token", "refresh_token": last.refresh, **request.resource_param}
        try:
            tokens = await request.send(form, identity, last)
        except AuthorizationDenied as error:
            logger.debug("could not refresh a token: %s", error)
            if error.code in UNKNOWN_CLIENT_ERRORS:
                await self._grant.forget_registration(request)
            return False
        await self._store(request.server.record, tokens, "refreshed")
        return True

    async def _obtain(
        self, request: TokenRequest, source: TokenSource, needed: frozenset[str] = frozenset()
    ) -> None:
        """Get new tokens from the grant, and store them."""
        if self._grant.asks_user:
            self._prompt_limiter.record_prompt(needed, self._cache.tokens)
        try:
            tokens = await self._grant.obtain(request)
        except AuthorizationRequired:
            raise
        except AuthError as error:
            raise request.server.annotate_error(error) from error.__cause__
        self._prompt_limiter.record_grant(needed, tokens)
        await self._store(request.server.record, tokens, source)

    async def _store(self, known: ServerRecord, tokens: Tokens, source: TokenSource) -> None:
        await self._records.save_tokens(known, tokens)
        self._cache.put(tokens, source)


def _is_newer(kept: Tokens | None, ours: Tokens | None) -> bool:
    """Return whether the storage has newer tokens than ours."""
    return kept is not None and (ours is None or kept.access != ours.access) and not kept.is_stale
