"""From a refusal to an authorization server: challenges, resource metadata, metadata of the server it names.

Owns the grammar of `WWW-Authenticate` (RFC 9110 §11.6.1), the order of places (AUTH-6, AUTH-15, AUTH-16), the
checks of both documents (RFC 9728, RFC 8414), and the fallback for servers of the second revision, which are
their own authorization server.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from toolpost.auth.arguments import split_scopes
from toolpost.auth.fetch import AuthHttpClient
from toolpost.auth.urls import (
    list_resource_metadata_urls,
    list_server_metadata_urls,
    normalize_origin,
    parse_http_url,
    redact_url,
)
from toolpost.errors import AuthError

MAX_ISSUERS: Final = 16  # authorization servers of a resource that are looked at


class ProtectedResourceMetadata(msgspec.Struct, frozen=True):
    """A protected resource: an MCP server, as it describes itself."""

    resource: str  # its identifier, exactly as published
    authorization_servers: tuple[str, ...] = ()  # the issuers of its tokens; at least one
    scopes_supported: tuple[str, ...] | None = None  # those that a client should have at first


class AuthorizationServerMetadata(msgspec.Struct, frozen=True):
    """An authorization server, as it describes itself. What it does not say is empty or None."""

    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    legacy: bool = False  # it has published nothing: its endpoints are where the second revision says


def parse_resource_metadata(document: dict[str, Any], place: str, server: str) -> ProtectedResourceMetadata:
    """Return the metadata of an MCP server, which must be about this server."""
    where = redact_url(place)
    try:
        read = msgspec.convert(document, ProtectedResourceMetadata)
    except msgspec.ValidationError as error:
        raise AuthError(f"the resource metadata at {where} cannot be read: {error}") from None
    parse_http_url(read.resource, f"the resource in the metadata at {where}")
    if not covers(read.resource, server):
        named = redact_url(read.resource)
        raise AuthError(
            f"the resource metadata at {where} is about {named}, and not about {redact_url(server)}",
            hint=f"connect to {named}, or set public_url= on the server: a token for one server must not be "
            "shown to another",
        )
    if not read.authorization_servers:
        raise AuthError(f"the resource metadata at {where} names no authorization server")
    return msgspec.structs.replace(read, authorization_servers=read.authorization_servers[:MAX_ISSUERS])


def parse_server_metadata(document: dict[str, Any], place: str, issuer: str) -> AuthorizationServerMetadata:
    """Return the metadata of an authorization server, which must be its own (AUTH-17)."""
    try:
        read = msgspec.convert({**document, "legacy": False}, AuthorizationServerMetadata)
    except msgspec.ValidationError as error:
        raise AuthError(f"the metadata at {redact_url(place)} cannot be read: {error}") from None
    if read.issuer != issuer:
        problem = f"is of {redact_url(read.issuer)}, and not of {redact_url(issuer)}"
        hint = "one authorization server must not speak for another"
        raise AuthError(f"the metadata at {redact_url(place)} {problem}", hint=hint)
    return read


def covers(identifier: str, server: str) -> bool:
    """Whether the identifier of a resource stands for a server: its origin, and its path or one above it.

    Upper case in scheme and host does not matter (AUTH-42), nor does a slash at the end.
    """
    try:
        own, other = parse_http_url(identifier, "the resource"), parse_http_url(server, "the server")
    except AuthError:
        return False
    if "#" in identifier or normalize_origin(identifier) != normalize_origin(server):
        return False
    if own.query and own.query != other.query:
        return False
    path = own.path.rstrip("/")
    return not path or other.path.rstrip("/") == path or other.path.startswith(f"{path}/")


# --------------------------------------------------------------------- discovery


class ServerRecord(msgspec.Struct, frozen=True):
    """A server as the last run knew it: the name of its resource, and the issuer of its tokens."""

    resource: str
    issuer: str
    published: bool = True


class DiscoveredServer(NamedTuple):
    """An MCP server and the authorization server that issues its tokens.

    `published` is False for a server of the second revision, whose metadata was not at `searched_urls`.
    """

    resource: ProtectedResourceMetadata
    issuer: AuthorizationServerMetadata
    published: bool = True
    searched_urls: tuple[str, ...] = ()

    @property
    def record(self) -> ServerRecord:
        """What is stored of it."""
        return ServerRecord(self.resource.resource, self.issuer.issuer, self.published)

    def annotate_error(self, error: AuthError) -> AuthError:
        """Add to an error that the authorization server was only guessed."""
        if self.issuer.legacy and self.searched_urls:
            places = ", ".join(map(redact_url, self.searched_urls))
            error.message = (
                f"no protected-resource metadata was found at {places}, so that the server was taken for "
                f"its own authorization server; but {error.message}"
            )
            error.hint = "whoever runs the server has to publish its metadata there"
        return error


async def discover(
    fetch: AuthHttpClient, server: str, metadata_url: str | None, prefer: str | None = None
) -> DiscoveredServer:
    """Find the authorization server of an MCP server; `prefer` names one to choose among several."""
    places = list_resource_metadata_urls(server)
    if metadata_url is not None:
        places = [metadata_url, *(place for place in places if place != metadata_url)]
    for place in places:
        document = await _fetch_document(fetch, place, "the resource metadata")
        if document is not None:
            found = parse_resource_metadata(document, place, server)
            issuers = found.authorization_servers
            issuer = prefer if prefer is not None and prefer in issuers else issuers[0]
            return DiscoveredServer(found, await fetch_server_metadata(fetch, issuer))
    # A server of the second revision is its own authorization server, at its root.
    metadata = await fetch_server_metadata(fetch, normalize_origin(server), legacy=True)
    resource = ProtectedResourceMetadata(resource=server.partition("#")[0].partition("?")[0])
    return DiscoveredServer(resource, metadata, published=False, searched_urls=tuple(places))


async def rediscover(fetch: AuthHttpClient, known: ServerRecord) -> DiscoveredServer:
    """Return a server that was discovered before, with the current metadata of its authorization server."""
    metadata = await fetch_server_metadata(fetch, known.issuer, legacy=not known.published)
    return DiscoveredServer(ProtectedResourceMetadata(known.resource), metadata, known.published)


async def fetch_server_metadata(
    fetch: AuthHttpClient, issuer: str, *, legacy: bool = False
) -> AuthorizationServerMetadata:
    """Return the metadata of an authorization server; a `legacy` one may publish none."""
    parts = fetch.url_policy.check_scheme(issuer, "the issuer")
    if parts.query or parts.fragment:
        raise AuthError(f"an issuer has no query and no fragment: {redact_url(issuer)}")
    places = list_server_metadata_urls(issuer)
    for place in places[:1] if legacy else places:
        document = await _fetch_document(fetch, place, "the metadata of the authorization server")
        if document is not None:
            return parse_server_metadata(document, place, issuer)
    if legacy:
        return AuthorizationServerMetadata(
            issuer=issuer,
            authorization_endpoint=f"{issuer}/authorize",
            token_endpoint=f"{issuer}/token",
            registration_endpoint=f"{issuer}/register",
            code_challenge_methods_supported=("S256",),
            legacy=True,
        )
    raise AuthError(
        f"the authorization server {redact_url(issuer)} publishes no metadata",
        hint=f"looked at {', '.join(map(redact_url, places))}",
    )


async def _fetch_document(fetch: AuthHttpClient, place: str, what: str) -> dict[str, Any] | None:
    """Return the document at a place; None if there is none."""
    answer = await fetch.get(place, what)
    if answer.is_transient:
        raise AuthError(f"{redact_url(place)} answers with {answer.status}", retry_safe=True)
    if not answer.ok:
        return None
    # Sites that show a page for every path say 200 to anything.
    if answer.document is None and "json" in answer.headers.get("content-type", ""):
        raise AuthError(f"{redact_url(place)} is no JSON object")
    return answer.document


# --------------------------------------------------------------------- challenges

MAX_CHALLENGE_LENGTH: Final = 16 * 1024  # characters that are read; common servers send less in all headers
_CHALLENGE_PART: Final = re.compile(
    r"""[ \t,]*(?P<name>[!#$%&'*+\-.^_`|~0-9A-Za-z]+)"""
    r"""(?:[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[!#$%&'*+\-.^_`|~0-9A-Za-z:/?@=]+))"""
    r"""|(?=[ \t,]|$))"""
)
_ESCAPED_CHARACTER: Final = re.compile(r"\\(.)")


class Challenge(NamedTuple):
    """One scheme, and its parameters, with names in lower case."""

    scheme: str
    params: dict[str, str]

    @property
    def error(self) -> str | None:
        """The code of what is wrong with the credentials."""
        return self.params.get("error")

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs (AUTH-10)."""
        return split_scopes(self.params.get("scope", ""))


def parse_challenges(text: str) -> list[Challenge]:
    """Return the challenges of a header; what cannot be read ends the list."""
    text, found, at = text[:MAX_CHALLENGE_LENGTH], list[Challenge](), 0
    while (part := _CHALLENGE_PART.match(text, at)) is not None:
        at, name = part.end(), part["name"].lower()
        value = part["plain"] if part["quoted"] is None else _ESCAPED_CHARACTER.sub(r"\1", part["quoted"])
        if value is None:
            found.append(Challenge(name, {}))
        elif found:
            found[-1].params.setdefault(name, value)
    return found
