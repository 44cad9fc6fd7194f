"""Rules about URLs: which may be asked, which name the same resource, and where metadata is published.

A server in the internet could make a client talk to machines that only the client can reach, so the URLs in
its metadata are checked against the server's own network (SEC-3, SEC-4, SEC-14). Sends no request.
"""

import asyncio
import ipaddress
import re
import socket
from enum import IntEnum
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from toolpost.errors import AuthError
from toolpost.protocol.urls import DEFAULT_PORTS, display_url, has_forbidden_characters
from toolpost.protocol.urls import is_loopback_host as is_loopback_name

MAX_URL_LENGTH: Final = 8192  # the longest URL that is used: common servers take no longer ones
MAX_QUOTED_LENGTH: Final = 200  # characters of a foreign text that an error repeats

RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
OAUTH_METADATA_PATH: Final = "/.well-known/oauth-authorization-server"
OIDC_METADATA_PATH: Final = "/.well-known/openid-configuration"

_LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class NetworkZone(IntEnum):
    """How far in an address lies: a server may name addresses that are as far out as its own, or further."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2
    FORBIDDEN = 3  # link-local, multicast and the like: no server is there, but cloud secrets are


def redact_url(url: str) -> str:
    """Return a URL as an error may show it: bounded, without user, query and fragment."""
    plain = display_url(url.partition("#")[0].partition("?")[0][:200])
    return "".join(character if character.isprintable() else "?" for character in plain)


def parse_http_url(url: str, what: str) -> SplitResult:
    """Return the parts of an http or https URL; `what` names it in an error."""
    if len(url) > MAX_URL_LENGTH or not url.isascii() or has_forbidden_characters(url):
        raise AuthError(f"{what} is no URL: it holds what no URL has, or is too long")
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise AuthError(f"{what} is no URL") from None
    if parts.scheme not in DEFAULT_PORTS or not valid:
        raise AuthError(f"{what} is no http or https URL: {redact_url(url)}")
    if "@" in parts.netloc:
        raise AuthError(f"{what} holds a user or a password: {redact_url(url)}")
    return parts


def normalize_origin(url: str) -> str:
    """Scheme, host and port of a URL, in lower case and with the port only where it is not the usual one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in {None, DEFAULT_PORTS.get(parts.scheme)} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def is_loopback_host(host: str | None) -> bool:
    """Whether a host is this machine by its name or address alone, also as an IPv4 address in an IPv6 one."""
    try:
        return _classify_address(ipaddress.ip_address(host or "")) is NetworkZone.LOOPBACK
    except ValueError:
        return is_loopback_name(host)


class UrlPolicy:
    """Says which URLs may be asked."""

    def __init__(self, server: str, *, allow_private: bool = False, allow_http: bool = False) -> None:
        self._server = server
        self._allow_private = allow_private
        self._allow_http = allow_http

    def check_scheme(self, url: str, what: str) -> SplitResult:
        """Check that a URL is well-formed and safe from listeners; nothing is looked up."""
        parts = parse_http_url(url, what)
        if parts.scheme == "http" and not self._allow_http and not is_loopback_host(parts.hostname):
            raise AuthError(
                f"{what} is not https: {redact_url(url)}",
                hint="only servers on this machine may be asked in the clear; allow_http=True permits others",
            )
        return parts

    async def check(self, url: str, what: str) -> None:
        """Check that a URL may be asked."""
        parts = self.check_scheme(url, what)
        if self._allow_private or normalize_origin(url) == normalize_origin(self._server):
            return
        # All addresses count: which one is used is decided later.
        inmost = max(await _resolve_zones(parts), default=NetworkZone.PUBLIC)
        if inmost is NetworkZone.FORBIDDEN or inmost > _classify_server(self._server):
            raise AuthError(
                f"{what} leads into a network that the server is not in: {redact_url(url)}",
                hint="a server must not send us there, wherever its own name leads; allow_private=True "
                "permits it if you trust the server",
            )


