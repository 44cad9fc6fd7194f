"""A function as a resource, or as a resource template: its list item, and how it is read.

The value of the function becomes contents here: text, bytes, JSON. Subscriptions are not known here.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from typing import Any, Final, ParamSpec, TypeVar, cast

from toolpost.errors import ResourceNotFound, ToolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.local_peer import check_icons
from toolpost.protocol.uri_template import UriTemplate
from toolpost.server.context import Context
from toolpost.server.registry.media import Media
from toolpost.server.registry.prompts import CompletableEntry, ItemT
from toolpost.types.content import ResourceContents
from toolpost.types.resources import ReadResourceResult, Resource, ResourceTemplate

# A scheme by RFC 3986, or one that a variable fills in; `{+name}` could be anything.
_SCHEME_PATTERN: Final = re.compile(r"(?:[A-Za-z]|\{\w+\})(?:[A-Za-z0-9+.-]|\{\w+\})*:")

P = ParamSpec("P")
R = TypeVar("R")


def parse_uri_template(uri: Any) -> UriTemplate:
    """Return the template of a URI, with or without variables. Raises TypeError or ValueError."""
    if not isinstance(uri, str):
        example = '@server.resource("config://app")'
        raise TypeError(f"{uri!r} is no URI; give the URI: {example}")
    template = UriTemplate(uri)
    if _SCHEME_PATTERN.match(uri) is None:
        raise ValueError(
            f"{uri!r} is no URI: it has to begin with a scheme, as in {'config://' + uri.lstrip('/')!r}"
        )
    return template


class RegisteredResource(CompletableEntry[P, R, Resource]):
    """A resource of a server; its function takes no arguments but a context."""

    @property
    def resource(self) -> Resource:
        """The list item."""
        return self._item

    def update(self, **changes: Any) -> None:
        """Change what the list shows, such as `title=` or `description=`."""
        self._item = _apply_changes(self._item, changes)
        self._registry.mark_changed()

    async def read(self, context: Context, uri: str) -> ReadResourceResult:
        """Read the resource."""
        value = await self._worker_threads.run(self._bound, self._bound.read_strings({}), context)
        return to_read_result(value, uri, self._item.mime_type)


class RegisteredTemplate(CompletableEntry[P, R, ResourceTemplate]):
    """A resource template; its variables are the arguments of the function."""

    @property
    def template(self) -> ResourceTemplate:
        """The list item."""
        return self._item

    def update(self, **changes: Any) -> None:
        """Change what the list shows, such as `title=` or `description=`."""
        self._item = _apply_changes(self._item, changes)
        self._registry.mark_changed()

    @cached_property
    def match(self) -> Callable[[str], Mapping[str, Any] | None]:
        """A function that returns the arguments in a URI; None if it does not match."""
        return UriTemplate(self.name).match

    async def read(self, context: Context, uri: str, values: Mapping[str, Any]) -> ReadResourceResult:
        """Read the resource with these arguments. Raises ResourceNotFound if they do not fit."""
        try:
            arguments = self._bound.read_strings(values)
        except ToolError as error:
            raise ResourceNotFound(f"Resource not found: {uri} ({error})", {"uri": uri}) from error
        value = await self._worker_threads.run(self._bound, arguments, context)
        return to_read_result(value, uri, self._item.mime_type)


def _apply_changes(item: ItemT, changes: Mapping[str, Any]) -> ItemT:
    changed = copy(item)
    for name, value in changes.items():
        if name not in item.__struct_fields__ or name in {"uri", "uri_template"}:
            raise TypeError(f"{type(item).__name__} has no {name!r} that could be changed")
        setattr(changed, name, value)
    check_icons(changed.icons)
    return changed


def to_read_result(value: Any, uri: str, mime_type: str | None) -> ReadResourceResult:
    """Return the result of reading a resource, from the value of its function."""
    if isinstance(value, ReadResourceResult):
        return value
    items: list[Any] = value if _is_contents_list(value) else [value]
    return ReadResourceResult(contents=[_to_contents(item, uri, mime_type) for item in items])


def _is_contents_list(value: Any) -> bool:
    """Return whether a value is a list of contents, and not one JSON array."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, ResourceContents | Media | bytes) for item in cast("list[Any]", value))


def _to_contents(value: Any, uri: str, mime_type: str | None) -> ResourceContents:
    if isinstance(value, ResourceContents):
        return value
    if isinstance(value, str):
        return ResourceContents(uri, text=value, mime_type=mime_type or "text/plain")
    if isinstance(value, bytes):
        blob = b64encode(value).decode()
        return ResourceContents(uri, blob=blob, mime_type=mime_type or "application/octet-stream")
    if isinstance(value, Media):
        blob = b64encode(value.read()).decode()
        return ResourceContents(uri, blob=blob, mime_type=mime_type or value.mime_type)
    text = jsonrpc.encode(value).decode()
    return ResourceContents(uri, text=text, mime_type=mime_type or "application/json")
