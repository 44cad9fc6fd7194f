"""The registration of a client at an authorization server: by hand, by a metadata document, or dynamic.

Owns the order of these ways (AUTH-20) and the request of a dynamic registration. Stores nothing.
"""

from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from toolpost.auth.client.discovery import AuthorizationServerMetadata
from toolpost.auth.client.token_endpoint import Registration, choose_auth_method, is_token, make_denial_error
from toolpost.auth.fetch import AuthHttpClient
from toolpost.auth.urls import is_loopback_host, parse_http_url, redact_url
from toolpost.errors import AuthError, AuthorizationDenied, AuthorizationRequired

_ENDPOINT_NAME: Final = "the registration endpoint"


class ClientSettings(NamedTuple):
    """Settings of a client: its name, a registration made by hand, a metadata document (CIMD)."""

    name: str = "toolpost"
    client_id: str | None = None
    client_secret: str | None = None
    issuer: str | None = None
    metadata_url: str | None = None

    def __repr__(self) -> str:
        return f"ClientSettings({self.name!r})"  # it may hold a secret

    def check(self) -> None:
        """Check that the settings go together."""
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("client_secret= goes with client_id=")
        if self.issuer is not None and self.client_id is None:
            raise ValueError("issuer= says where client_id= is from; without one it says nothing")
        if self.metadata_url is not None:
            try:
                parts = parse_http_url(self.metadata_url, "client_metadata_url")
            except AuthError as error:
                raise ValueError(error.message) from None
            if parts.scheme != "https" or parts.path in {"", "/"} or parts.fragment:
                raise ValueError("client_metadata_url is an https URL with a path")


def find_registration(client: ClientSettings, issuer: AuthorizationServerMetadata) -> Registration | None:
    """Return the registration that needs no request; None if the client has to be registered."""
    if client.client_id is not None:
        return Registration(issuer.issuer, client.client_id, client.client_secret)
    if client.metadata_url is not None and issuer.client_id_metadata_document_supported:
        return Registration(issuer.issuer, client.metadata_url, method="none")
    return None


class _RegistrationResponse(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


async def register_client(
    fetch: AuthHttpClient,
    client: ClientSettings,
    issuer: AuthorizationServerMetadata,
    redirect_uri: str,
    scopes: tuple[str, ...],
    *,
    dpop: bool = False,
) -> Registration:
    """Register the client at an authorization server (RFC 7591)."""
    url = issuer.registration_endpoint
    if url is None:
        raise AuthorizationRequired(
            f"the authorization server {redact_url(issuer.issuer)} "
            "does not know this client, and registers none",
            hint="register it there by hand, and give client_id= (and client_secret=), and issuer=",
        )
    offered = issuer.token_endpoint_auth_methods_supported
    # Without a secret if that is possible, for a program cannot keep one.
    method = "none" if offered is None or "none" in offered else choose_auth_method(offered, secret=True)
    document: dict[str, Any] = {
        "client_name": client.name,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native" if is_loopback_host(urlsplit(redirect_uri).hostname) else "web",
    }
    if scopes:
        document["scope"] = " ".join(scopes)
    if dpop:
        document["dpop_bound_access_tokens"] = True
    answer = await fetch.post_json(url, _ENDPOINT_NAME, document)
    if not answer.ok:
        raise _make_registration_error(make_denial_error(answer, _ENDPOINT_NAME), redirect_uri)
    try:
        said = msgspec.convert(answer.document, _RegistrationResponse)
    except msgspec.ValidationError as error:  # which tells of types and places, not of values
        raise AuthError(
            f"{_ENDPOINT_NAME} answered with something that is no registration: {error}"
        ) from None
    if not is_token(said.client_id) or (said.client_secret and not is_token(said.client_secret)):
        raise AuthError(f"{_ENDPOINT_NAME} gave the client a name or a secret that no request can carry")
    secret = said.client_secret or None
    return Registration(
        issuer=issuer.issuer,
        client_id=said.client_id,
        client_secret=secret,
        method=said.token_endpoint_auth_method or (method if secret is not None else "none"),
        redirect_uri=redirect_uri,
        expires_at=said.client_secret_expires_at or None,
        dynamic=True,
    )


def _make_registration_error(error: AuthError, redirect_uri: str) -> AuthError:
    """Return the error for a registration that was refused, with what can be done (AUTH-27, AUTH-28)."""
    if not isinstance(error, AuthorizationDenied):
        return error  # it may be granted later
    if error.code == "invalid_redirect_uri":
        hint = f"it does not like {redact_url(redirect_uri)}: give another redirect_uri="
    else:
        hint = "register the client there by hand, and give client_id= and issuer="
    return AuthError(f"the client could not be registered: {error.message}", hint=hint)
