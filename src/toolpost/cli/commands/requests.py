"""The commands that send a request and print the result: `call`, `prompt` and `read`.

The arguments of a tool or a prompt are options, made by `schema_options`. Text is printed unchanged,
structured results as tables; binary content is saved to files. Names of files come from the user and never
from the server, and no file is overwritten.
"""

import base64
import binascii
import mimetypes
import re
import sys
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import click
import msgspec

from toolpost import types
from toolpost.cli.errors import FAILED, OK, CommandError, usage_error
from toolpost.cli.output import CommandOutput, find_unused_path
from toolpost.cli.schema_options import NamedItemCommand, read_item
from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.cli.terminal import LOG_LEVEL_STYLES, TerminalPrompter, add_log_level_option, format_log_line
from toolpost.client.client import Client
from toolpost.client.tools import ToolResult
from toolpost.errors import UrlElicitationRequired

MAX_URL_ELICITATIONS: Final = 3  # pages that a server may require the user to visit before one call
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
"""Types that Python's own table lacks, or has several extensions for."""


@click.command("call", cls=NamedItemCommand, kind="tool")
@click.option(
    "--root",
    "roots",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Expose this folder to the server.",
)
@click.option("--task", "as_task", is_flag=True, help="Call it as a task that outlives this command.")
@add_log_level_option
def call_command(
    *,
    target: TargetConnector,
    save: str | None,
    roots: tuple[str, ...],
    as_task: bool,
    log_level: Any,
    **words: Any,
) -> int:
    """Call a tool.

    Pass the parameters of TOOL as options after its name: toolpost call TARGET TOOL --help lists them. The
    options below go before TOOL. Repeat an option to pass a list, use --address.city for a member of an
    object, and pass anything else as JSON. On a terminal, toolpost prompts for missing parameters.
    """
    with closing(TerminalPrompter(target)) as prompter:

        async def log(line: types.LogParams) -> None:
            prompter.progress.print_note(format_log_line(line), style=LOG_LEVEL_STYLES.get(line.level))

        async def work(client: Client) -> int:
            tool, arguments, options = await read_item(client, prompter, **words)
            if log_level is not None:
                await client.set_log_level(log_level)
            if as_task:
                result = await _run_task(client, tool, arguments, prompter)
            else:
                result = await _call_tool(client, tool, arguments, prompter)
            prompter.progress.close()
            print_result(target, tool, result, options.get("save") or save)
            return FAILED if result.is_error else OK

        return target.run(work, on_log=log, on_roots=roots or None, **prompter.client_options())


async def _call_tool(
    client: Client, name: str, arguments: dict[str, Any], prompter: TerminalPrompter
) -> ToolResult[Any]:
    """Call a tool, again after the user has visited the pages that the server requires."""
    progress = prompter.progress.show_progress
    visits = 0
    while True:
        try:
            return await client.call_tool(name, arguments, progress=progress, raise_on_error=False)
        except UrlElicitationRequired as error:
            visits += 1
            visited = partial(prompter.confirm_url_visits, error.elicitations)
            if visits > MAX_URL_ELICITATIONS or not await prompter.threads.run_in_thread(visited):
                raise


async def _run_task(
    client: Client, name: str, arguments: dict[str, Any], prompter: TerminalPrompter
) -> ToolResult[Any]:
    """Call a tool as a task, and wait for it; the task goes on if this command is interrupted."""
    from toolpost.cli.commands.tasks import wait_for_task  # noqa: PLC0415 - it imports this module

    task = await client.start_task(name, arguments, raise_on_error=False)
    if task.id:
        prompter.progress.print_note(f"task {task.id}; to wait for it again: toolpost tasks result")
    return await wait_for_task(task, prompter)


def print_result(target: TargetConnector, name: str, result: ToolResult[Any], save: str | None) -> None:
    """Print the result of a tool, without text that repeats the structured result."""
    folder = OutputFolder(Path(save or "."), name)
    if target.output.json:
        target.output.print_value(convert_result(result.raw, folder if save else None))
    elif result.is_error:
        hint = "use -v to show the server's stderr" if target.hidden_line_count else None
        raise CommandError(result.text or f"{name} failed without a message", FAILED, hint=hint)
    else:
        blocks = result.content
        if result.structured_content is not types.UNSET:
            target.output.print_value(result.data)
            same = (result.structured_content, result.data)
            blocks = [each for each in blocks if _decode_json(each) not in same]
        show_blocks(target.output, blocks, folder)


@click.command("prompt", cls=NamedItemCommand, kind="prompt")
def prompt_command(*, target: TargetConnector, name: str | None, args: str | None, save: str | None) -> None:
    """Fill in a prompt and print its messages.

    Pass the arguments of PROMPT as options after its name: toolpost prompt TARGET PROMPT --help lists them.
    On a terminal, toolpost prompts for missing arguments.
    """
    with closing(TerminalPrompter(target)) as prompter:

        async def work(client: Client) -> None:
            prompt, arguments, options = await read_item(client, prompter, name, args)
            progress = prompter.progress.show_progress
            result = await client.get_prompt(prompt, arguments, progress=progress)
            prompter.progress.close()
            save_to = options.get("save") or save
            folder = OutputFolder(Path(save_to or "."), prompt)
            if target.output.json:
                target.output.print_value(convert_result(result.raw, folder if save_to else None))
                return
            for number, message in enumerate(result.messages):
                if number:
                    target.output.print_text()
                target.output.print_text(f"{message.role}:", style="bold")
                show_blocks(target.output, [message.content], folder)

        target.run(work, **prompter.client_options())


