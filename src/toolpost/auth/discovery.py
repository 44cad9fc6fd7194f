"""From a refusal to an authorization server: resource metadata, then the metadata of the server it names.

Owns the order of places (AUTH-6, AUTH-15, AUTH-16) and the fallback for servers of the second revision, which
are their own authorization server. Which of several to use is decided here too: the first.
"""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from toolpost.auth.fetch import AuthHttpClient, AuthHttpResponse
from toolpost.auth.guard import normalize_origin, redact_url
from toolpost.auth.metadata import (
    AuthorizationServerMetadata,
    ProtectedResourceMetadata,
    build_legacy_metadata,
    list_resource_metadata_urls,
    list_server_metadata_urls,
    parse_resource_metadata,
    parse_server_metadata,
)
from toolpost.errors import AuthError

__all__ = ["DiscoveredServer", "discover", "fetch_server_metadata"]


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
    """What the tokens for an MCP server are called, and who issues them.

    Args:
        fetch: gets the documents.
        server: the address of the MCP server.
        metadata_url: where its refusal said that its metadata is.
        prefer: the issuer to take, if it is among several.

    Raises:
        AuthError: it cannot be found out, or what is found must not be used.
    """
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
    """What an authorization server says about itself.

    Args:
        fetch: gets the documents.
        issuer: its identifier, exactly as it was given.
        legacy: whether it may have published nothing.

    Raises:
        AuthError: it publishes nothing, or something that is not its own.
    """
    parts = urlsplit(fetch.url_policy.check_scheme(issuer, "the issuer").url)
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
    """The document that is there; None if there is none.

    Raises:
        AuthError: nobody can say whether there is one, or it is no JSON object.
    """
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
