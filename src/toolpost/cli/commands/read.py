"""`toolpost read`: prints a resource, or saves it to files.

Text is printed as it is; nothing binary is printed on a terminal.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from toolpost.cli.errors import FAILED, CommandError
from toolpost.cli.target import TargetCommand, TargetConnector, add_target_options

if TYPE_CHECKING:
    from toolpost.cli.content import OutputFolder
    from toolpost.client.client import Client
    from toolpost.types.content import ResourceContents
    from toolpost.types.resources import ReadResourceResult


@click.command("read", cls=TargetCommand)
@add_target_options
@click.argument("uri", metavar="URI")
@click.option("--save", metavar="DIR", help="Save it to a file in this folder, instead of printing it.")
def command(reach: TargetConnector, uri: str, save: str | None) -> None:
    """Read a resource.

    Text is printed as it is. What is binary goes to a pipe or a file as it is, or with --save to a folder.
    """
    from toolpost.cli.questions import open_prompter  # noqa: PLC0415 - help needs none of it

    with open_prompter(reach) as prompter:

        async def read(client: "Client") -> "ReadResourceResult":
            return await client.read_resource(uri, progress=prompter.progress.show_progress)

        result = reach.run(read, **prompter.client_options())
    _print_resource(reach, uri, result, save)


def _print_resource(reach: TargetConnector, uri: str, result: "ReadResourceResult", save: str | None) -> None:
    from toolpost.cli.content import OutputFolder, convert_result  # noqa: PLC0415 - as above

    folder = OutputFolder(Path(save or "."), Path(urlsplit(uri).path or uri).name or uri)
    if reach.json:
        reach.output.print_value(convert_result(result.raw, folder if save else None))
        return
    for part in result.contents:
        if save:
            _save_contents(reach, part, folder)
        elif part.blob is not None:
            _print_bytes(reach, part)
        else:
            text = part.text or ""
            reach.output.print_raw(
                text if text.endswith("\n") or not reach.output.is_terminal else f"{text}\n"
            )


def _decode_contents(part: "ResourceContents") -> bytes:
    from toolpost.cli.content import decode_base64  # noqa: PLC0415 - as above

    return (part.text or "").encode() if part.blob is None else decode_base64(part.blob, part.uri)


def _save_contents(reach: TargetConnector, part: "ResourceContents", folder: "OutputFolder") -> None:
    from toolpost.cli.content import format_byte_count  # noqa: PLC0415 - as above

    data = _decode_contents(part)
    path = folder.save(data, part.mime_type or (None if part.text is None else "text/plain"))
    reach.output.print_text(
        f"Saved {path} ({part.mime_type or 'of unknown type'}, {format_byte_count(len(data))})"
    )


def _print_bytes(reach: TargetConnector, part: "ResourceContents") -> None:
    data = _decode_contents(part)
    if reach.output.is_terminal:
        raise CommandError(
            f"{part.uri} is binary ({part.mime_type or 'of unknown type'}), and this is a terminal",
            FAILED,
            hint="--save DIR keeps it in a file, and so does > FILE",
        )
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
