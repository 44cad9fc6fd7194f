"""Discovery of the authorization server of an MCP server: challenges, and metadata of both servers.

Parses `WWW-Authenticate` (RFC 9110 §11.6.1) and checks both documents (RFC 9728, RFC 8414). A server of the
second revision without metadata is its own authorization server.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from toolpost.auth.fetch import AuthHttpClient, convert_document
from toolpost.auth.urls import (
    list_resource_metadata_urls,
    list_server_metadata_urls,
    normalize_origin,
    parse_http_url,
    redact_url,
)
from toolpost.errors import AuthError
from toolpost.principal import find_scopes

MAX_ISSUERS: Final = 16  # authorization servers of a resource that are considered


class ProtectedResourceMetadata(msgspec.Struct, frozen=True):
    """The metadata of a protected resource, which is an MCP server."""

    resource: str  # its identifier, exactly as published
    authorization_servers: tuple[str, ...] = ()  # the issuers of its tokens; at least one
    scopes_supported: tuple[str, ...] | None = None  # the scopes to request first


class AuthorizationServerMetadata(msgspec.Struct, frozen=True):
    """The metadata of an authorization server."""

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
    legacy: bool = False  # it publishes no metadata: its endpoints are the defaults of the second revision


def parse_resource_metadata(document: dict[str, Any], url: str, server: str) -> ProtectedResourceMetadata:
    """Return the metadata of an MCP server, which must be about this server."""
    where = redact_url(url)
    problem = f"the resource metadata at {where} cannot be read"
    read = convert_document(document, ProtectedResourceMetadata, problem)
    parse_http_url(read.resource, f"the resource in the metadata at {where}")
    if not covers(read.resource, server):
        named = redact_url(read.resource)
        raise AuthError(
            f"the resource metadata at {where} is for {named}, not for {redact_url(server)}",
            hint=f"connect to {named}, or set public_url= on the server: "
            "a token for one server must not be sent to another",
        )
    if not read.authorization_servers:
        raise AuthError(f"the resource metadata at {where} lists no authorization server")
    return msgspec.structs.replace(read, authorization_servers=read.authorization_servers[:MAX_ISSUERS])


def parse_server_metadata(document: dict[str, Any], url: str, issuer: str) -> AuthorizationServerMetadata:
    """Return the metadata of an authorization server, which must be its own (AUTH-17)."""
    problem = f"the metadata at {redact_url(url)} cannot be read"
    read = convert_document({**document, "legacy": False}, AuthorizationServerMetadata, problem)
    if read.issuer != issuer:
        problem = f"is for {redact_url(read.issuer)}, not for {redact_url(issuer)}"
        hint = "an authorization server must publish its own metadata"
        raise AuthError(f"the metadata at {redact_url(url)} {problem}", hint=hint)
    return read


def covers(identifier: str, server: str) -> bool:
    """Return whether a resource includes a server: the same origin, and the same path or one above it.

    The case of scheme and host does not matter (AUTH-42), nor does a slash at the end.
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
    """The stored record of a server: the name of its resource, and the issuer of its tokens."""

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
        """The record to store."""
        return ServerRecord(self.resource.resource, self.issuer.issuer, self.published)

    def annotate_error(self, error: AuthError) -> AuthError:
        """Add to an error that the authorization server is a guess."""
        if self.issuer.legacy and self.searched_urls:
            urls = ", ".join(map(redact_url, self.searched_urls))
            error.message = (
                f"no protected-resource metadata was found at {urls}, so the server was assumed to be "
                f"its own authorization server, but {error.message}"
            )
            error.hint = "the operator of the server must publish its metadata there"
        return error


async def discover(
    fetch: AuthHttpClient, server: str, metadata_url: str | None, prefer: str | None = None
) -> DiscoveredServer:
    """Find the authorization server of an MCP server; `prefer` names one to choose among several."""
    urls = list_resource_metadata_urls(server)
    if metadata_url is not None:
        urls = [metadata_url, *(url for url in urls if url != metadata_url)]
    for url in urls:
        document = await _fetch_document(fetch, url, "the resource metadata")
        if document is not None:
            found = parse_resource_metadata(document, url, server)
            issuers = found.authorization_servers
            issuer = prefer if prefer is not None and prefer in issuers else issuers[0]
            return DiscoveredServer(found, await fetch_server_metadata(fetch, issuer))
    # A server of the second revision is its own authorization server, at its root.
    metadata = await fetch_server_metadata(fetch, normalize_origin(server), legacy=True)
    resource = ProtectedResourceMetadata(resource=server.partition("#")[0].partition("?")[0])
    return DiscoveredServer(resource, metadata, published=False, searched_urls=tuple(urls))


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
        raise AuthError(f"an issuer must have no query and no fragment: {redact_url(issuer)}")
    urls = list_server_metadata_urls(issuer)
    for url in urls[:1] if legacy else urls:
        document = await _fetch_document(fetch, url, "the metadata of the authorization server")
        if document is not None:
            return parse_server_metadata(document, url, issuer)
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
        hint=f"tried {', '.join(map(redact_url, urls))}",
    )


async def _fetch_document(fetch: AuthHttpClient, url: str, label: str) -> dict[str, Any] | None:
    """Return the document at a URL; None if there is none."""
    answer = await fetch.get(url, label)
    if answer.is_transient:
        raise AuthError(f"{redact_url(url)} responded with {answer.status}", retry_safe=True)
    if not answer.ok:
        return None
    # Some sites answer every path with 200 and a page.
    if answer.document is None and "json" in answer.headers.get("content-type", ""):
        raise AuthError(f"{redact_url(url)} is not a JSON object")
    return answer.document


# --------------------------------------------------------------------- challenges

MAX_CHALLENGE_LENGTH: Final = 16 * 1024  # characters that are read; common servers send fewer
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
        """The error code."""
        return self.params.get("error")

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs (AUTH-10)."""
        return find_scopes(self.params.get("scope", ""))


def parse_challenges(text: str) -> list[Challenge]:
    """Return the challenges of a header, up to the first that is malformed."""
    text, found, at = text[:MAX_CHALLENGE_LENGTH], list[Challenge](), 0
    while (part := _CHALLENGE_PART.match(text, at)) is not None:
        at, name = part.end(), part["name"].lower()
        value = part["plain"] if part["quoted"] is None else _ESCAPED_CHARACTER.sub(r"\1", part["quoted"])
        if value is None:
            found.append(Challenge(name, {}))
        elif found:
            found[-1].params.setdefault(name, value)
    return found
