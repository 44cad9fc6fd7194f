"""URLs that name a resource: whether two are the same, and where its metadata are.

Owns the comparison, in which only scheme and host lose their case (AUTH-42), and the well-known path, which
goes between host and path (RFC 9728 §3.1). Fetches nothing.
"""

from typing import Any, Final
from urllib.parse import urlsplit

__all__ = ["RESOURCE_METADATA_PATH", "build_metadata_url", "extract_origin", "is_same_resource"]

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
