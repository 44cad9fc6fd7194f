"""Content blocks of tools, prompts and models.

`Content` is an open union: a block of an unknown kind becomes an `UnknownContent`, which keeps the raw block.
"""

from abc import ABC
from typing import TYPE_CHECKING, Final, Self, TypeAlias, Union, cast

from msgspec import UNSET, convert

from toolpost.types.base import JSON, Annotations, Icon, MetaStruct, OpenUnion, UnknownKind, Unset, dec_hook

__all__ = [
    "CONTENT_TYPES", "AudioContent", "Blocks", "Content", "EmbeddedResource", "ImageContent",
    "ResourceContents", "ResourceLink", "TextContent", "ToolResultContent", "ToolUseContent",
    "UnknownContent",
]  # fmt: skip


class Content(OpenUnion):
    """A content block of any kind; narrow it with `isinstance` or `match`.

    Examples:
        >>> block: Content = TextContent("hello")
        >>> isinstance(block, TextContent)
        True
    """

    __slots__ = ()

    @classmethod
    def read(cls, value: JSON) -> Self:
        """Return the block for decoded JSON."""
        members = cast("dict[str, JSON]", value) if isinstance(value, dict) else {}
        tag = members.get("type")
        if not isinstance(tag, str):
            raise ValueError("Expected a content block: an object with a `type`")  # noqa: TRY004 - for msgspec
        kind = CONTENT_TYPES.get(tag)
        block = UnknownContent(members) if kind is None else convert(members, kind, dec_hook=dec_hook)
        return cast("Self", block)


class UnknownContent(UnknownKind, Content):
    """A block of a kind that this library does not know. `raw` is the whole block."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """The kind, as the peer named it."""
        return self.raw["type"]


class _ContentBlock(MetaStruct, Content, tag_field="type", kw_only=True): ...


class TextContent(_ContentBlock, tag="text"):
    """Text for the model or the user.

    Examples:
        >>> TextContent("hello").text
        'hello'
    """

    text: str
    annotations: Annotations | None = None


class ImageContent(_ContentBlock, tag="image"):
    """An image; `data` is base64.

    Examples:
        >>> ImageContent("iVBORw0KGgo=", "image/png").mime_type
        'image/png'
    """

    data: str
    mime_type: str
    annotations: Annotations | None = None


class AudioContent(_ContentBlock, tag="audio"):
    """An audio clip; `data` is base64.

    Examples:
        >>> AudioContent("T2dnUw==", "audio/ogg").mime_type
        'audio/ogg'
    """

    data: str
    mime_type: str
    annotations: Annotations | None = None


class ResourceLink(_ContentBlock, tag="resource_link"):
    """A link to a resource that the client may read.

    Examples:
        >>> ResourceLink("notes://pen", "notes").uri
        'notes://pen'
    """

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None


class ResourceContents(MetaStruct):
    """The contents of a resource: `text`, or `blob` in base64.

    Examples:
        >>> ResourceContents("notes://pen", text="Blue, with a cap.").text
        'Blue, with a cap.'
    """

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class EmbeddedResource(_ContentBlock, tag="resource"):
    """A resource with its contents.

    Examples:
        >>> EmbeddedResource(ResourceContents("notes://pen", text="Blue, with a cap.")).resource.uri
        'notes://pen'
    """

    resource: ResourceContents
    annotations: Annotations | None = None


class ToolUseContent(_ContentBlock, tag="tool_use"):
    """A tool call that a model asks for (sampling with tools)."""

    id: str
    name: str
    input: dict[str, JSON]


class ToolResultContent(_ContentBlock, tag="tool_result"):
    """The result of a tool call, for the model (sampling with tools)."""

    tool_use_id: str
    content: list[Content]
    structured_content: JSON | Unset = UNSET
    is_error: bool | None = None


CONTENT_TYPES: Final[dict[str, type[Content]]] = {
    str(kind.__struct_config__.tag): kind for kind in _ContentBlock.__subclasses__()
}

if TYPE_CHECKING:
    KnownContent: TypeAlias = Content
    """A block of a known kind. Decode it as `Content` if this fails."""

    Blocks: TypeAlias = Content | list[Content]
    """One block, or several."""
else:
    # msgspec decodes a union of structs without a hook, which is much faster than an open union.
    KnownContent = Union[tuple(CONTENT_TYPES.values())]  # noqa: UP007 - of types that are computed

    class Blocks(OpenUnion, ABC):
        """One block, or several. A class at run time: msgspec has no union of a custom type and a list."""

        @classmethod
        def read(cls, value: JSON) -> Content | list[Content]:
            """Return the block, or the list of blocks."""
            many = isinstance(value, list)
            return convert(value, list[Content], dec_hook=dec_hook) if many else Content.read(value)

    Blocks.register(Content)
    Blocks.register(list)
