"""Files: a server that sees the folders which the client has opened, its roots, and nothing else.

    toolpost call --root . examples/files.py find_files --pattern "*.md"

A host tells which folders are open, and so does a client of ours: `Client(command, on_roots=["file:///books"])`.
"""

from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from toolpost import Server, SyncContext, ToolError
from toolpost.types import ResourceLink

server = Server("files", version="1.0")

MOST = 200
"""Files in an answer: a model reads no more anyway."""


def opened(ctx: SyncContext) -> list[Path]:
    """The folders that the client has opened. It is asked each time: they may change."""
    places = [urlsplit(root.uri) for root in ctx.roots()]
    return [Path(url2pathname(place.path)).resolve() for place in places if place.scheme == "file"]


def is_inside(file: Path, folder: Path) -> bool:
    """Whether it is a file of the folder, wherever `..` and links lead."""
    return file.is_file() and file.resolve().is_relative_to(folder)


@server.tool
def find_files(ctx: SyncContext, pattern: str = "**/*") -> list[ResourceLink]:
    """Find files in the folders that are open.

    Args:
        pattern: such as "**/*.md", below each of the folders.
    """
    try:
        found = (path for folder in opened(ctx) for path in folder.glob(pattern) if is_inside(path, folder))
        files = sorted(islice(found, MOST))
    except (NotImplementedError, ValueError) as error:
        raise ToolError(f"{pattern!r} is no pattern to look for: {error}") from None
    if not files:
        raise ToolError(f"No file is like {pattern}.")
    return [ResourceLink(name=file.name, uri=file.as_uri(), size=file.stat().st_size) for file in files]


@server.tool
def read_file(path: str, ctx: SyncContext) -> str:
    """Read a text file in one of the folders that are open.

    Args:
        path: from one of the folders on, such as "docs/plan.md".
    """
    for folder in opened(ctx):
        if is_inside(file := folder / path, folder):
            return file.read_text(encoding="utf-8", errors="replace")
    raise ToolError(f"{path} is in none of the folders that are open.")


if __name__ == "__main__":
    server.run()
