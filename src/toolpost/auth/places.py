"""URLs that name a resource: whether two are the same, and where its metadata are.

Owns the comparison, in which only scheme and host lose their case (AUTH-42), and the well-known path, which
goes between host and path (RFC 9728 §3.1). Fetches nothing.
"""

from typing import Any, Final
from urllib.parse import urlsplit

__all__ = ["WELL_KNOWN", "metadata_of", "origin_of", "same_place"]

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


def same_place(one: Any, other: str) -> bool:
    """Whether two URLs name the same resource. Anything but a text names none."""
    return isinstance(one, str) and (one == other or _folded(one) == _folded(other))


def _folded(url: str) -> str:
    """The URL, its scheme and its host in lower case, and nothing else changed."""
    scheme, colon, rest = url.partition("://")
    ends = [place for place in map(rest.find, "/?#") if place >= 0]
    end = min(ends, default=len(rest))
    return f"{scheme.lower()}{colon}{rest[:end].lower()}{rest[end:]}"


def origin_of(url: str) -> str:
    """Scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}"


def metadata_of(resource: str) -> str:
    """Where the metadata of a resource are."""
    parts = urlsplit(resource)
    query = f"?{parts.query}" if parts.query else ""
    path = "" if parts.path == "/" else parts.path
    return f"{origin_of(resource)}{WELL_KNOWN}{path}{query}"
