"""Grants without a login: the program has credentials of its own, or a JWT of its platform or user.

`ClientCredentials` (secret or private key), `WorkloadIdentity` (a JWT of the platform) and
`EnterpriseManaged` (an ID token, which a company exchanges). The client is registered beforehand.
"""

from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, ClassVar, Final, TypeAlias, Unpack

import msgspec

from toolpost.auth.arguments import check_http_url, check_text, check_texts
from toolpost.auth.client.discovery import AuthorizationServerMetadata, fetch_server_metadata
from toolpost.auth.client.grant import Grant, GrantOptions, TokenRequest
from toolpost.auth.client.storage import Storage
from toolpost.auth.client.token_endpoint import ClientIdentity, Registration, Tokens, request_token
from toolpost.auth.fetch import AuthHttpClient, convert_document, use_backend
from toolpost.auth.jose import load_key
from toolpost.auth.urls import UrlPolicy
from toolpost.errors import AuthError
from toolpost.threads import ThreadPool

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a grant type
ID_TOKEN_TYPE: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - a kind of token
ID_JAG_TYPE: Final = "urn:ietf:params:oauth:token-type:id-jag"

SecretSource: TypeAlias = "str | Callable[[], str | Awaitable[str]]"
"""A string, or a function that returns it, sync or async: it may expire while the program runs."""


def _fingerprint_secret(secret: SecretSource, storage: Storage | None) -> str:
    """Return a hash that separates the tokens of different secrets in a shared storage."""
    if isinstance(secret, str):
        return sha256(secret.encode()).hexdigest()[:16]
    if storage is not None:
        raise ValueError("storage= requires a string: a function may return a different identity each time")
    return ""


def _check_secret(label: str, secret: object) -> None:
    if not callable(secret):
        check_text(label, secret)


async def _resolve_secret(secret: SecretSource, label: str) -> str:
    if isinstance(secret, str):
        return secret
    text = await ThreadPool(1).call_function(secret)
    if not isinstance(text, str) or not text:
        raise AuthError(f"the function for {label} must return a string")
    return text