@click.command("read", cls=TargetCommand)
@click.argument("uri", metavar="URI")
@click.option("--save", metavar="DIR", help="Save the resource to a file in this folder.")
def read_command(target: TargetConnector, uri: str, save: str | None) -> None:
    """Read a resource.

    Text is printed unchanged. Binary data goes to a pipe or a file, or with --save to a folder.
    """
    with closing(TerminalPrompter(target)) as prompter:
        progress, options = prompter.progress.show_progress, prompter.client_options()
        result = target.run(lambda client: client.read_resource(uri, progress=progress), **options)
    output = target.output
    folder = OutputFolder(Path(save or "."), Path(urlsplit(uri).path or uri).name or uri)
    if target.output.json:
        output.print_value(convert_result(result.raw, folder if save else None))
        return
    for part in result.contents:
        text = part.text or ""
        if part.blob is None and not save:
            output.print_raw(text if text.endswith("\n") or not output.is_terminal else f"{text}\n")
            continue
        data = text.encode() if part.blob is None else decode_base64(part.blob, part.uri)
        if save:
            save_content(output, data, part.mime_type, folder, text=part.text is not None)
        elif output.is_terminal:
            kind = part.mime_type or "unknown type"
            hint = "use --save DIR or > FILE to save it to a file"
            raise CommandError(f"{part.uri} is binary ({kind}); stdout is a terminal", FAILED, hint=hint)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


# --------------------------------------------------------------------- content


def decode_base64(text: str, subject: str) -> bytes:
    """Decode base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CommandError(f"could not save {subject}: invalid base64: {error}", FAILED) from error


class OutputFolder:
    """A folder for saved files, whose names begin with `stem`."""

    def __init__(self, path: Path, stem: str) -> None:
        self._path = path
        # The stem must not be a path or a hidden file.
        self._stem = _UNSAFE_CHARACTERS.sub("_", stem).strip("._") or "saved"

    def save(self, data: bytes, mime: str | None) -> Path:
        """Write a new file, and return its path."""
        kind = (mime or "").partition(";")[0].strip().lower()
        ending = _FILE_EXTENSIONS.get(kind) or mimetypes.guess_extension(kind) or ".bin"
        stem = self._stem.removesuffix(ending)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            path = find_unused_path(self._path / f"{stem}{ending}")
            with path.open("xb") as file:
                file.write(data)
        except OSError as error:
            text = f"could not write to {self._path}: {error.strerror or error}"
            raise usage_error(text, "use --save DIR to choose another folder") from error
        return path


def _decode_json(block: types.Content) -> Any:
    """Decode a text as JSON; return other text and other blocks unchanged."""
    if not isinstance(block, types.TextContent):
        return block
    try:
        return msgspec.json.decode(block.text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return block.text


def show_blocks(output: CommandOutput, blocks: Iterable[types.Content], folder: OutputFolder) -> None:
    """Print blocks of content in order."""
    for block in blocks:
        match block:
            case types.TextContent(text=text):
                output.print_raw(text if text.endswith("\n") else f"{text}\n")
            case (
                types.ImageContent(data=data, mime_type=mime)
                | types.AudioContent(data=data, mime_type=mime)
                | types.EmbeddedResource(resource=types.ResourceContents(blob=str(data), mime_type=mime))
            ):
                content = decode_base64(data, f"content of type {mime}")
                save_content(output, content, mime, folder)
            case types.EmbeddedResource(resource=resource):
                show_blocks(output, [types.TextContent(resource.text or "")], folder)
            case types.ResourceLink():
                about = block.title or block.description
                output.print_text(f"{block.uri}  {block.name}{f': {about}' if about else ''}")
            case _:
                output.print_value(block)


def save_content(
    output: CommandOutput, data: bytes, mime: str | None, folder: OutputFolder, *, text: bool = False
) -> None:
    """Save content to a file, and print its path. `text` is for text of unknown type."""
    path = folder.save(data, mime or ("text/plain" if text else None))
    size = f"{len(data)} bytes" if len(data) < 10_000 else f"{len(data) / 1000:.0f} kB"
    output.print_text(f"Saved {path} ({mime or 'unknown type'}, {size})")


def convert_result(raw: bytes | None, folder: OutputFolder | None) -> Any:
    """Decode a result as on the wire; with a folder, save binary content there."""
    value = msgspec.json.decode(raw or b"{}")
    return value if folder is None else _save_binaries(value, folder)


def _save_binaries(value: Any, folder: OutputFolder) -> Any:
    """Save each image, audio clip or blob in a JSON value to a file, and replace it with the path."""
    match value:
        case {"type": "image" | "audio", "data": str(data)} | {"uri": str(), "blob": str(data)}:
            rest = {name: member for name, member in value.items() if name not in {"data", "blob"}}
            mime: Any = value.get("mimeType")
            content = decode_base64(data, f"content of type {mime}")
            return rest | {"savedTo": str(folder.save(content, mime if isinstance(mime, str) else None))}
        case dict():
            members = cast("dict[str, Any]", value)
            return {key: _save_binaries(member, folder) for key, member in members.items()}
        case list():
            return [_save_binaries(member, folder) for member in cast("list[Any]", value)]
        case _:
            return value
