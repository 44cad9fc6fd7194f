"""From a refusal to an authorization server: resource metadata, then the metadata of the server it names.

Owns the order of places (AUTH-6, AUTH-15, AUTH-16) and the fallback for servers of the second revision, which
are their own authorization server. Which of several to use is decided here too: the first.
"""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from toolpost.auth.fetch import Answer, Fetch
from toolpost.auth.guard import origin_of, shown
from toolpost.auth.metadata import (
    AuthorizationServer,
    Resource,
    authorization_server,
    authorization_server_places,
    legacy_server,
    resource,
    resource_places,
)
from toolpost.errors import AuthError

__all__ = ["Found", "discover", "look_up"]


class Found(NamedTuple):
    """What was found out about an MCP server.

    Args:
        resource: what it is called, exactly as published, and the scopes that it wants.
        issuer: who issues its tokens.
        published: whether it has said so itself; otherwise it is of the second revision.
        looked: where its metadata was looked for in vain.
    """

    resource: Resource
    issuer: AuthorizationServer
    published: bool = True
    looked: tuple[str, ...] = ()

    def doubted(self, error: AuthError) -> AuthError:
        """An error of an authorization server that may be none: nothing but a guess has led there."""
        if self.issuer.legacy and self.looked:
            places = ", ".join(shown(place) for place in self.looked)
            error.message = (
                f"no protected-resource metadata was found at {places}, so that the server was taken for "
                f"its own authorization server; but {error.message}"
            )
            error.hint = "whoever runs the server has to publish its metadata there"
        return error


async def discover(fetch: Fetch, server: str, metadata_url: str | None, prefer: str | None = None) -> Found:
    """What the tokens for an MCP server are called, and who issues them.

    Args:
        fetch: gets the documents.
        server: the address of the MCP server.
        metadata_url: where its refusal said that its metadata is.
        prefer: the issuer to take, if it is among several.

    Raises:
        AuthError: it cannot be found out, or what is found must not be used.
    """
    places = resource_places(server)
    if metadata_url is not None:
        places = [metadata_url, *(place for place in places if place != metadata_url)]
    found = await _resource(fetch, server, places)
    if found is None:
        return (await _old(fetch, server))._replace(looked=tuple(places))
    issuers = found.authorization_servers
    issuer = prefer if prefer is not None and prefer in issuers else issuers[0]
    return Found(found, await look_up(fetch, issuer))


async def look_up(fetch: Fetch, issuer: str, *, legacy: bool = False) -> AuthorizationServer:
    """What an authorization server says about itself.

    Args:
        fetch: gets the documents.
        issuer: its identifier, exactly as it was given.
        legacy: whether it may have published nothing.

    Raises:
        AuthError: it publishes nothing, or something that is not its own.
    """
    parts = urlsplit(fetch.guard.plain(issuer, "the issuer").url)
    if parts.query or parts.fragment:
        raise AuthError(f"an issuer has no query and no fragment: {shown(issuer)}")
    places = authorization_server_places(issuer)
    for place in places[:1] if legacy else places:
        document = _document(await fetch.get(place, "the metadata of the authorization server"), place)
        if document is not None:
            return authorization_server(document, place, issuer)
    if legacy:
        return legacy_server(issuer)
    raise AuthError(
        f"the authorization server {shown(issuer)} publishes no metadata",
        hint=f"looked at {', '.join(shown(place) for place in places)}",
    )


async def _resource(fetch: Fetch, server: str, places: Sequence[str]) -> Resource | None:
    for place in places:
        document = _document(await fetch.get(place, "the resource metadata"), place)
        if document is not None:
            return resource(document, place, server)
    return None


async def _old(fetch: Fetch, server: str) -> Found:
    """A server of the second revision is its own authorization server, at its root."""
    origin = origin_of(server)
    issuer = await look_up(fetch, origin, legacy=True)
    return Found(Resource(resource=server.partition("#")[0].partition("?")[0]), issuer, published=False)


def _document(answer: Answer, place: str) -> dict[str, object] | None:
    """The document that is there; None if there is none.

    Raises:
        AuthError: nobody can say whether there is one, or it is no JSON object.
    """
    if answer.passing:
        raise AuthError(f"{shown(place)} answers with {answer.status}", retry_safe=True)
    if not answer.ok:
        return None
    document = answer.document
    if document is None:
        # Sites that show a page for every path say 200 to anything.
        kind = answer.headers.get("content-type", "")
        if "json" in kind:
            raise AuthError(f"{shown(place)} is no JSON object")
    return document