class ClientCredentials(Grant):
    """The client credentials grant, for a program that acts on its own behalf.

    Args:
        client_id: its id at the authorization server.
        client_secret: its secret. Pass this or `private_key`.
        private_key: its private key, as PEM or as a JWK. Safer than a secret, because it is never sent.
        algorithm: the algorithm of the key.
        key_id: the `kid` of the key, if the authorization server has several.
        options: `issuer`, `scopes`, `storage` (by default in memory), `dpop`, `http`, `allow_private` and
            `allow_http`, as for `OAuth`.

    Raises:
        ValueError: there is neither a secret nor a key, or both.
        AuthError: the private key is not valid for the algorithm, or `toolpost[auth]` is not installed.

    Examples:
        >>> job = ClientCredentials("job", "secret", issuer="https://login.example.com")
        >>> client = Client("https://example.com/mcp", auth=job)
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        private_key: "str | bytes | Mapping[str, Any] | None" = None,
        algorithm: str = "ES256",
        key_id: str | None = None,
        **options: Unpack[GrantOptions],
    ) -> None:
        if (client_secret is None) == (private_key is None):
            raise ValueError("pass either client_secret= or private_key=")
        check_text("client_id", client_id)
        check_texts(client_secret=client_secret)
        self._client = client_id, client_secret
        self._key = None if private_key is None else load_key(private_key, algorithm, key_id)
        super().__init__(client_id, **options)

    async def obtain(self, request: TokenRequest) -> Tokens:
        """Request a token with the credentials."""
        return await self._send_form(request, {"grant_type": "client_credentials"})

    async def identity(self, request: TokenRequest) -> ClientIdentity:
        """Return the credentials for the authorization server."""
        return ClientIdentity(Registration(request.server.issuer.issuer, *self._client), self._key)


class WorkloadIdentity(Grant):
    """A program that proves its identity with a JWT from its platform: a cluster, a cloud, a CI system.

    Args:
        assertion: the JWT, or a function that returns it. It is sent once to the authorization server that
            the MCP server names, so it should be short-lived and for that audience only.
        client_id: the id of the program at the authorization server, if that requires one.
        options: as for `ClientCredentials`. The JWT is sent to no other issuer.

    Examples:
        >>> pod = WorkloadIdentity(lambda: "the JWT of this pod", issuer="https://login.example.com")
        >>> client = Client("https://example.com/mcp", auth=pod)
    """

    steps_up: ClassVar[bool] = False

    def __init__(
        self,
        assertion: SecretSource,
        *,
        client_id: str | None = None,
        **options: Unpack[GrantOptions],
    ) -> None:
        check_texts(client_id=client_id)
        _check_secret("assertion", assertion)
        self._assertion = assertion
        self._client_id = client_id
        client = f"{client_id or 'workload'} {_fingerprint_secret(assertion, options.get('storage'))}"
        super().__init__(client, **options)

    async def obtain(self, request: TokenRequest) -> Tokens:
        """Exchange the JWT for a token. A refusal is final: the same JWT is not sent again."""
        assertion = await _resolve_secret(self._assertion, "the assertion")
        return await self._send_form(request, {"grant_type": JWT_BEARER, "assertion": assertion})

    async def identity(self, request: TokenRequest) -> ClientIdentity | None:
        """Return the client, if it has an id besides the JWT."""
        if self._client_id is None:
            return None
        return ClientIdentity(Registration(request.server.issuer.issuer, self._client_id, method="none"))


class EnterpriseManaged(Grant):
    """An employee whose company authorizes them, without a login page.

    Args:
        id_token: the ID token of the employee, or a function that returns it. It is sent to the company's
            identity provider only. Your program does the login there.
        idp_client_id: the id of this client at the identity provider.
        idp_client_secret: its secret there, if it has one.
        idp_issuer: the identity provider; its metadata has the token endpoint.
        idp_token_endpoint: that endpoint itself, if it is known.
        client_id: the id of this client at the authorization server of the MCP server.
        client_secret: its secret there.
        options: as for `ClientCredentials`. `issuer` is the authorization server of the MCP server.

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
        **options: Unpack[GrantOptions],
    ) -> None:
        _check_secret("id_token", id_token)
        check_texts(idp_client_id=idp_client_id, client_id=client_id)
        check_texts(client_secret=client_secret, idp_client_secret=idp_client_secret)
        provider = idp_token_endpoint or idp_issuer
        if provider is None:
            raise ValueError("pass idp_issuer= or idp_token_endpoint=")
        check_http_url(provider, "the identity provider")
        self._id_token = id_token
        self._idp_url = provider
        self._idp = idp_issuer, idp_token_endpoint
        self._idp_client = idp_client_id, idp_client_secret
        self._client = client_id, client_secret
        client = f"{client_id} of {idp_client_id} {_fingerprint_secret(id_token, options.get('storage'))}"
        super().__init__(client, **options)

    async def obtain(self, request: TokenRequest) -> Tokens:
        """Get an assertion from the company, and exchange it for a token."""
        assertion = await self._request_assertion(request)
        return await self._send_form(request, {"grant_type": JWT_BEARER, "assertion": assertion})

    async def identity(self, request: TokenRequest) -> ClientIdentity:
        """Return the client's registration at the authorization server of the MCP server."""
        return ClientIdentity(Registration(request.server.issuer.issuer, *self._client))

    async def _request_assertion(self, request: TokenRequest) -> str:
        """Return the company's assertion about the employee, for one authorization server and resource."""
        # The user has named the identity provider, so any network is allowed; http only on this machine.
        policy = UrlPolicy(self._idp_url, allow_private=True, allow_http=self.allow_http)
        async with use_backend(self.http) as backend:
            fetch = AuthHttpClient(backend, policy)
            issuer, endpoint = self._idp
            if endpoint is not None:
                company = AuthorizationServerMetadata(issuer or endpoint, token_endpoint=endpoint)
            else:
                company = await fetch_server_metadata(fetch, self._idp_url)
            form = {
                "grant_type": TOKEN_EXCHANGE,
                "requested_token_type": ID_JAG_TYPE,
                "audience": request.server.issuer.issuer,
                **request.resource_param,
                "subject_token": await _resolve_secret(self._id_token, "the ID token"),
                "subject_token_type": ID_TOKEN_TYPE,
                **request.scope_param,
            }
            client = ClientIdentity(Registration(company.issuer, *self._idp_client))
            document = await request_token(fetch, company, form, client)
        problem = "the identity provider sent an invalid response"
        answer = convert_document(document, _ExchangeResponse, problem)
        if answer.issued_token_type != ID_JAG_TYPE:
            raise AuthError("the identity provider sent a token of the wrong type")
        return answer.access_token


class _ExchangeResponse(msgspec.Struct):
    access_token: str
    issued_token_type: str
