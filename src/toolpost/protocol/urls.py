"""Rules about http and https URLs: which can be used, how to show them, and which hosts are this machine.

Also whether a text reveals a secret. Pure functions: error texts, and which URL may be used for which
purpose, are left to callers.
"""

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_FORBIDDEN_CHARACTERS: Final = frozenset('\\"<>^`{|} \x7f')
"""Always escaped in a URL. Some parsers take a backslash for a slash, and then see another host."""


def has_forbidden_characters(url: str) -> bool:
    """Return whether a string contains a character that no URL has."""
    return not url.isprintable() or not _FORBIDDEN_CHARACTERS.isdisjoint(url)


def has_credentials(url: str) -> bool:
    """Return whether a URL holds a user or a password."""
    return "@" in url.partition("://")[2].partition("/")[0]


def split_http_url(url: str) -> SplitResult | None:
    """Return the parts of a URL with the scheme http or https, a host, and maybe a port; None for others."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in DEFAULT_PORTS and parts.hostname and parts.port != 0
    except ValueError:  # its text repeats the URL, which may hold secrets
        return None
    return parts if valid else None


def get_origin(parts: SplitResult) -> tuple[str, str | None, int]:
    """Return scheme, host and port, so that equal origins are equal."""
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme]


def display_url(url: str) -> str:
    """Return a URL for errors and logs: without user, password, query and fragment, which may be secrets."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("#")[0].partition("?")[0].partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def is_loopback_host(host: str | None) -> bool:
    """Return whether a host is this machine by its name or address alone, also by IPv4 within IPv6."""
    try:
        address = ip_address(host or "")
    except ValueError:
        return host is not None and (host == "localhost" or host.endswith(".localhost"))
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (inner or address).is_loopback


# --------------------------------------------------------------------- secrets

MIN_SECRET_PART: Final = 8  # characters of a secret that must not appear: fewer would be found in any text


def has_secret(text: str, secrets: Iterable[str]) -> bool:
    """Return whether a text holds a secret, or `MIN_SECRET_PART` characters of one."""
    hidden = [secret for secret in secrets if len(secret) > 3]
    if not hidden:
        return False
    parts = {text[at : at + MIN_SECRET_PART] for at in range(len(text) - MIN_SECRET_PART + 1)}
    return any(secret in text or any(part in secret for part in parts) for secret in hidden)
