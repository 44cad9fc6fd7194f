"""Rules about URLs: which may be requested, which name the same resource, and where metadata is published.

A server on the internet could make a client send requests to machines that only the client can reach. So the
URLs in its metadata are compared with the server's own network (SEC-3, SEC-4, SEC-14).
"""

import asyncio
import ipaddress
import re
import socket
from enum import IntEnum
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from toolpost.errors import AuthError
from toolpost.protocol.urls import (
    DEFAULT_PORTS,
    display_url,
    has_forbidden_characters,
    is_loopback_host,
    split_http_url,
)

MAX_URL_LENGTH: Final = 8192  # common servers accept no longer URLs
MAX_QUOTED_LENGTH: Final = 200  # characters of a peer's text that an error repeats

RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
OAUTH_METADATA_PATH: Final = "/.well-known/oauth-authorization-server"
OIDC_METADATA_PATH: Final = "/.well-known/openid-configuration"

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class NetworkZone(IntEnum):
    """The network of an address, from the outside in. A server may name addresses as far out as its own."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2
    FORBIDDEN = 3  # link-local, multicast and the like: cloud metadata with secrets, but no servers


def redact_url(url: str) -> str:
    """Return a URL for an error: shortened, without user, query and fragment."""
    plain = display_url(url.partition("#")[0].partition("?")[0][:200])
    return "".join(character if character.isprintable() else "?" for character in plain)


def parse_http_url(url: str, label: str) -> SplitResult:
    """Return the parts of an http or https URL; `label` names it in an error."""
    if len(url) > MAX_URL_LENGTH or not url.isascii() or has_forbidden_characters(url):
        raise AuthError(f"{label} is not a URL: it has an invalid character, or is too long")
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise AuthError(f"{label} is not a URL") from None
    if parts.scheme not in DEFAULT_PORTS or not valid:
        raise AuthError(f"{label} is not an http or https URL: {redact_url(url)}")
    if "@" in parts.netloc:
        raise AuthError(f"{label} contains a user name or password: {redact_url(url)}")
    return parts


def normalize_origin(url: str) -> str:
    """Return scheme, host and port of a URL in lower case, without the default port."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in {None, DEFAULT_PORTS.get(parts.scheme)} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


class UrlPolicy:
    """Decides which URLs a client may request on behalf of a server."""

    def __init__(self, server: str, *, allow_private: bool = False, allow_http: bool = False) -> None:
        self._server = server
        self._allow_private = allow_private
        self._allow_http = allow_http

    def check_scheme(self, url: str, label: str) -> SplitResult:
        """Check that a URL is valid and encrypted, without a DNS lookup."""
        parts = parse_http_url(url, label)
        if parts.scheme == "http" and not self._allow_http and not is_loopback_host(parts.hostname):
            raise AuthError(
                f"{label} is not https: {redact_url(url)}",
                hint="plain http is allowed only to this machine; allow_http=True allows it everywhere",
            )
        return parts

    async def check(self, url: str, label: str) -> None:
        """Check that a URL may be requested."""
        parts = self.check_scheme(url, label)
        if self._allow_private or normalize_origin(url) == normalize_origin(self._server):
            return
        # All addresses count: the HTTP library chooses one later.
        innermost = max(await _resolve_zones(parts), default=NetworkZone.PUBLIC)
        if innermost is NetworkZone.FORBIDDEN or innermost > _classify_server(self._server):
            raise AuthError(
                f"{label} is in a private network that the server is not in: {redact_url(url)}",
                hint="a server must not redirect a client into a private network; allow_private=True "
                "allows it if you trust the server",
            )


def _classify_server(server: str) -> NetworkZone:
    """Return the zone of a server by its URL alone: the owner of a name decides where it resolves."""
    host = parse_http_url(server, "the URL of the server").hostname or ""
    try:
        zone = _classify_address(ipaddress.ip_address(host))
    except ValueError:
        return NetworkZone.LOOPBACK if is_loopback_host(host) else NetworkZone.PUBLIC
    return NetworkZone.PRIVATE if zone is NetworkZone.FORBIDDEN else zone


async def _resolve_zones(parts: SplitResult) -> set[NetworkZone]:
    """Return the zones of a host's addresses; none if it cannot be resolved, as behind a proxy."""
    host = parts.hostname or ""
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return {NetworkZone.LOOPBACK} if is_loopback_host(host) else set()
    return {_classify_address(ipaddress.ip_address(str(entry[4][0]).partition("%")[0])) for entry in found}


def _classify_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> NetworkZone:
    if isinstance(address, ipaddress.IPv6Address):
        tail = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
        inner = tail or address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return _classify_address(inner)
    if address.is_loopback:
        return NetworkZone.LOOPBACK
    if address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved:
        return NetworkZone.FORBIDDEN
    return NetworkZone.PUBLIC if address.is_global else NetworkZone.PRIVATE


# --------------------------------------------------------------------- arguments of a server


def check_url(url: Any, label: str, example: str = "https://login.example.com") -> str:
    """Check a URL that an operator gave and return it: https, or http on this machine, no credentials."""
    parts = split_http_url(url) if isinstance(url, str) else None
    if parts is None or not url.isascii() or has_forbidden_characters(url):
        shown = "" if isinstance(url, str) and "@" in url else f", not {url!r:.{MAX_QUOTED_LENGTH}}"
        raise ValueError(f"{label} must be a URL such as {example}{shown}")
    if "@" in parts.netloc:
        raise ValueError(f"{label} must not contain a user name or password")
    if "#" in url:
        raise ValueError(f"{label} must not have a fragment")
    if parts.scheme != "https" and not is_loopback_host(parts.hostname):
        raise ValueError(f"{label} must be an https URL; http is only allowed on this machine")
    return url


def check_issuer(url: Any) -> str:
    """Check the issuer URL of an authorization server and return it (RFC 8414 §2)."""
    issuer = check_url(url, "issuer")
    if "?" in issuer:
        raise ValueError("issuer must not have a query (RFC 8414)")
    if "/.well-known/" in issuer:
        raise ValueError(f"issuer is {issuer!r}, the URL of its metadata; pass the `issuer` in that metadata")
    return issuer


# --------------------------------------------------------------------- resources and metadata


def is_same_resource(one: Any, other: str) -> bool:
    """Return whether two URLs name the same resource."""
    return isinstance(one, str) and (one == other or _fold_case(one) == _fold_case(other))


def _fold_case(url: str) -> str:
    """Return the URL with its scheme and host in lower case."""
    scheme, colon, rest = url.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme.lower()}{colon}{host.lower()}{rest[len(host) :]}"


def build_metadata_url(resource: str) -> str:
    """Return the URL of a resource's metadata (RFC 9728 §3.1)."""
    parts = urlsplit(resource)
    query = f"?{parts.query}" if parts.query else ""
    return f"{normalize_origin(resource)}{RESOURCE_METADATA_PATH}{parts.path.rstrip('/')}{query}"


def list_resource_metadata_urls(server: str) -> list[str]:
    """Return the possible metadata URLs of an MCP server: with its path, then at the root (AUTH-6)."""
    return [*dict.fromkeys(build_metadata_url(each) for each in (server, normalize_origin(server)))]


def list_server_metadata_urls(issuer: str) -> list[str]:
    """Return the possible metadata URLs of an authorization server, in order (AUTH-15, AUTH-16)."""
    origin, path = normalize_origin(issuer), urlsplit(issuer).path.rstrip("/")
    paths = (OAUTH_METADATA_PATH + path, OIDC_METADATA_PATH + path, path + OIDC_METADATA_PATH)
    return [origin + each for each in dict.fromkeys(paths)]
