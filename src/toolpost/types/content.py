"""The blocks that tools, prompts and models speak in.

`Content` is an open kind: a block of a kind that we do not know becomes an `UnknownContent`, which keeps
the raw block and writes it back as it came.
"""

from abc import ABC
from typing import TYPE_CHECKING, Final, Self, TypeAlias, Union, cast

from msgspec import UNSET, convert, field

from toolpost.types.base import JSON, Annotations, Icon, Meta, OpenUnion, Unset, WireStruct, dec_hook

__all__ = [
    "CONTENT_TYPES",
    "AudioContent",
    "Blocks",
    "Content",
    "EmbeddedResource",
    "ImageContent",
    "ResourceContents",
    "ResourceLink",
    "TextContent",
    "ToolResultContent",
    "ToolUseContent",
    "UnknownContent",
]


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
        """The block for a piece of decoded JSON."""
        members = cast("dict[str, JSON]", value) if isinstance(value, dict) else {}
        tag = members.get("type")
        if not isinstance(tag, str):
            raise ValueError("Expected a content block: an object with a `type`")  # noqa: TRY004 - for msgspec
        kind = CONTENT_TYPES.get(tag)
        block = UnknownContent(members) if kind is None else convert(members, kind, dec_hook=dec_hook)
        return cast("Self", block)


class UnknownContent(Content):
    """A block of a kind that this library does not know. `raw` is the whole block."""

    __slots__ = ("raw",)

    def __init__(self, raw: dict[str, JSON]) -> None:
        self.raw = raw

    @property
    def type(self) -> str:
        """The kind, as the peer named it."""
        return self.raw["type"]

    def write(self) -> JSON:
        """The block as it came."""
        return self.raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownContent) and self.raw == other.raw

    __hash__ = None  # pyright: ignore[reportAssignmentType] - the raw block is mutable, as a dict is

    def __repr__(self) -> str:
        return f"UnknownContent({self.raw!r})"


class _ContentBlock(WireStruct, Content, tag_field="type", kw_only=True):
    meta: Meta | None = field(name="_meta", default=None)


class TextContent(_ContentBlock, tag="text"):
    """Text for the model or the user.

    Examples:
        >>> TextContent("hello").text
        'hello'
    """

    text: str
    annotations: Annotations | None = None


class ImageContent(_ContentBlock, tag="image"):
    """A picture; `data` is base64.

    Examples:
        >>> ImageContent("iVBORw0KGgo=", "image/png").mime_type
        'image/png'
    """

    data: str
    mime_type: str
    annotations: Annotations | None = None


class AudioContent(_ContentBlock, tag="audio"):
    """A sound; `data` is base64.

    Examples:
        >>> AudioContent("T2dnUw==", "audio/ogg").mime_type
        'audio/ogg'
    """

    data: str
    mime_type: str
    annotations: Annotations | None = None


class ResourceLink(_ContentBlock, tag="resource_link"):
    """A pointer to a resource that the client may read.

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


class ResourceContents(WireStruct):
    """What a resource holds: `text`, or `blob` in base64.

    Examples:
        >>> ResourceContents("notes://pen", text="Blue, with a cap.").text
        'Blue, with a cap.'
    """

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class EmbeddedResource(_ContentBlock, tag="resource"):
    """A resource, contents included.

    Examples:
        >>> EmbeddedResource(ResourceContents("notes://pen", text="Blue, with a cap.")).resource.uri
        'notes://pen'
    """

    resource: ResourceContents
    annotations: Annotations | None = None


class ToolUseContent(_ContentBlock, tag="tool_use"):
    """A model wants to call a tool (sampling with tools)."""

    id: str
    name: str
    input: dict[str, JSON]


class ToolResultContent(_ContentBlock, tag="tool_result"):
    """What the tool said, told to the model (sampling with tools)."""

    tool_use_id: str
    content: list[Content]
    structured_content: JSON | Unset = UNSET
    is_error: bool | None = None


CONTENT_TYPES: Final[dict[str, type[Content]]] = {
    "text": TextContent,
    "image": ImageContent,
    "audio": AudioContent,
    "resource_link": ResourceLink,
    "resource": EmbeddedResource,
    "tool_use": ToolUseContent,
    "tool_result": ToolResultContent,
}

if TYPE_CHECKING:
    KnownContent: TypeAlias = Content
    """A block of a kind that we know. If that cannot be decoded, decode it as `Content`."""

    Blocks: TypeAlias = Content | list[Content]
    """One block, or several."""
else:
    # msgspec decodes these without calling us, which is much faster than an open kind.
    KnownContent = Union[tuple(CONTENT_TYPES.values())]  # noqa: UP007 - of types that are computed

    class Blocks(OpenUnion, ABC):
        """One block, or several. A class at run time: msgspec has no union of an open kind and a list."""

        @classmethod
        def read(cls, value: JSON) -> Content | list[Content]:
            """The block, or the list of blocks."""
            many = isinstance(value, list)
            return convert(value, list[Content], dec_hook=dec_hook) if many else Content.read(value)

    Blocks.register(Content)
    Blocks.register(list)
