"""Resources: what a server lets a client read, by URI or by template.

How a template is matched is told in `toolpost.protocol.uri_template`.
"""

from msgspec import field

from toolpost.types.base import Annotations, Icon, InputResponseParams, Meta, Params, WireStruct
from toolpost.types.content import ResourceContents
from toolpost.types.initialize import CacheableResult, PaginatedResult

__all__ = [
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ReadResourceParams",
    "ReadResourceResult",
    "Resource",
    "ResourceTemplate",
    "SubscribeParams",
]


class Resource(WireStruct):
    """Something that can be read."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ResourceTemplate(WireStruct):
    """Many things that can be read, told by one URI template (RFC 6570)."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListResourcesResult(PaginatedResult):
    """One page of the resources."""

    resources: list[Resource]


class ListResourceTemplatesResult(PaginatedResult):
    """One page of the resource templates."""

    resource_templates: list[ResourceTemplate]


class ReadResourceParams(InputResponseParams):
    """Which resource is wanted."""

    uri: str


class ReadResourceResult(CacheableResult):
    """What a resource holds, in one part or several."""

    contents: list[ResourceContents]


class SubscribeParams(Params):
    """Which resource is to be watched, or no longer (session era)."""

    uri: str
