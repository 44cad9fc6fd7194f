"""Resources: what a server lets a client read, by URI or by template.

How a template is matched is told in `toolpost.protocol.uri`.
"""

from msgspec import field

from toolpost.types.base import Annotations, Icon, Meta, Params, Wire
from toolpost.types.content import ResourceContents
from toolpost.types.inputs import AnswerParams
from toolpost.types.lifecycle import Cacheable, Page

__all__ = [
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ReadResourceParams",
    "ReadResourceResult",
    "Resource",
    "ResourceTemplate",
    "SubscribeParams",
]


class Resource(Wire):
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


class ResourceTemplate(Wire):
    """Many things that can be read, told by one URI template (RFC 6570)."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListResourcesResult(Page):
    """One page of the resources."""

    resources: list[Resource]


class ListResourceTemplatesResult(Page):
    """One page of the resource templates."""

    resource_templates: list[ResourceTemplate]


class ReadResourceParams(AnswerParams):
    """Which resource is wanted."""

    uri: str


class ReadResourceResult(Cacheable):
    """What a resource holds, in one part or several."""

    contents: list[ResourceContents]


class SubscribeParams(Params):
    """Which resource is to be watched, or no longer (session era)."""

    uri: str
