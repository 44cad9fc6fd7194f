"""Allowed hosts and origins, so that no web page reaches a server under a rebound name.

Owns the rules about `Host` and `Origin`. Pure functions; knows nothing of sessions or of status codes.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from toolpost.protocol.headers import quote_value
from toolpost.protocol.urls import DEFAULT_PORTS

MAX_SITE_LENGTH: Final = 300  # a host name of 255 characters, with a scheme and a port

_SITE_PATTERN: Final = re.compile(
    r"(?:([a-z][a-z0-9+.-]*)://)?(?:\[([0-9a-f:.]+)\]|([a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?)(?::([0-9]{1,5}))?",
    re.ASCII | re.IGNORECASE,
)
_PUBLIC_URL_PATTERN: Final = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_LOOPBACK_PATTERN: Final = re.compile(
    r"localhost|::1|127(?:\.(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}"
)
_RULE_FORMS: Final = {
    "allowed_hosts": "name, name:port, *.name or *",
    "allowed_origins": "https://name, https://name:port, https://*.name, null or *, without a path",
}


class _Site(NamedTuple):
    """A host with scheme and port. As a rule, None is any scheme or port, and a leading `*.` is any names."""

    scheme: str | None
    host: str
    port: int | None

    def covers(self, other: "_Site") -> bool:
        """Return whether this rule allows that site."""
        by_name = other.host == self.host or (self.host[:2] == "*." and other.host.endswith(self.host[1:]))
        by_scheme = None in {self.scheme, other.scheme} or self.scheme == other.scheme
        # A `Host` without a port means the default port of a scheme that it does not name.
        by_default = other.port is None and self.port in DEFAULT_PORTS.values()
        return by_name and by_scheme and (self.port is None or self.port == other.port or by_default)


class AllowedHosts(NamedTuple):
    """The hosts and origins that a server answers to. Made by `parse_allowed_hosts`."""

    hosts: tuple[_Site, ...]
    origins: tuple[_Site, ...]
    any_host: bool
    any_origin: bool
    null_origin: bool


def parse_allowed_hosts(
    public_url: str | None = None, hosts: Iterable[str] = (), origins: Iterable[str] = ()
) -> AllowedHosts:
    """Parse the allowed hosts and origins; ValueError names an entry that cannot be understood.

    `public_url` allows its host and its origin. `localhost`, 127.0.0.0/8 and `[::1]` are allowed on any port.
    Hosts and origins take the forms of `_RULE_FORMS`; a host without a port allows any.
    """
    # A lone string means one entry, not its letters.
    names = (hosts,) if isinstance(hosts, str) else tuple(hosts)
    pages = (origins,) if isinstance(origins, str) else tuple(origins)
    public = () if public_url is None else (_parse_public_url(public_url),)
    return AllowedHosts(
        hosts=(*public, *(_parse_rule("allowed_hosts", text) for text in names if text != "*")),
        origins=(
            *public,
            *(_parse_rule("allowed_origins", text) for text in pages if text not in {"*", "null"}),
        ),
        any_host="*" in names,
        any_origin="*" in pages,
        null_origin="null" in pages,
    )


def explain_refused_host(allowed: AllowedHosts, host: str | None) -> str | None:
    """Return None if the `Host` header names this server, else the refusal with its remedy."""
    if allowed.any_host:
        return None
    if host is None:
        return "Missing Host header, which HTTP/1.1 requires."
    site = _parse_site(host)
    if site is None or site.scheme is not None:
        return f"Host {quote_value(host)} is not a valid host with an optional port."
    if _is_allowed_host(allowed, site):
        return None
    return (
        f"Host {quote_value(host)} is not allowed. To allow it, set allowed_hosts=[{quote_value(host)}],"
        " or public_url= to the URL that clients use."
    )


def explain_refused_origin(allowed: AllowedHosts, origin: str | None, host: str | None) -> str | None:
    """Return None if the `Origin` header is fine, else the refusal with its remedy (HTTP-1).

    A page may call the host that it came from, if that host is allowed by name: `*` proves nothing, since a
    rebound name is its own origin.
    """
    if origin is None or allowed.any_origin or (origin == "null" and allowed.null_origin):
        return None
    site = _parse_site(origin)
    if origin != "null":
        if site is None or site.scheme is None:
            return f"Origin {quote_value(origin)} is not valid. An origin looks like https://app.example.com."
        if _is_allowed_origin(allowed, site, host):
            return None
    return (
        f"Origin {quote_value(origin)} is not allowed. To allow it, set allowed_origins="
        f"[{quote_value(origin)}], or public_url= if this server serves the page."
    )


def _is_allowed_origin(allowed: AllowedHosts, origin: _Site, host: str | None) -> bool:
    if any(rule.covers(origin) for rule in allowed.origins):
        return True
    if origin.scheme not in DEFAULT_PORTS:
        return False
    is_own = host is not None and _parse_site(f"{origin.scheme}://{host}") == origin
    return _is_loopback(origin) or (is_own and _is_allowed_host(allowed, origin))


def _is_allowed_host(allowed: AllowedHosts, site: _Site) -> bool:
    return _is_loopback(site) or any(rule.covers(site) for rule in allowed.hosts)


def _is_loopback(site: _Site) -> bool:
    return _LOOPBACK_PATTERN.fullmatch(site.host) is not None


def _parse_site(text: str) -> _Site | None:
    """Parse `host`, `host:port` or an origin; None for anything else, such as a path."""
    match = _SITE_PATTERN.fullmatch(text) if len(text) <= MAX_SITE_LENGTH else None
    if match is None:
        return None
    scheme, literal, name, digits = (part and part.lower() for part in match.groups())
    port = int(digits) if digits else DEFAULT_PORTS.get(scheme)
    if port is not None and not 0 < port < 65536:
        return None
    try:
        return _Site(scheme, str(IPv6Address(literal)) if literal else name, port)
    except ValueError:
        return None


def _parse_rule(setting: str, text: str) -> _Site:
    """Parse an entry of a setting."""
    head, mark, tail = text.rpartition("://")
    name = tail.removeprefix("*.")
    site = _parse_site(head + mark + name)
    if site is None or (site.scheme is None) != (setting == "allowed_hosts"):
        raise ValueError(f"{setting}: invalid value {text!r}; expected {_RULE_FORMS[setting]}")
    return site if name == tail else site._replace(host=f"*.{site.host}")


def _parse_public_url(url: str) -> _Site:
    """Parse the origin of a URL; its path does not count."""
    match = _PUBLIC_URL_PATTERN.match(url)
    site = _parse_site(match[0]) if match else None
    if site is None:
        # The value is not repeated: it may hold a password.
        raise ValueError(
            "public_url must be an http or https URL without a user name, such as https://mcp.example.com"
        )
    return site
