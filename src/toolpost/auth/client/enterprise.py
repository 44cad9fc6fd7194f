"""`EnterpriseManaged`: an employee, and a company that decides what they may use.

Owns the two steps: the company's identity provider exchanges an ID token for an assertion, and the
authorization server of the MCP server takes that for a token. The login at the company is the caller's.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from toolpost.auth.arguments import check_texts, normalize_scopes
from toolpost.auth.client.client_credentials import (
    JWT_BEARER,
    SecretSource,
    check_secret,
    fingerprint_secret,
    resolve_secret,
)
from toolpost.auth.client.discovery import AuthorizationServerMetadata, fetch_server_metadata
from toolpost.auth.client.grant import DpopMode, Grant, GrantSettings, TokenRequest
from toolpost.auth.client.storage import Storage
from toolpost.auth.client.token_endpoint import ClientIdentity, Registration, Tokens, request_token
from toolpost.auth.fetch import AuthHttpClient, use_backend
from toolpost.auth.urls import UrlPolicy, parse_http_url
from toolpost.errors import AuthError

TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a grant type
ID_TOKEN_TYPE: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - a kind of token
ID_JAG_TYPE: Final = "urn:ietf:params:oauth:token-type:id-jag"


class _ExchangeResponse(msgspec.Struct):
    access_token: str
    issued_token_type: str


class EnterpriseManaged(Grant):
    """An employee, let in by their company without a question.

    Args:
        id_token: the ID token of the employee, or a function that gives it. Only the company sees it.
        idp_client_id: what the identity provider of the company calls this client.
        idp_client_secret: its secret there, if it has one.
        idp_issuer: the identity provider; its token endpoint is looked up there.
        idp_token_endpoint: that endpoint itself, if it is known.
        client_id: what the authorization server of the MCP server calls this client.
        client_secret: its secret there.
        issuer: that authorization server; without it that is the first one that a server names.
        scopes: what to ask for, besides what the server wants.
        storage: where tokens are kept; by default in memory.
        dpop: whether tokens are bound to a key: "auto" where the server asks for it, True, or False.
        http: what carries requests to authorization servers; as for a client.
        allow_private: let a server name addresses in networks that it is not in itself.
        allow_http: let tokens be sent without encryption to other machines.

    Raises:
        ValueError: the identity provider is not named.

    Examples:
        >>> employee = EnterpriseManaged(
        ...     "the ID token of one employee",
        ...     idp_issuer="https://id.example.com",
        ...     idp_client_id="notes-app",
        ...     client_id="notes",
        ... )
        >>> client = Client("https://example.com/mcp", auth=employee)
    """

    def __init__(
        self,
        id_token: SecretSource,
        *,
        idp_client_id: str,
        client_id: str,
        client_secret: str | None = None,
        idp_client_secret: str | None = None,
        idp_issuer: str | None = None,
        idp_token_endpoint: str | None = None,
        issuer: str | None = None,
        scopes: "str | Iterable[str] | None" = None,
        storage: Storage | None = None,
        dpop: DpopMode = "auto",
        http: object = None,
        allow_private: bool = False,
        allow_http: bool = False,
    ) -> None:
        check_secret("id_token", id_token)
        check_texts(
            idp_client_id=idp_client_id,
            client_id=client_id,
            client_secret=client_secret,
            idp_client_secret=idp_client_secret,
        )
        provider = idp_token_endpoint or idp_issuer
        if provider is None:
            raise ValueError("give idp_issuer= or idp_token_endpoint=")
        try:
            parse_http_url(provider, "the identity provider")
        except AuthError as error:
            raise ValueError(error.message) from None
        self._id_token = id_token
        self._idp_url = provider
        self._idp = idp_issuer, idp_token_endpoint
        self._idp_client = idp_client_id, idp_client_secret
        self._client = client_id, client_secret
        super().__init__(
            GrantSettings(normalize_scopes("scopes", scopes), dpop, http, allow_private, allow_http),
            storage=storage,
            who=f"{client_id} of {idp_client_id} {fingerprint_secret(id_token, storage)}",
            issuer=issuer,
            pinned=True,
        )

    async def obtain(self, visit: TokenRequest) -> Tokens:
        """Have the company vouch for the employee, and show that to the authorization server."""
        assertion = await self._request_assertion(visit)
        return await self._request_tokens(visit, {"grant_type": JWT_BEARER, "assertion": assertion})

    async def identity(self, visit: TokenRequest) -> ClientIdentity:
        """Return the client at the authorization server of the MCP server."""
        return ClientIdentity(Registration(visit.server.issuer.issuer, *self._client))

    async def _request_assertion(self, visit: TokenRequest) -> str:
        """Return the company's assertion about the employee, for one authorization server and resource."""
        settings = self.settings
        # The user has named the company, so it may be anywhere; in the clear only on this machine.
        guard = UrlPolicy(self._idp_url, allow_private=True, allow_http=settings.allow_http)
        async with use_backend(settings.http) as backend:
            fetch = AuthHttpClient(backend, guard)
            company = await self._find_identity_provider(fetch)
            form = {
                "grant_type": TOKEN_EXCHANGE,
                "requested_token_type": ID_JAG_TYPE,
                "audience": visit.server.issuer.issuer,
                **visit.resource_param,
                "subject_token": await resolve_secret(self._id_token, "the ID token"),
                "subject_token_type": ID_TOKEN_TYPE,
                **visit.scope_param,
            }
            name, secret = self._idp_client
            who = ClientIdentity(Registration(company.issuer, name, secret))
            document = await request_token(fetch, company, form, who)
        try:
            said = msgspec.convert(document, _ExchangeResponse)
        except msgspec.ValidationError:
            raise AuthError("the identity provider answered with something that vouches for nobody") from None
        if said.issued_token_type != ID_JAG_TYPE:
            raise AuthError("the identity provider answered with another kind of token than was asked for")
        return said.access_token

    async def _find_identity_provider(self, fetch: AuthHttpClient) -> AuthorizationServerMetadata:
        issuer, endpoint = self._idp
        if endpoint is not None:
            return AuthorizationServerMetadata(issuer or endpoint, token_endpoint=endpoint)
        assert issuer is not None
        return await fetch_server_metadata(fetch, issuer)
