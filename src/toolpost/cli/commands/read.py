"""`toolpost read`: prints a resource, or saves it to files.

Text is printed as it is; nothing binary is printed on a terminal.
"""

import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from toolpost.cli.content import OutputFolder, convert_result, decode_base64, save_content
from toolpost.cli.errors import FAILED, CommandError
from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.cli.terminal import open_prompter
from toolpost.types.resources import ReadResourceResult


@click.command("read", cls=TargetCommand)
@click.argument("uri", metavar="URI")
@click.option("--save", metavar="DIR", help="Save it to a file in this folder, instead of printing it.")
def command(reach: TargetConnector, uri: str, save: str | None) -> None:
    """Read a resource.

    Text is printed as it is. What is binary goes to a pipe or a file as it is, or with --save to a folder.
    """
    with open_prompter(reach) as prompter:
        progress = prompter.progress.show_progress
        result = reach.run(
            lambda client: client.read_resource(uri, progress=progress), **prompter.client_options()
        )
    _print_resource(reach, uri, result, save)


def _print_resource(reach: TargetConnector, uri: str, result: ReadResourceResult, save: str | None) -> None:
    page = reach.output
    folder = OutputFolder(Path(save or "."), Path(urlsplit(uri).path or uri).name or uri)
    if reach.output.json:
        page.print_value(convert_result(result.raw, folder if save else None))
        return
    for part in result.contents:
        text = part.text or ""
        if part.blob is None and not save:
            page.print_raw(text if text.endswith("\n") or not page.is_terminal else f"{text}\n")
            continue
        data = text.encode() if part.blob is None else decode_base64(part.blob, part.uri)
        if save:
            save_content(page, data, part.mime_type, folder, text=part.text is not None)
        elif page.is_terminal:
            kind = part.mime_type or "of unknown type"
            hint = "--save DIR keeps it in a file, and so does > FILE"
            raise CommandError(f"{part.uri} is binary ({kind}), and this is a terminal", FAILED, hint=hint)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
