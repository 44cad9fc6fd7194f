"""The base class of grants: the ways in which a client gets tokens, each for any number of servers.

Owns what users may set for every grant, and one token provider for each server and event loop. Implements
the authorizer that transports expect; what happens at one server is in `token_provider`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from toolpost.auth.arguments import check_flag, check_issuer_url
from toolpost.auth.client.discovery import DiscoveredServer
from toolpost.auth.client.signing import DpopProver
from toolpost.auth.client.storage import MemoryTokens, ResilientStorage, Storage, check_storage
from toolpost.auth.client.token_endpoint import ClientIdentity, Tokens, parse_token_response, request_token
from toolpost.auth.fetch import AuthHttpClient
from toolpost.auth.urls import UrlPolicy, redact_url
from toolpost.errors import AuthError

if TYPE_CHECKING:
    from toolpost.auth.client.token_provider import TokenProvider
    from toolpost.transports.credentials import CredentialsRejection, OutgoingRequest

DpopMode: TypeAlias = "bool | Literal['auto']"
"""Whether tokens are bound to a key: always, never, or where both servers speak of it."""


class GrantSettings(NamedTuple):
    """The arguments that every grant has."""

    scopes: tuple[str, ...] = ()
    dpop: DpopMode = "auto"
    http: object = None
    allow_private: bool = False
    allow_http: bool = False

    def make_url_policy(self, server: str) -> UrlPolicy:
        """Return the rules for URLs that a server names."""
        return UrlPolicy(server, allow_private=self.allow_private, allow_http=self.allow_http)


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

    async def headers(self, request: "OutgoingRequest", /) -> Mapping[str, str]:
        """Return the headers with the token for a request, if there is one."""
        return await self._get_provider(request.server).headers(request)

    async def on_rejected(self, request: "OutgoingRequest", refused: "CredentialsRejection", /) -> bool:
        """Get another token, if that may help."""
        return await self._get_provider(request.server).on_rejected(request, refused)

    def on_accepted(
        self, request: "OutgoingRequest", headers: Mapping[str, str], sent: Mapping[str, str], /
    ) -> None:
        """Note that a request was accepted."""
        self._get_provider(request.server).on_accepted(request, headers, sent)

    def _get_provider(self, server: str) -> "TokenProvider":
        providers = self._providers.setdefault(asyncio.get_running_loop(), {})
        if server not in providers:
            from toolpost.auth.client.token_provider import TokenProvider  # noqa: PLC0415 - each knows the other

            self.settings.make_url_policy(server).check_scheme(server, "the URL of the server")
            providers[server] = TokenProvider(server, self)
        return providers[server]

    def pin(self, issuer: str) -> None:
        """Bind the credentials to an issuer, or check that they are bound to it (AUTH-29, AUTH-32)."""
        if not self._is_pinned:
            return
        if self.issuer is None:
            self.issuer = issuer
        elif self.issuer != issuer:
            raise AuthError(
                f"the credentials are for {redact_url(self.issuer)}, "
                f"but the server names {redact_url(issuer)}",
                hint="if the server has moved to another authorization server, register the client there",
            )

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
