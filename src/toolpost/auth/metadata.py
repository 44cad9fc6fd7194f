"""What servers publish about themselves: protected resources (RFC 9728), authorization servers (RFC 8414).

Owns the two documents, read and checked, and where they are found. Members that a client does not need are
not read. Asks nobody.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec

from toolpost.auth.guard import normalize_origin, parse_http_url, redact_url
from toolpost.errors import AuthError

__all__ = [
    "AuthorizationServerMetadata",
    "ProtectedResourceMetadata",
    "build_legacy_metadata",
    "covers",
    "list_resource_metadata_urls",
    "list_server_metadata_urls",
    "parse_resource_metadata",
    "parse_server_metadata",
]

RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
OAUTH_METADATA_PATH: Final = "/.well-known/oauth-authorization-server"
OIDC_METADATA_PATH: Final = "/.well-known/openid-configuration"

MAX_ISSUERS: Final = 16
"""How many authorization servers of a resource are looked at."""


class ProtectedResourceMetadata(msgspec.Struct, frozen=True):
    """A protected resource: an MCP server, as it describes itself.

    Attributes:
        resource: its identifier, exactly as published.
        authorization_servers: the issuers of its tokens; at least one.
        scopes_supported: the scopes that a client should have at first; None if it does not say.
    """

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None


class AuthorizationServerMetadata(msgspec.Struct, frozen=True):
    """An authorization server, as it describes itself. What it does not say is empty or None."""

    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_signing_alg_values_supported: tuple[str, ...] | None = None
    grant_types_supported: tuple[str, ...] | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    legacy: bool = False
    """Whether it has published nothing: its endpoints are where the second revision says."""


def parse_resource_metadata(
    document: Mapping[str, Any], place: str, server: str
) -> ProtectedResourceMetadata:
    """The description of an MCP server.

    Args:
        document: what was found.
        place: where.
        server: the address of the MCP server.

    Raises:
        AuthError: it cannot be read, describes another server, or names no authorization server.
    """
    try:
        read = msgspec.convert(document, ProtectedResourceMetadata)
    except msgspec.ValidationError as error:
        raise AuthError(f"the resource metadata at {redact_url(place)} cannot be read: {error}") from None
    parse_http_url(read.resource, f"the resource in the metadata at {redact_url(place)}")
    if not covers(read.resource, server):
        raise AuthError(
            f"the resource metadata at {redact_url(place)} is about {redact_url(read.resource)}, "
            f"and not about {redact_url(server)}",
            hint=f"connect to {redact_url(read.resource)}, or set public_url= on the server: a token for one "
            "server must not be shown to another",
        )
    if not read.authorization_servers:
        raise AuthError(f"the resource metadata at {redact_url(place)} names no authorization server")
    return msgspec.structs.replace(read, authorization_servers=read.authorization_servers[:MAX_ISSUERS])


def parse_server_metadata(
    document: Mapping[str, Any], place: str, issuer: str
) -> AuthorizationServerMetadata:
    """The description of an authorization server.

    Args:
        document: what was found.
        place: where.
        issuer: the identifier that the place was built from.

    Raises:
        AuthError: it cannot be read, or is of another issuer (AUTH-17).
    """
    try:
        read = msgspec.convert({**document, "legacy": False}, AuthorizationServerMetadata)
    except msgspec.ValidationError as error:
        raise AuthError(f"the metadata at {redact_url(place)} cannot be read: {error}") from None
    if read.issuer != issuer:
        raise AuthError(
            f"the metadata at {redact_url(place)} is of {redact_url(read.issuer)}, "
            f"and not of {redact_url(issuer)}",
            hint="one authorization server must not speak for another",
        )
    return read


def build_legacy_metadata(origin: str) -> AuthorizationServerMetadata:
    """The authorization server of an MCP server that publishes nothing, as the second revision has it."""
    return AuthorizationServerMetadata(
        issuer=origin,
        authorization_endpoint=f"{origin}/authorize",
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
        code_challenge_methods_supported=("S256",),
        legacy=True,
    )


def list_resource_metadata_urls(server: str) -> list[str]:
    """Where the description of an MCP server may be: with its path, then at the root (AUTH-6)."""
    parts = urlsplit(server)
    path = parts.path.rstrip("/")
    with_path = (
        [_replace_path(parts, RESOURCE_METADATA_PATH + path, parts.query)] if path or parts.query else []
    )
    return [*with_path, _replace_path(parts, RESOURCE_METADATA_PATH)]


def list_server_metadata_urls(issuer: str) -> list[str]:
    """Where the description of an authorization server may be, in this order (AUTH-15, AUTH-16)."""
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    if not path:
        return [_replace_path(parts, OAUTH_METADATA_PATH), _replace_path(parts, OIDC_METADATA_PATH)]
    return [
        _replace_path(parts, OAUTH_METADATA_PATH + path),
        _replace_path(parts, OIDC_METADATA_PATH + path),
        _replace_path(parts, path + OIDC_METADATA_PATH),
    ]


def _replace_path(parts: SplitResult, path: str, query: str = "") -> str:
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def covers(identifier: str, server: str) -> bool:
    """Whether the identifier of a resource stands for a server: its origin, and its path or one above it.

    Upper case in scheme and host does not matter (AUTH-42), nor does a slash at the end.
    """
    try:
        own, other = (
            parse_http_url(identifier, "the resource"),
            parse_http_url(server, "the URL of the server"),
        )
    except AuthError:
        return False
    if "#" in identifier or normalize_origin(identifier) != normalize_origin(server):
        return False
    if own.query and own.query != other.query:
        return False
    path = own.path.rstrip("/")
    return not path or other.path.rstrip("/") == path or other.path.startswith(f"{path}/")
