"""Grants without a person: a program with credentials of its own, or with an identity from its platform.

Owns `ClientCredentials` (secret or private key) and `WorkloadIdentity` (a JWT of the platform). Both are
registered beforehand, and neither opens a browser.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, ClassVar, Final, TypeAlias

from toolpost.auth.arguments import call_user_function, check_text, check_texts, normalize_scopes
from toolpost.auth.client.grant import DpopMode, Grant, GrantSettings, TokenRequest
from toolpost.auth.client.signing import PrivateKey, load_key
from toolpost.auth.client.storage import Storage
from toolpost.auth.client.token_endpoint import ClientIdentity, Registration, Tokens
from toolpost.errors import AuthError

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"

SecretSource: TypeAlias = "str | Callable[[], str | Awaitable[str]]"
"""A text, or a function that gives it, sync or async; for what lives shorter than the program."""


def fingerprint_secret(secret: SecretSource, storage: Storage | None) -> str:
    """Return what tells the owner of a secret from others that share a storage; it reveals nothing."""
    if isinstance(secret, str):
        return sha256(secret.encode()).hexdigest()[:16]
    if storage is not None:
        raise ValueError(
            "storage: a function may speak for somebody else the next time; give the text, or no storage"
        )
    return ""


def check_secret(what: str, secret: object) -> None:
    """Check that an argument is a string, or a function that may give one."""
    if not callable(secret):
        check_text(what, secret)


async def resolve_secret(secret: SecretSource, what: str) -> str:
    """Return the current value of a secret."""
    if isinstance(secret, str):
        return secret
    text = await call_user_function(secret)
    if not isinstance(text, str) or not text:
        raise AuthError(f"the function that gives {what} gave none")
    return text


class ClientCredentials(Grant):
    """A program that acts for itself, with credentials that the authorization server gave it beforehand.

    Args:
        client_id: what the authorization server calls it.
        client_secret: its secret; or
        private_key: its private key, as PEM or as a JWK. Better than a secret: it is never sent.
        algorithm: what the key signs with.
        key_id: the `kid` of the key, if the authorization server has several.
        issuer: the authorization server. Only that one gets to see the credentials; without it that is the
            first one that a server names.
        scopes: what to ask for, besides what the server wants.
        storage: where tokens are kept; by default in memory.
        dpop: whether tokens are bound to a key: "auto" where the server asks for it, True, or False.
        http: what carries requests to authorization servers; as for a client.
        allow_private: let a server name addresses in networks that it is not in itself.
        allow_http: let tokens be sent without encryption to other machines.

    Raises:
        ValueError: there is neither a secret nor a key, or both.
        AuthError: this is no private key for the algorithm, or `toolpost[auth]` is not installed.

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
        issuer: str | None = None,
        scopes: "str | Iterable[str] | None" = None,
        storage: Storage | None = None,
        dpop: DpopMode = "auto",
        http: object = None,
        allow_private: bool = False,
        allow_http: bool = False,
    ) -> None:
        if (client_secret is None) == (private_key is None):
            raise ValueError("give client_secret= or private_key=, one of them")
        check_text("client_id", client_id)
        check_texts(client_secret=client_secret)
        self._client_id = client_id
        self._client_secret = client_secret
        self._key: PrivateKey | None = (
            None if private_key is None else load_key(private_key, algorithm, key_id)
        )
        super().__init__(
            GrantSettings(normalize_scopes("scopes", scopes), dpop, http, allow_private, allow_http),
            storage=storage,
            who=client_id,
            issuer=issuer,
            pinned=True,
        )

    async def obtain(self, visit: TokenRequest) -> Tokens:
        """Ask for a token with the credentials."""
        return await self._request_tokens(visit, {"grant_type": "client_credentials"})

    async def identity(self, visit: TokenRequest) -> ClientIdentity:
        """Return the credentials, for the one authorization server that they are for."""
        who = Registration(visit.server.issuer.issuer, self._client_id, self._client_secret)
        return ClientIdentity(who, self._key)


class WorkloadIdentity(Grant):
    """A program that shows who it is by a JWT that the platform gave it: a cluster, a cloud, a CI.

    Args:
        assertion: the JWT, or a function that gives it. It is shown once to the authorization server that the
            MCP server names, so let it be short-lived and for that one.
        client_id: what the authorization server calls the program, if it wants to know.
        issuer: the authorization server, the only one that gets to see the JWT; without it that is the first
            one that a server names.
        scopes: what to ask for, besides what the server wants.
        storage: where tokens are kept; by default in memory.
        dpop: whether tokens are bound to a key: "auto" where the server asks for it, True, or False.
        http: what carries requests to authorization servers; as for a client.
        allow_private: let a server name addresses in networks that it is not in itself.
        allow_http: let tokens be sent without encryption to other machines.

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
        issuer: str | None = None,
        scopes: "str | Iterable[str] | None" = None,
        storage: Storage | None = None,
        dpop: DpopMode = "auto",
        http: object = None,
        allow_private: bool = False,
        allow_http: bool = False,
    ) -> None:
        check_texts(client_id=client_id)
        check_secret("assertion", assertion)
        self._assertion = assertion
        self._client_id = client_id
        super().__init__(
            GrantSettings(normalize_scopes("scopes", scopes), dpop, http, allow_private, allow_http),
            storage=storage,
            who=f"{client_id or 'workload'} {fingerprint_secret(assertion, storage)}",
            issuer=issuer,
            pinned=True,
        )

    async def obtain(self, visit: TokenRequest) -> Tokens:
        """Exchange the JWT for a token. A refusal is final: the same JWT is not shown again."""
        assertion = await resolve_secret(self._assertion, "the assertion")
        return await self._request_tokens(visit, {"grant_type": JWT_BEARER, "assertion": assertion})

    async def identity(self, visit: TokenRequest) -> ClientIdentity | None:
        """Return the client, if it is named besides the JWT."""
        if self._client_id is None:
            return None
        return ClientIdentity(Registration(visit.server.issuer.issuer, self._client_id, method="none"))
