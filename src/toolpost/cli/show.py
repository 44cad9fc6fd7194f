"""How what a server says is shown: blocks of content, results of tools.

Owns which form suits what: text as it is, structured results as tables, pictures and sounds as files. Where
it is written to is told in `page`, what files are called in `folder`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from toolpost.cli.folder import Folder, decoded
from toolpost.cli.page import Page
from toolpost.types.base import UNSET
from toolpost.types.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

if TYPE_CHECKING:
    from toolpost.client.results import ToolResult

__all__ = ["as_json", "show_blocks", "show_result", "size_of"]


def show_result(page: Page, result: "ToolResult[Any]", folder: Folder) -> None:
    """Print what a tool said. Text that repeats the structured result is left out."""
    blocks = result.content
    if result.structured_content is not UNSET:
        page.data(result.data)
        same = (result.structured_content, result.data)
        blocks = [block for block in blocks if not (isinstance(block, TextContent) and _json(block) in same)]
    show_blocks(page, blocks, folder)


def _json(block: TextContent) -> Any:
    """The JSON in a text; the text itself if there is none."""
    try:
        return msgspec.json.decode(block.text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return block.text


def show_blocks(page: Page, blocks: Iterable[Content], folder: Folder) -> None:
    """Print content, one block after the other."""
    for block in blocks:
        match block:
            case TextContent(text=text):
                _text(page, text)
            case ImageContent(data=data, mime_type=mime) | AudioContent(data=data, mime_type=mime):
                _file(page, data, mime, folder)
            case EmbeddedResource(resource=resource) if resource.blob is not None:
                _file(page, resource.blob, resource.mime_type, folder)
            case EmbeddedResource(resource=resource):
                _text(page, resource.text or "")
            case ResourceLink():
                about = block.title or block.description
                page.say(f"{block.uri}  {block.name}{f': {about}' if about else ''}")
            case _:
                page.data(block)


def _text(page: Page, text: str) -> None:
    page.raw(text if text.endswith("\n") else f"{text}\n")


def _file(page: Page, data: str, mime: str | None, folder: Folder) -> None:
    content = decoded(data, f"content of type {mime}")
    path = folder.save(content, mime)
    page.say(f"Saved {path} ({mime or 'of unknown type'}, {size_of(len(content))})")


def size_of(count: int) -> str:
    """A number of bytes, for people."""
    return f"{count} bytes" if count < 10_000 else f"{count / 1000:.0f} kB"


# --------------------------------------------------------------------- for programs


def as_json(raw: bytes | None, folder: Folder | None) -> Any:
    """A result as it came over the wire; with a folder, what belongs into files is saved there."""
    value = msgspec.json.decode(raw or b"{}")
    return value if folder is None else _saved(value, folder)


def _saved(value: Any, folder: Folder) -> Any:
    """A piece of JSON in which each picture, sound or blob is the path of a file that it was saved to."""
    match value:
        case {"type": "image" | "audio", "data": str(data)}:
            return _elsewhere(value, "data", data, folder)
        case {"uri": str(), "blob": str(data)}:
            return _elsewhere(value, "blob", data, folder)
        case dict():
            members = cast("dict[str, Any]", value)
            return {key: _saved(member, folder) for key, member in members.items()}
        case list():
            return [_saved(member, folder) for member in cast("list[Any]", value)]
        case _:
            return value


def _elsewhere(value: dict[str, Any], key: str, data: str, folder: Folder) -> dict[str, Any]:
    mime = value.get("mimeType")
    path = folder.save(decoded(data, f"content of type {mime}"), mime if isinstance(mime, str) else None)
    return {name: member for name, member in value.items() if name != key} | {"savedTo": str(path)}
