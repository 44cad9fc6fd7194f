"""Where others may send a client: to https or this machine, and no further in than the server itself is.

Owns the rules about URLs that come from metadata (SEC-3, SEC-4, SEC-14). A server in the internet could
otherwise make a client talk to machines that only the client can reach. Sends nothing.

PART places: URLs that name a resource: whether two are the same, and where its metadata are.

Owns the comparison, in which only scheme and host lose their case (AUTH-42), and the well-known path, which
goes between host and path (RFC 9728 §3.1). Fetches nothing.
"""

import asyncio
import ipaddress
import socket
from enum import IntEnum
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from toolpost.errors import AuthError

_FORBIDDEN_CHARACTERS: Final = frozenset('\\"<>^`{|} \x7f')
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
MAX_URL_LENGTH: Final = 8192
"""The longest URL that is used: common servers take no longer ones."""

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class NetworkZone(IntEnum):
    """How far in an address lies: whoever is at one may name those that are as far out or further."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2
    FORBIDDEN = 3
    """Link-local, multicast and the like: no server that we log in at is there, but cloud secrets are."""


class CheckedUrl(NamedTuple):
    """A URL that was looked at."""

    url: str
    parts: SplitResult

    @property
    def origin(self) -> str:
        """Scheme, host and port, as they are written."""
        return normalize_origin(self.url)


def redact_url(url: str) -> str:
    """A URL as an error may show it: bounded, without user, query and fragment."""
    text = url.partition("#")[0].partition("?")[0][:200]
    scheme, mark, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    plain = f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"
    return "".join(character if character.isprintable() else "?" for character in plain)


def parse_http_url(url: str, what: str) -> SplitResult:
    """The parts of an http or https URL.

    Args:
        url: the URL.
        what: what to call it in an error.

    Raises:
        AuthError: it is none.
    """
    if (
        len(url) > MAX_URL_LENGTH
        or not url.isascii()
        or not url.isprintable()
        or not _FORBIDDEN_CHARACTERS.isdisjoint(url)
    ):
        raise AuthError(f"{what} is no URL: it holds what no URL has, or is too long")
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise AuthError(f"{what} is no URL") from None
    if parts.scheme not in _DEFAULT_PORTS or not valid:
        raise AuthError(f"{what} is no http or https URL: {redact_url(url)}")
    if "@" in parts.netloc:
        raise AuthError(f"{what} holds a user or a password: {redact_url(url)}")
    return parts


def normalize_origin(url: str) -> str:
    """Scheme, host and port of a URL, in lower case and with the port only where it is not the usual one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in {None, _DEFAULT_PORTS.get(parts.scheme)} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def is_loopback_host(host: str | None) -> bool:
    """Whether a host is this machine by its name alone."""
    if host is None:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return _classify_address(ipaddress.ip_address(host)) is NetworkZone.LOOPBACK
    except ValueError:
        return False


class UrlPolicy:
    """Says which URLs may be asked.

    Args:
        server: the MCP server whose metadata names them.
        allow_private: whether addresses may lie further in than the server.
        allow_http: whether plain http is good enough elsewhere than on loopback.
    """

    def __init__(self, server: str, *, allow_private: bool = False, allow_http: bool = False) -> None:
        self._server = server
        self._allow_private = allow_private
        self._allow_http = allow_http

    def check_scheme(self, url: str, what: str) -> CheckedUrl:
        """A URL that is well-formed and safe from listeners. Nothing is looked up.

        Raises:
            AuthError: it is not.
        """
        parts = parse_http_url(url, what)
        if parts.scheme == "http" and not self._allow_http and not is_loopback_host(parts.hostname):
            raise AuthError(
                f"{what} is not https: {redact_url(url)}",
                hint="only servers on this machine may be asked in the clear; allow_http=True permits others",
            )
        return CheckedUrl(url, parts)

    async def check(self, url: str, what: str) -> CheckedUrl:
        """A URL that may be asked.

        Args:
            url: the URL.
            what: what to call it in an error.

        Raises:
            AuthError: it may not.
        """
        site = self.check_scheme(url, what)
        if self._allow_private:
            return site
        if normalize_origin(url) == normalize_origin(self._server):
            return site
        # All addresses count: which one is used is decided later.
        inmost = max(await _resolve_zones(site.parts), default=NetworkZone.PUBLIC)
        if inmost is NetworkZone.FORBIDDEN or inmost > _classify_server(self._server):
            raise AuthError(
                f"{what} leads into a network that the server is not in: {redact_url(url)}",
                hint="a server must not send us there, wherever its own name leads; allow_private=True "
                "permits it if you trust the server",
            )
        return site


def _classify_server(server: str) -> NetworkZone:
    """How far in a server lies, by its address alone: a name leads to where its owner likes."""
    host = parse_http_url(server, "the URL of the server").hostname or ""
    if is_loopback_host(host):
        return NetworkZone.LOOPBACK
    try:
        return min(_classify_address(ipaddress.ip_address(host)), NetworkZone.PRIVATE)
    except ValueError:
        return NetworkZone.PUBLIC


async def _resolve_zones(parts: SplitResult) -> set[NetworkZone]:
    """How far in the addresses of a host lie; nothing if they cannot be found, as behind a proxy."""
    host = parts.hostname or ""
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
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
    """The IPv4 address that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


# --------------------------------------------------------------------- places

RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"


def is_same_resource(one: Any, other: str) -> bool:
    """Whether two URLs name the same resource. Anything but a text names none."""
    return isinstance(one, str) and (one == other or _fold_case(one) == _fold_case(other))


def _fold_case(url: str) -> str:
    """The URL, its scheme and its host in lower case, and nothing else changed."""
    scheme, colon, rest = url.partition("://")
    ends = [place for place in map(rest.find, "/?#") if place >= 0]
    end = min(ends, default=len(rest))
    return f"{scheme.lower()}{colon}{rest[:end].lower()}{rest[end:]}"


def extract_origin(url: str) -> str:
    """Scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}"


def build_metadata_url(resource: str) -> str:
    """Where the metadata of a resource are."""
    parts = urlsplit(resource)
    query = f"?{parts.query}" if parts.query else ""
    path = "" if parts.path == "/" else parts.path
    return f"{extract_origin(resource)}{RESOURCE_METADATA_PATH}{path}{query}"
