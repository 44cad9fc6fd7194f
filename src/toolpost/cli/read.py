"""`toolpost read`: what a resource holds, to stdout or to files.

Owns that text is printed as it is, and that nothing binary is printed on a terminal.
"""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from toolpost.cli.exits import FAILED, Quit
from toolpost.cli.target import Reach, TargetCommand, takes_target

if TYPE_CHECKING:
    from toolpost.cli.folder import Folder
    from toolpost.client.client import Client
    from toolpost.types.content import ResourceContents
    from toolpost.types.resources import ReadResourceResult

__all__ = ["command"]


@click.command("read", cls=TargetCommand)
@takes_target
@click.argument("uri", metavar="URI")
@click.option("--save", metavar="DIR", help="Save it to a file in this folder, instead of printing it.")
def command(reach: Reach, uri: str, save: str | None) -> None:
    """Read a resource.

    Text is printed as it is. What is binary goes to a pipe or a file as it is, or with --save to a folder.
    """
    from toolpost.cli.answers import Answers  # noqa: PLC0415 - with what it needs, for reading only
    from toolpost.cli.meter import Meter  # noqa: PLC0415 - as above

    meter = Meter(reach.page, lines=reach.verbose)

    async def read(client: "Client") -> "ReadResourceResult":
        return await client.read_resource(uri, progress=meter.progress)

    with closing(meter), closing(Answers(meter, interactive=reach.interactive)) as answers:
        result = reach.run(read, **answers.client_options())
    _show(reach, uri, result, save)


def _show(reach: Reach, uri: str, result: "ReadResourceResult", save: str | None) -> None:
    from toolpost.cli.folder import Folder  # noqa: PLC0415 - with what it needs, for results only
    from toolpost.cli.show import as_json  # noqa: PLC0415 - as above

    folder = Folder(Path(save or "."), Path(urlsplit(uri).path or uri).name or uri)
    if reach.json:
        reach.page.data(as_json(result.raw, folder if save else None))
        return
    for part in result.contents:
        if save:
            _save(reach, part, folder)
        elif part.blob is not None:
            _print_bytes(reach, part)
        else:
            text = part.text or ""
            reach.page.raw(text if text.endswith("\n") or not reach.page.on_terminal else f"{text}\n")


def _data(part: "ResourceContents") -> bytes:
    from toolpost.cli.folder import decoded  # noqa: PLC0415 - as above

    return (part.text or "").encode() if part.blob is None else decoded(part.blob, part.uri)


def _save(reach: Reach, part: "ResourceContents", folder: "Folder") -> None:
    from toolpost.cli.show import size_of  # noqa: PLC0415 - as above

    data = _data(part)
    path = folder.save(data, part.mime_type or (None if part.text is None else "text/plain"))
    reach.page.say(f"Saved {path} ({part.mime_type or 'of unknown type'}, {size_of(len(data))})")


def _print_bytes(reach: Reach, part: "ResourceContents") -> None:
    data = _data(part)
    if reach.page.on_terminal:
        raise Quit(
            f"{part.uri} is binary ({part.mime_type or 'of unknown type'}), and this is a terminal",
            FAILED,
            hint="--save DIR keeps it in a file, and so does > FILE",
        )
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
