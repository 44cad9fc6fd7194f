"""A function as a resource, or as a resource template: its list item, and how it is read.

Converts the value of the function to contents: text, bytes, JSON.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, ParamSpec, TypeVar, cast

from toolpost.errors import ResourceNotFound, ToolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.uri_template import UriTemplate
from toolpost.server.context import Context
from toolpost.server.registry.media import Media
from toolpost.server.registry.prompts import CompletableEntry
from toolpost.server.signature.function_schema import BoundFunction
from toolpost.types.content import ResourceContents
from toolpost.types.resources import ReadResourceParams, ReadResourceResult, Resource, ResourceTemplate

# A scheme by RFC 3986, or one that a variable fills in; `{+name}` could be anything.
_SCHEME_PATTERN: Final = re.compile(r"(?:[A-Za-z]|\{\w+\})(?:[A-Za-z0-9+.-]|\{\w+\})*:")

P = ParamSpec("P")
R = TypeVar("R")
ReadableT = TypeVar("ReadableT", Resource, ResourceTemplate)


def check_variables(bound: BoundFunction, template: UriTemplate) -> None:
    """Raise unless the variables of a template are the parameters of its function."""
    if template.unmatchable:
        raise ValueError(template.unmatchable)
    parameters = {parameter.name: parameter for parameter in bound.parameters}
    unknown = [name for name in template.variables if name not in parameters]
    if unknown:
        raise TypeError(f"{bound.name}() has no parameter for {', '.join(unknown)} in {template.text!r}")
    missing = [p.name for p in bound.parameters if p.required and p.name not in template.variables]
    if missing:
        raise TypeError(
            f"the parameters {', '.join(missing)} of {bound.name}() are not in {template.text!r}; "
            "add them or give them defaults"
        )


def parse_uri_template(uri: Any) -> UriTemplate:
    """Return the template of a URI, with or without variables. Raises TypeError or ValueError."""
    if not isinstance(uri, str):
        example = '@server.resource("config://app")'
        raise TypeError(f"{uri!r} is not a URI; pass one, as in {example}")
    template = UriTemplate(uri)
    if _SCHEME_PATTERN.match(uri) is None:
        raise ValueError(
            f"{uri!r} is not a URI: it must start with a scheme, as in {'config://' + uri.lstrip('/')!r}"
        )
    return template


class _ReadableEntry(CompletableEntry[P, R, ReadableT]):
    def update(self, **changes: Any) -> None:
        """Change fields of the list item, such as `title=`; None leaves a field as it is."""
        kind = type(self._item)
        for name in changes:
            if name not in kind.__struct_fields__ or name == self.key:
                raise TypeError(f"{kind.__name__} has no field {name!r} that can be changed")
        self._change_item(**changes)

    async def _read(self, context: Context, uri: str, variables: Mapping[str, Any]) -> ReadResourceResult:
        try:
            arguments = self.bound.read_strings(variables)
        except ToolError as error:
            raise ResourceNotFound(f"Resource not found: {uri} ({error})", {"uri": uri}) from error
        value = await self._threads.run(self.bound, arguments, context)
        return to_read_result(value, uri, self._item.mime_type)


class RegisteredResource(_ReadableEntry[P, R, Resource]):
    """A resource of a server; its function takes no arguments but a context."""

    key = "uri"

    @property
    def resource(self) -> Resource:
        """The list item."""
        return self._item

    async def serve(self, context: Context, params: ReadResourceParams) -> ReadResourceResult:
        """Read the resource."""
        return await self._read(context, params.uri, {})


class RegisteredTemplate(_ReadableEntry[P, R, ResourceTemplate]):
    """A resource template; its variables are the arguments of the function."""

    key = "uri_template"

    @property
    def template(self) -> ResourceTemplate:
        """The list item."""
        return self._item

    @cached_property
    def match(self) -> Callable[[str], Mapping[str, Any] | None]:
        """Returns the arguments in a URI; None if the URI does not match."""
        return UriTemplate(self.name).match

    async def serve(self, context: Context, params: ReadResourceParams) -> ReadResourceResult:
        """Read the resource of a URI. Raises ResourceNotFound if its arguments are not valid."""
        return await self._read(context, params.uri, self.match(params.uri) or {})


def to_read_result(value: Any, uri: str, mime_type: str | None) -> ReadResourceResult:
    """Return the result of reading a resource, from the value of its function."""
    if isinstance(value, ReadResourceResult):
        return value
    items: list[Any] = cast("list[Any]", value) if isinstance(value, list) and value else [value]
    if not all(isinstance(item, ResourceContents | Media | bytes) for item in items):
        items = [value]  # any other list is one JSON array
    return ReadResourceResult(contents=[_to_contents(item, uri, mime_type) for item in items])


def _to_contents(value: Any, uri: str, mime_type: str | None) -> ResourceContents:
    if isinstance(value, ResourceContents):
        return value
    if isinstance(value, str):
        return ResourceContents(uri, text=value, mime_type=mime_type or "text/plain")
    if isinstance(value, bytes):
        blob = b64encode(value).decode()
        return ResourceContents(uri, blob=blob, mime_type=mime_type or "application/octet-stream")
    if isinstance(value, Media):
        return value.to_contents(uri, mime_type or value.mime_type)
    text = jsonrpc.encode(value).decode()
    return ResourceContents(uri, text=text, mime_type=mime_type or "application/json")
