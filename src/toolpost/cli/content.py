"""How content of a server is shown: text as it is, structured results as tables, binary content as files.

Names of files come from the user and never from the server, and no file is overwritten.
"""

import base64
import binascii
import mimetypes
import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from toolpost.cli.errors import FAILED, CommandError, usage_error
from toolpost.cli.output import CommandOutput
from toolpost.client.tools import ToolResult
from toolpost.types.base import UNSET
from toolpost.types.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

_UNSAFE_CHARACTERS: Final = re.compile(r"[^\w.-]+")

_FILE_EXTENSIONS: Final = {
    "image/jpeg": ".jpg",
    "image/webp": ".webp",
    "audio/wav": ".wav",
    "audio/x-wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/flac": ".flac",
    "text/plain": ".txt",
    "text/markdown": ".md",
}
"""What Python's own table lacks, or has several of."""


def decode_base64(text: str, what: str) -> bytes:
    """The bytes that base64 stands for."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CommandError(f"{what} is no base64, and cannot be saved: {error}", FAILED) from error


class OutputFolder:
    """Where files are saved."""

    def __init__(self, path: Path, stem: str) -> None:
        self._path = path
        # Neither a path nor hidden, whatever somebody has typed.
        self._stem = _UNSAFE_CHARACTERS.sub("_", stem).strip("._") or "saved"

    def save(self, data: bytes, mime: str | None) -> Path:
        """The path of a new file with this data."""
        ending = _guess_extension(mime)
        stem = self._stem.removesuffix(ending)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            for number in count():
                path = self._path / f"{stem}{f'-{number}' if number else ''}{ending}"
                try:
                    with path.open("xb") as file:
                        file.write(data)
                except FileExistsError:
                    continue
                return path
        except OSError as error:
            text = f"{self._path} cannot be written to: {error.strerror or error}"
            raise usage_error(text, "--save DIR names another folder") from error
        raise AssertionError("a number is always free")


def _guess_extension(mime: str | None) -> str:
    kind = (mime or "").partition(";")[0].strip().lower()
    return _FILE_EXTENSIONS.get(kind) or mimetypes.guess_extension(kind) or ".bin"


def show_result(page: CommandOutput, result: ToolResult[Any], folder: OutputFolder) -> None:
    """Print what a tool said. Text that repeats the structured result is left out."""
    blocks = result.content
    if result.structured_content is not UNSET:
        page.print_value(result.data)
        same = (result.structured_content, result.data)
        blocks = [each for each in blocks if _decode_json(each) not in same]
    show_blocks(page, blocks, folder)


def _decode_json(block: Content) -> Any:
    """The JSON in a text; the text itself if there is none; anything else as it is."""
    if not isinstance(block, TextContent):
        return block
    try:
        return msgspec.json.decode(block.text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return block.text


def show_blocks(page: CommandOutput, blocks: Iterable[Content], folder: OutputFolder) -> None:
    """Print content, one block after the other."""
    for block in blocks:
        match block:
            case TextContent(text=text):
                page.print_raw(text if text.endswith("\n") else f"{text}\n")
            case ImageContent(data=data, mime_type=mime) | AudioContent(data=data, mime_type=mime):
                _save_block(page, data, mime, folder)
            case EmbeddedResource(resource=resource) if resource.blob is not None:
                _save_block(page, resource.blob, resource.mime_type, folder)
            case EmbeddedResource(resource=resource):
                show_blocks(page, [TextContent(resource.text or "")], folder)
            case ResourceLink():
                about = block.title or block.description
                page.print_text(f"{block.uri}  {block.name}{f': {about}' if about else ''}")
            case _:
                page.print_value(block)


def _save_block(page: CommandOutput, data: str, mime: str | None, folder: OutputFolder) -> None:
    save_content(page, decode_base64(data, f"content of type {mime}"), mime, folder)


def save_content(
    page: CommandOutput, data: bytes, mime: str | None, folder: OutputFolder, *, text: bool = False
) -> None:
    """Save content to a file, and say so. `text` is for text of unknown type."""
    path = folder.save(data, mime or ("text/plain" if text else None))
    size = f"{len(data)} bytes" if len(data) < 10_000 else f"{len(data) / 1000:.0f} kB"
    page.print_text(f"Saved {path} ({mime or 'of unknown type'}, {size})")


def convert_result(raw: bytes | None, folder: OutputFolder | None) -> Any:
    """A result as it came over the wire; with a folder, what belongs into files is saved there."""
    value = msgspec.json.decode(raw or b"{}")
    return value if folder is None else _save_binaries(value, folder)


def _save_binaries(value: Any, folder: OutputFolder) -> Any:
    """A piece of JSON in which each picture, sound or blob is the path of a file that it was saved to."""
    match value:
        case {"type": "image" | "audio", "data": str(data)}:
            return _replace_data_by_path(value, "data", data, folder)
        case {"uri": str(), "blob": str(data)}:
            return _replace_data_by_path(value, "blob", data, folder)
        case dict():
            members = cast("dict[str, Any]", value)
            return {key: _save_binaries(member, folder) for key, member in members.items()}
        case list():
            return [_save_binaries(member, folder) for member in cast("list[Any]", value)]
        case _:
            return value


def _replace_data_by_path(value: dict[str, Any], key: str, data: str, folder: OutputFolder) -> dict[str, Any]:
    mime = value.get("mimeType")
    content = decode_base64(data, f"content of type {mime}")
    path = folder.save(content, mime if isinstance(mime, str) else None)
    return {name: member for name, member in value.items() if name != key} | {"savedTo": str(path)}
