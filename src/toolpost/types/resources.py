"""Resources, which a client reads by URI, and resource templates.

`toolpost.protocol.uri_template` matches URIs with templates.
"""

from toolpost.types.base import Annotations, Icon, InputResponseParams, MetaStruct, Params
from toolpost.types.content import ResourceContents
from toolpost.types.initialize import CacheableResult, PaginatedResult

__all__ = [
    "ListResourceTemplatesResult", "ListResourcesResult", "ReadResourceParams", "ReadResourceResult",
    "Resource", "ResourceTemplate", "SubscribeParams",
]  # fmt: skip


class Resource(MetaStruct):
    """An entry in the list of resources."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None


class ResourceTemplate(MetaStruct):
    """A set of resources, described by one URI template (RFC 6570)."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None


class ListResourcesResult(PaginatedResult):
    """One page of the resources."""

    resources: list[Resource]


class ListResourceTemplatesResult(PaginatedResult):
    """One page of the resource templates."""

    resource_templates: list[ResourceTemplate]


class ReadResourceParams(InputResponseParams):
    """The parameters of `resources/read`."""

    uri: str


class ReadResourceResult(CacheableResult):
    """The contents of a resource, in one part or several."""

    contents: list[ResourceContents]


class SubscribeParams(Params):
    """The parameters of `resources/subscribe` and `resources/unsubscribe` (session era)."""

    uri: str
