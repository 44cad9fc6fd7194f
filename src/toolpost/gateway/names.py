"""Names and URIs of mounted servers, in the server that they are mounted in.

A name gets the prefix of its mount, and stays within the length that hosts accept. A URI stays as it is
unless another server has the same one; then it names its server, as `shop+file:///a` or `ui://shop/page` do.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from typing import Any, Final, cast

from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.uri_template import UriTemplate
from toolpost.types.base import JSON, Raw

MAX_NAME: Final = 64
"""Characters of a name that all hosts accept."""

HASH_LENGTH: Final = 6
"""Characters of the hash at the end of a shortened name."""

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_.-]")
_NO_SCHEME: Final = re.compile(r"[^A-Za-z0-9-]+")
_VARIABLE: Final = re.compile(r"\{[^{}]*\}")
_APP_SCHEME: Final = "ui://"
_JSON: Final = JSONReader(cast("type[JSON]", Any))


def make_name(prefix: str, name: str, limit: int = MAX_NAME) -> str:
    """Return the name of an item behind a prefix; the same in every process.

    A name that is too long, or has other characters than letters, digits, `_`, `.` and `-`, ends in a hash.
    """
    whole = f"{prefix}_{name}" if prefix else name
    clean = _FORBIDDEN.sub("_", whole)
    if clean == whole and len(whole) <= limit:
        return whole
    mark = sha256(whole.encode()).hexdigest()[:HASH_LENGTH]
    return f"{clean[: limit - HASH_LENGTH - 1]}_{mark}"


def make_scheme(label: str) -> str:
    """Return the name of a server as it stands in front of a URI."""
    scheme = _NO_SCHEME.sub("-", label).strip("-").lower()
    return scheme if scheme[:1].isalpha() else f"server-{scheme}".rstrip("-")


def add_scheme(scheme: str, uri: str) -> str:
    """Return a URI that names its server."""
    if uri.startswith(_APP_SCHEME):
        return f"{_APP_SCHEME}{scheme}/{uri.removeprefix(_APP_SCHEME)}"
    return f"{scheme}+{uri}"


def normalize_template(template: str) -> str:
    """Return a template without the names of its variables: two that are alike match the same URIs."""
    return _VARIABLE.sub("{}", template)


class UriMap:
    """The URIs of one mounted server that are different outside, because another server has them too."""

    def __init__(self, label: str) -> None:
        self._scheme = make_scheme(label)
        self._uris: set[str] = set()
        self._templates: dict[str, Callable[[str], object]] = {}

    def __bool__(self) -> bool:
        return bool(self._uris or self._templates)

    def rename(self, uri: str, *, is_template: bool) -> str:
        """Record that a URI, or a template and all that it matches, is different outside; return it."""
        if is_template:
            self._templates.setdefault(uri, UriTemplate(uri).match)
        else:
            self._uris.add(uri)
        return add_scheme(self._scheme, uri)

    def is_renamed(self, uri: str) -> bool:
        """Return whether a URI or a template is different outside."""
        return uri in self._uris or uri in self._templates

    def to_outside(self, uri: str) -> str:
        """Return a URI of the server as clients know it."""
        matches = (match(uri) is not None for match in self._templates.values())
        return add_scheme(self._scheme, uri) if uri in self._uris or any(matches) else uri

    def to_inside(self, uri: str) -> str:
        """Return a URI that a client has sent as the server knows it."""
        if not self:
            return uri
        app = f"{_APP_SCHEME}{self._scheme}/"
        if uri.startswith(app):
            return _APP_SCHEME + uri.removeprefix(app)
        return uri.removeprefix(f"{self._scheme}+")

    def rewrite_item(self, item: Raw) -> Raw:
        """Return a list item with its URIs as clients know them."""
        return self._rewrite(item, ("_meta",))

    def rewrite_result(self, raw: bytes) -> bytes:
        """Return a result with the URIs in its contents, links and messages as clients know them."""
        return self._rewrite(Raw(raw), ("contents", "content", "messages", "_meta"))

    def _rewrite(self, raw: Raw, members: Iterable[str]) -> Raw:
        value: Any = _JSON(raw)
        for member in members:
            if member in value:
                _walk(value[member], self.to_outside)
        return Raw(jsonrpc.encode(value))


_URI_MEMBERS: Final = ("uri", "resourceUri", "ui/resourceUri")


def _walk(value: Any, change: Callable[[str], str]) -> None:
    """Change every URI in a value of JSON, in place."""
    if isinstance(value, list):
        list(map(partial(_walk, change=change), cast("list[Any]", value)))
    elif isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        for name, member in members.items():
            if name in _URI_MEMBERS and isinstance(member, str):
                members[name] = change(member)
            else:
                _walk(member, change)
