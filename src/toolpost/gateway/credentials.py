"""Credentials at an upstream that depend on who calls: token exchange, a login of each user, passing on.

`CallerTokens` keeps the verified tokens of callers for them; nothing else sees a token. There is no fallback:
without these credentials the call fails, and says what is wanted.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from msgspec.structs import replace

from toolpost.auth.arguments import check_http_url, check_text, check_texts
from toolpost.auth.client.discovery import covers, fetch_server_metadata
from toolpost.auth.client.oauth import OAuth
from toolpost.auth.client.storage import FileTokens, Storage, default_folder
from toolpost.auth.client.token_endpoint import (
    ClientIdentity,
    Registration,
    Tokens,
    parse_token_response,
    request_token,
)
from toolpost.auth.fetch import AuthHttpClient, use_backend
from toolpost.auth.server.auth import Auth, Verifier
from toolpost.auth.urls import UrlPolicy
from toolpost.errors import (
    AuthError,
    AuthorizationDenied,
    AuthorizationRequired,
    CapabilityNotDeclared,
    InternalError,
    MissingScopes,
    RPCError,
    TokenRejected,
    UserRejected,
)
from toolpost.gateway.approval import FORBIDDEN
from toolpost.principal import Principal, list_scopes
from toolpost.protocol.urls import display_url
from toolpost.server.elicitation.forms import Accepted
from toolpost.single_flight import SingleFlight
from toolpost.transports.credentials import (
    Authorizer,
    CredentialsRejection,
    OutgoingRequest,
    build_bearer_header,
    check_encrypted,
)

if TYPE_CHECKING:
    from toolpost.server.context import Context

TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a grant type
ACCESS_TOKEN_TYPE: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a kind of token

MAX_CALLERS: Final = 10_000
"""Callers whose tokens are kept; beyond that, those of the least recently active one are dropped."""

TOKEN_CLAIM: Final = "toolpost_token"  # noqa: S105 - the name of a claim
"""The claim of a principal that leads to its token: a digest, which may be shown."""


class _KnownToken(NamedTuple):
    token: str
    expires: float

    def __repr__(self) -> str:
        return "_KnownToken(…)"


class CallerTokens:
    """The verified tokens of callers, in memory. A principal has only a digest of its token."""

    def __init__(self) -> None:
        self._known = OrderedDict[str, _KnownToken]()

    def __repr__(self) -> str:
        return f"<CallerTokens: {len(self._known)}>"

    def watch(self, auth: Auth) -> Auth:
        """Keep the tokens that a server verifies from now on."""
        auth.verifier = _WatchedVerifier(auth.verifier, self)
        return auth

    def add(self, principal: Principal, token: str) -> Principal:
        """Keep a token; return the principal that leads to it."""
        digest = sha256(token.encode()).hexdigest()
        expires = principal.claims.get("exp")
        self._known[digest] = _KnownToken(
            token, expires if isinstance(expires, int | float) else float("inf")
        )
        self._known.move_to_end(digest)
        while len(self._known) > MAX_CALLERS:
            self._known.popitem(last=False)
        return replace(principal, claims={**principal.claims, TOKEN_CLAIM: digest})

    def find(self, principal: Principal | None) -> str | None:
        """Return the token of a principal, unless it has expired."""
        digest = None if principal is None else principal.claims.get(TOKEN_CLAIM)
        known = self._known.get(digest) if isinstance(digest, str) else None
        if known is None or not isinstance(digest, str):
            return None
        if known.expires <= time.time():
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return known.token


class _WatchedVerifier:
    """Verifies tokens as another verifier does, and keeps the valid ones."""

    def __init__(self, verifier: Verifier, tokens: CallerTokens) -> None:
        self._verifier = verifier
        self._tokens = tokens
        self.cache_ttl = verifier.cache_ttl

    async def verify(self, token: str, *resources: str) -> Principal:
        """Return the principal of a valid token."""
        return self._tokens.add(await self._verifier.verify(token, *resources), token)


# --------------------------------------------------------------------- what depends on the caller


class CallerCredentials(ABC):
    """Credentials at an upstream that depend on the caller; each caller needs a connection of their own."""

    is_per_caller = True
    asks_user = False
    """Whether the caller may have to log in."""

    @abstractmethod
    async def authorize(self, context: "Context", url: str) -> tuple[str, Authorizer]:
        """Return who the caller is, as a key of connections, and what authorizes the caller's requests.

        Raises:
            RPCError: the caller has no credentials for this upstream; the message says what is wanted.
        """


def make_denial(message: str, scopes: Iterable[str] = ()) -> RPCError:
    """Return the error for a caller without credentials; a client can get the scopes that are wanted."""
    scope = " ".join(scopes)
    return (
        MissingScopes(message, {"scope": scope})
        if scope
        else RPCError(message, code=FORBIDDEN, kind="forbidden")
    )


def _require_token(tokens: CallerTokens, context: "Context", upstream: str) -> tuple[Principal, str]:
    principal = context.principal
    token = tokens.find(principal)
    if principal is None or token is None:
        raise make_denial(f"{upstream} needs the token of the caller, and this request has none")
    return principal, token


def _make_key(principal: Principal, kind: str) -> str:
    """Return a key that callers share only if their tokens are equally strong."""
    parts = (kind, principal.key, principal.client, *sorted(principal.scopes))
    return sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class TokenExchange(CallerCredentials):
    """Exchanges the token of each caller for one of the upstream (RFC 8693).

    Args:
        upstream: the name of the upstream, for errors.
        tokens: the tokens of callers.
        issuer: the authorization server that exchanges them.
        client_id: the id of the gateway there.
        client_secret: its secret there.
        audience: the logical name of the upstream there.
        resource: the URL of the upstream; by default its own URL, unless there is an audience.
        scopes: the scopes to ask for.
        http: the HTTP library, as for a client.
        allow_http: allow tokens to be sent to other machines without encryption.
    """

    def __init__(
        self,
        upstream: str,
        tokens: CallerTokens,
        *,
        issuer: str,
        client_id: str,
        client_secret: str | None = None,
        audience: str | None = None,
        resource: str | None = None,
        scopes: Iterable[str] = (),
        http: object = None,
        allow_http: bool = False,
    ) -> None:
        check_http_url(issuer, "issuer", "; example: https://login.example.com")
        check_text("client_id", client_id)
        check_texts(client_secret=client_secret, audience=audience, resource=resource)
        self.upstream = upstream
        self.scopes = list_scopes(scopes)
        self._tokens = tokens
        self._issuer = issuer
        self._client = client_id, client_secret
        self._target = {"audience": audience} if audience else {}
        self._resource = resource
        self._http = http
        self._allow_http = allow_http
        self._by_caller = OrderedDict[str, _ExchangedToken]()

    async def authorize(self, context: "Context", url: str) -> tuple[str, Authorizer]:
        """Return the authorizer of the caller, which has a token of the upstream."""
        principal, subject = _require_token(self._tokens, context, self.upstream)
        key = _make_key(principal, "exchange")
        exchanged = self._by_caller.setdefault(key, _ExchangedToken(self, url))
        self._by_caller.move_to_end(key)
        while len(self._by_caller) > MAX_CALLERS:
            self._by_caller.popitem(last=False)
        exchanged.subject = subject
        try:
            await exchanged.ensure()
        except AuthorizationDenied as error:
            self._by_caller.pop(key, None)
            code = f": {error.code}" if error.code else ""
            message = f"The token of the caller was not accepted for {self.upstream}{code}"
            raise make_denial(message, self.scopes) from None
        except AuthError as error:
            raise InternalError(
                f"The token of the caller could not be exchanged for {self.upstream}",
                {"server": self.upstream, "sent": False},
            ) from error
        return key, exchanged

    async def exchange(self, subject: str, url: str) -> Tokens:
        """Send the token of a caller to the authorization server; return that of the upstream."""
        policy = UrlPolicy(self._issuer, allow_private=True, allow_http=self._allow_http)
        async with use_backend(self._http) as backend:
            fetch = AuthHttpClient(backend, policy)
            server = await fetch_server_metadata(fetch, self._issuer)
            resource = self._resource or (None if self._target else url)
            form = {
                "grant_type": TOKEN_EXCHANGE,
                "subject_token": subject,
                "subject_token_type": ACCESS_TOKEN_TYPE,
                "requested_token_type": ACCESS_TOKEN_TYPE,
                **self._target,
                **({} if resource is None else {"resource": resource}),
                **({"scope": " ".join(self.scopes)} if self.scopes else {}),
            }
            client = ClientIdentity(Registration(server.issuer, *self._client))
            document = await request_token(fetch, server, form, client)
        kind = (document or {}).get("issued_token_type")
        if kind is not None and kind != ACCESS_TOKEN_TYPE:
            raise AuthError("the authorization server issued a token of the wrong type")
        tokens = parse_token_response(document, self.scopes, None)
        if tokens.kind != "bearer":
            raise AuthError("the authorization server issued a token that is bound to a key")
        if tokens.access == subject:
            raise AuthError("the authorization server returned the token of the caller itself")
        return tokens


class _ExchangedToken:
    """The token of one caller at one upstream."""

    def __init__(self, source: TokenExchange, url: str) -> None:
        self.subject = ""
        self._source = source
        self._url = url
        self._tokens: Tokens | None = None
        self._is_proven = False
        self._flight: SingleFlight[None] = SingleFlight()

    def __repr__(self) -> str:
        return "_ExchangedToken(…)"

    async def ensure(self) -> None:
        """Get a token if there is none, or if it is about to expire."""
        if self._tokens is None or self._tokens.is_stale:
            await self._flight.join(self._renew)

    async def _renew(self) -> None:
        self._tokens = None
        self._is_proven = False
        self._tokens = await self._source.exchange(self.subject, self._url)

    async def headers(self, _request: OutgoingRequest, /) -> Mapping[str, str]:
        """Return the header with the token."""
        check_encrypted(self._url)
        await self.ensure()
        assert self._tokens is not None, "it was just obtained"
        return build_bearer_header(self._tokens.access)

    async def on_rejected(self, _request: OutgoingRequest, rejection: CredentialsRejection, /) -> bool:
        """Exchange once more if the token worked before."""
        if not rejection.is_about_credentials:
            return False
        tokens = self._tokens
        if tokens is None or build_bearer_header(tokens.access) != dict(rejection.sent):
            return True  # another request has renewed it
        if rejection.status != 401 or not self._is_proven:
            raise TokenRejected(f"{self._source.upstream} does not accept the exchanged token")
        await self._flight.join(self._renew)
        return True

    def on_accepted(self, _request: OutgoingRequest, _headers: Any, _sent: Any, /) -> None:
        """Note that the token works."""
        self._is_proven = True


class Passthrough(CallerCredentials):
    """Passes the token of each caller on, if it names the upstream as its audience.

    Args:
        upstream: the name of the upstream, for errors.
        tokens: the tokens of callers.
    """

    def __init__(self, upstream: str, tokens: CallerTokens) -> None:
        self.upstream = upstream
        self._tokens = tokens

    async def authorize(self, context: "Context", url: str) -> tuple[str, Authorizer]:
        """Return the authorizer with the token of the caller."""
        check_encrypted(url)
        principal, _ = _require_token(self._tokens, context, self.upstream)
        named: Any = principal.claims.get("aud")
        audiences = cast("list[object]", named) if isinstance(named, list) else [cast("object", named)]
        if not any(isinstance(each, str) and covers(each, url) and covers(url, each) for each in audiences):
            wanted = display_url(url)
            raise make_denial(
                f"The token of the caller is not for {self.upstream}: its audience must include {wanted}"
            )
        return _make_key(principal, "passthrough"), _PassedToken(principal, self._tokens)


class _PassedToken:
    """The token of one caller, as long as it is valid."""

    def __init__(self, principal: Principal, tokens: CallerTokens) -> None:
        self._principal = principal
        self._tokens = tokens

    async def headers(self, _request: OutgoingRequest, /) -> Mapping[str, str]:
        """Return the header with the token."""
        token = self._tokens.find(self._principal)
        if token is None:
            raise TokenRejected("the token of the caller has expired")
        return build_bearer_header(token)

    async def on_rejected(self, _request: OutgoingRequest, _rejection: CredentialsRejection, /) -> bool:
        """Give up: there is no other token."""
        return False

    def on_accepted(self, _request: OutgoingRequest, _headers: Any, _sent: Any, /) -> None:
        """Do nothing."""


# --------------------------------------------------------------------- logins of users


class UserLogins(CallerCredentials):
    """Sends each caller to the login of the upstream, once, and keeps their tokens apart.

    The browser returns to a port of this machine, so the gateway has to run where the browser does.

    Args:
        upstream: the name of the upstream, for errors and for the user.
        folder: where tokens are stored; by default in the user's folder for state.
        options: `client_id`, `client_secret`, `issuer`, `scopes`, `redirect_uri`, `http` and `timeout`, as
            for `OAuth`.
    """

    asks_user = True

    def __init__(self, upstream: str, folder: Path | None = None, **options: Any) -> None:
        self.upstream = upstream
        self._folder = folder or default_folder() / "gateway"
        self._options = options
        self._by_caller: dict[str, _Login] = {}

    async def authorize(self, context: "Context", url: str) -> tuple[str, Authorizer]:
        """Return the authorizer of the caller, who logs in first if they have not."""
        check_encrypted(url)
        principal = context.principal
        if principal is None and context.client_connection.is_remote:
            raise make_denial(f"{self.upstream} needs a login of each user, and this request has no user")
        owner = "" if principal is None else principal.key
        key = sha256(f"login\n{self.upstream}\n{url}\n{owner}".encode("utf-8", "surrogatepass")).hexdigest()[
            :32
        ]
        login = self._by_caller.get(key)
        if login is None:
            login = self._by_caller[key] = _Login(url, FileTokens(self._folder / key), self._options)
        if not await login.has_token():
            page = await login.begin()
            message = f"Sign in to {self.upstream}"
            try:
                answer = await context.elicit_url(message, page, key=f"login-{self.upstream}"[:128])
            except CapabilityNotDeclared:
                raise make_denial(f"The user has to sign in to {self.upstream} first: {page}") from None
            if not isinstance(answer, Accepted):
                raise UserRejected(f"The user did not sign in to {self.upstream}")
            try:
                await login.wait()
            except AuthError as error:
                raise InternalError(
                    f"The user could not sign in to {self.upstream}: {error.message}"
                ) from None
        return key, login.oauth

    async def close(self) -> None:
        """End all logins that are under way."""
        for login in self._by_caller.values():
            await login.cancel()


class _Login:
    """The login of one caller at one upstream."""

    def __init__(self, url: str, storage: Storage, options: Mapping[str, Any]) -> None:
        self.oauth = OAuth(storage=storage, open_url=self._show, **options)
        self._request = OutgoingRequest(url, "POST", url)
        self._page: asyncio.Future[str] | None = None
        self._task: asyncio.Task[bool] | None = None
        self._has_ended = False

    async def has_token(self) -> bool:
        """Return whether there is a token that was not rejected."""
        return not self._has_ended and bool(await self.oauth.headers(self._request))

    async def begin(self) -> str:
        """Start to log in, unless that is under way; return the page to visit."""
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._page = loop.create_future()
            refused = CredentialsRejection(401, {}, await self.oauth.headers(self._request))
            self._task = loop.create_task(self.oauth.on_rejected(self._request, refused))
        assert self._page is not None, "it was made with the task"
        await asyncio.wait([self._task, self._page], return_when=asyncio.FIRST_COMPLETED)
        if not self._page.done():
            await self.wait()
        return self._page.result()

    async def _show(self, page: str) -> None:
        if self._page is None or self._page.done():
            self._has_ended = True
            raise AuthorizationRequired("the login has ended", hint="call again to log in")
        self._page.set_result(page)

    async def wait(self) -> None:
        """Wait until the user has logged in. Raises AuthError."""
        assert self._task is not None, "a login has begun"
        await asyncio.shield(self._task)
        self._has_ended = False

    async def cancel(self) -> None:
        """End a login that is under way."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
