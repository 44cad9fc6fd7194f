"""From a refusal to an authorization server: resource metadata, then the metadata of the server it names.

Owns the order of places (AUTH-6, AUTH-15, AUTH-16) and the fallback for servers of the second revision, which
are their own authorization server. Which of several to use is decided here too: the first.

PART metadata: What servers publish about themselves: protected resources (RFC 9728), authorization servers
(RFC 8414).

Owns the two documents, read and checked, and where they are found. Members that a client does not need are
not read. Asks nobody.

PART challenge: What a server says in `WWW-Authenticate`: schemes, each with its parameters (RFC 9110, section
11.6.1).

Pure. Owns the grammar, read in one pass. What a challenge leads to is not known here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from toolpost.auth.arguments import split_scopes
from toolpost.auth.fetch import AuthHttpClient, AuthHttpResponse
from toolpost.auth.urls import (
    list_resource_metadata_urls,
    list_server_metadata_urls,
    normalize_origin,
    parse_http_url,
    redact_url,
)
from toolpost.errors import AuthError

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
    """The description of an MCP server."""
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
    """The description of an authorization server."""
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


# --------------------------------------------------------------------- discovery


class DiscoveredServer(NamedTuple):
    """What was found out about an MCP server.

    Args:
        resource: what it is called, exactly as published, and the scopes that it wants.
        issuer: who issues its tokens.
        published: whether it has said so itself; otherwise it is of the second revision.
        searched_urls: where its metadata was looked for in vain.
    """

    resource: ProtectedResourceMetadata
    issuer: AuthorizationServerMetadata
    published: bool = True
    searched_urls: tuple[str, ...] = ()

    def annotate_error(self, error: AuthError) -> AuthError:
        """An error of an authorization server that may be none: nothing but a guess has led there."""
        if self.issuer.legacy and self.searched_urls:
            places = ", ".join(redact_url(place) for place in self.searched_urls)
            error.message = (
                f"no protected-resource metadata was found at {places}, so that the server was taken for "
                f"its own authorization server; but {error.message}"
            )
            error.hint = "whoever runs the server has to publish its metadata there"
        return error


async def discover(
    fetch: AuthHttpClient, server: str, metadata_url: str | None, prefer: str | None = None
) -> DiscoveredServer:
    """What the tokens for an MCP server are called, and who issues them."""
    places = list_resource_metadata_urls(server)
    if metadata_url is not None:
        places = [metadata_url, *(place for place in places if place != metadata_url)]
    found = await _fetch_resource_metadata(fetch, server, places)
    if found is None:
        return (await _assume_legacy_server(fetch, server))._replace(searched_urls=tuple(places))
    issuers = found.authorization_servers
    issuer = prefer if prefer is not None and prefer in issuers else issuers[0]
    return DiscoveredServer(found, await fetch_server_metadata(fetch, issuer))


async def fetch_server_metadata(
    fetch: AuthHttpClient, issuer: str, *, legacy: bool = False
) -> AuthorizationServerMetadata:
    """What an authorization server says about itself."""
    parts = fetch.url_policy.check_scheme(issuer, "the issuer")
    if parts.query or parts.fragment:
        raise AuthError(f"an issuer has no query and no fragment: {redact_url(issuer)}")
    places = list_server_metadata_urls(issuer)
    for place in places[:1] if legacy else places:
        document = _extract_document(
            await fetch.get(place, "the metadata of the authorization server"), place
        )
        if document is not None:
            return parse_server_metadata(document, place, issuer)
    if legacy:
        return build_legacy_metadata(issuer)
    raise AuthError(
        f"the authorization server {redact_url(issuer)} publishes no metadata",
        hint=f"looked at {', '.join(redact_url(place) for place in places)}",
    )


async def _fetch_resource_metadata(
    fetch: AuthHttpClient, server: str, places: Sequence[str]
) -> ProtectedResourceMetadata | None:
    for place in places:
        document = _extract_document(await fetch.get(place, "the resource metadata"), place)
        if document is not None:
            return parse_resource_metadata(document, place, server)
    return None


async def _assume_legacy_server(fetch: AuthHttpClient, server: str) -> DiscoveredServer:
    """A server of the second revision is its own authorization server, at its root."""
    origin = normalize_origin(server)
    issuer = await fetch_server_metadata(fetch, origin, legacy=True)
    return DiscoveredServer(
        ProtectedResourceMetadata(resource=server.partition("#")[0].partition("?")[0]),
        issuer,
        published=False,
    )


def _extract_document(answer: AuthHttpResponse, place: str) -> dict[str, object] | None:
    """The document that is there; None if there is none."""
    if answer.is_transient:
        raise AuthError(f"{redact_url(place)} answers with {answer.status}", retry_safe=True)
    if not answer.ok:
        return None
    document = answer.document
    if document is None:
        # Sites that show a page for every path say 200 to anything.
        kind = answer.headers.get("content-type", "")
        if "json" in kind:
            raise AuthError(f"{redact_url(place)} is no JSON object")
    return document


# --------------------------------------------------------------------- challenge

MAX_CHALLENGE_LENGTH: Final = 16 * 1024
"""How many characters are looked at: more than common servers send as all headers together."""

_CHALLENGE_PART: Final = re.compile(
    r"""[ \t,]*(?P<name>[!#$%&'*+\-.^_`|~0-9A-Za-z]+)"""
    r"""(?:[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[!#$%&'*+\-.^_`|~0-9A-Za-z:/?@=]+))"""
    r"""|(?=[ \t,]|$))"""
)
_ESCAPED_CHARACTER: Final = re.compile(r"\\(.)")


class Challenge(NamedTuple):
    """One scheme, and what it says."""

    scheme: str
    params: Mapping[str, str]

    @property
    def error(self) -> str | None:
        """What is wrong with the credentials, as a code."""
        return self.params.get("error")

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs (AUTH-10)."""
        return split_scopes(self.params.get("scope", ""))


def parse_challenges(text: str) -> list[Challenge]:
    """The challenges of a header; what cannot be read ends the list."""
    return list(_iterate_challenges(text[:MAX_CHALLENGE_LENGTH]))


def _iterate_challenges(text: str) -> Iterator[Challenge]:
    scheme, params, at = "", dict[str, str](), 0
    while (part := _CHALLENGE_PART.match(text, at)) is not None:
        at, name = part.end(), part["name"].lower()
        value = part["plain"] if part["quoted"] is None else _ESCAPED_CHARACTER.sub(r"\1", part["quoted"])
        if value is None:
            if scheme:
                yield Challenge(scheme, params)
            scheme, params = name, {}
        elif scheme:
            params.setdefault(name, value)
    if scheme:
        yield Challenge(scheme, params)