def _classify_server(server: str) -> NetworkZone:
    """Return the zone of a server by its address alone: a name leads to where its owner likes."""
    host = parse_http_url(server, "the URL of the server").hostname or ""
    if is_loopback_host(host):
        return NetworkZone.LOOPBACK
    try:
        return min(_classify_address(ipaddress.ip_address(host)), NetworkZone.PRIVATE)
    except ValueError:
        return NetworkZone.PUBLIC


async def _resolve_zones(parts: SplitResult) -> set[NetworkZone]:
    """Return the zones of a host's addresses; nothing if they cannot be found, as behind a proxy."""
    host = parts.hostname or ""
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return {NetworkZone.LOOPBACK} if is_loopback_host(host) else set()
    return {_classify_address(ipaddress.ip_address(str(entry[4][0]).partition("%")[0])) for entry in found}


def _classify_address(address: _Address) -> NetworkZone:
    inner = _extract_ipv4(address)
    if inner is not None:
        return _classify_address(inner)
    if address.is_loopback:
        return NetworkZone.LOOPBACK
    if address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved:
        return NetworkZone.FORBIDDEN
    return NetworkZone.PUBLIC if address.is_global else NetworkZone.PRIVATE


def _extract_ipv4(address: _Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


# --------------------------------------------------------------------- arguments of a server


def check_url(url: Any, what: str, example: str = "https://login.example.com") -> str:
    """Return a URL that an operator gave: https, or http on this machine, without credentials."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{what} is no URL such as {example}") from None
    if not host or not url.isascii() or has_forbidden_characters(url):
        shown = "" if isinstance(url, str) and "@" in url else f", but {url!r:.{MAX_QUOTED_LENGTH}}"
        raise ValueError(f"{what} is no URL such as {example}{shown}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{what} has a user name or a password in it")
    if "#" in url:
        raise ValueError(f"{what} has a fragment in it, which such a URL cannot have")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK_HOSTS):
        raise ValueError(f"{what} has to be an https URL; http is for this machine alone")
    return url


def check_issuer(url: Any) -> str:
    """Return a URL that can be the name of an authorization server (RFC 8414 §2)."""
    issuer = check_url(url, "issuer")
    if "?" in issuer:
        raise ValueError("issuer has a query in it, which such a URL cannot have (RFC 8414)")
    if "/.well-known/" in issuer:
        raise ValueError(f"issuer is {issuer!r}, where its metadata are; give what they call `issuer`")
    return issuer


# --------------------------------------------------------------------- resources and metadata


def is_same_resource(one: Any, other: str) -> bool:
    """Whether two URLs name the same resource. Anything but a text names none."""
    return isinstance(one, str) and (one == other or _fold_case(one) == _fold_case(other))


def _fold_case(url: str) -> str:
    """Return the URL with its scheme and host in lower case."""
    scheme, colon, rest = url.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme.lower()}{colon}{host.lower()}{rest[len(host) :]}"


def extract_origin(url: str) -> str:
    """Scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}"


def build_metadata_url(resource: str) -> str:
    """Return where the metadata of a resource is (RFC 9728 §3.1)."""
    parts = urlsplit(resource)
    query = f"?{parts.query}" if parts.query else ""
    path = "" if parts.path == "/" else parts.path
    return f"{extract_origin(resource)}{RESOURCE_METADATA_PATH}{path}{query}"


def list_resource_metadata_urls(server: str) -> list[str]:
    """Return where the metadata of an MCP server may be: with its path, then at the root (AUTH-6)."""
    parts = urlsplit(server)
    own = _replace_path(parts, RESOURCE_METADATA_PATH + parts.path.rstrip("/"), parts.query)
    return [*dict.fromkeys((own, _replace_path(parts, RESOURCE_METADATA_PATH)))]


def list_server_metadata_urls(issuer: str) -> list[str]:
    """Return where the metadata of an authorization server may be, in order (AUTH-15, AUTH-16)."""
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    paths = (OAUTH_METADATA_PATH + path, OIDC_METADATA_PATH + path, path + OIDC_METADATA_PATH)
    return [_replace_path(parts, each) for each in dict.fromkeys(paths)]


def _replace_path(parts: SplitResult, path: str, query: str = "") -> str:
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))
