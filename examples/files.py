"""Files: a server that reads only the folders that the client has opened, its roots.

    toolpost call --root . examples/files.py find_files --pattern "*.md"

The client sends its roots. With toolpost, set them like this: `Client(command, on_roots=["file:///books"])`.
"""

from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from toolpost import Server, SyncContext, ToolError
from toolpost.types import ResourceLink

server = Server("files", version="1.0")

MOST = 200
"""Files in one result, so that it fits into a model's context."""


def open_folders(ctx: SyncContext) -> list[Path]:
    """Return the folders that the client has opened. They may change, so ask each time."""
    places = [urlsplit(root.uri) for root in ctx.roots()]
    return [Path(url2pathname(place.path)).resolve() for place in places if place.scheme == "file"]


def is_inside(file: Path, folder: Path) -> bool:
    """Return whether a file is inside a folder, after `..` and symbolic links are resolved."""
    return file.is_file() and file.resolve().is_relative_to(folder)


@server.tool
def find_files(ctx: SyncContext, pattern: str = "**/*") -> list[ResourceLink]:
    """Find files in the open folders.

    Args:
        pattern: a glob pattern such as "**/*.md", relative to each folder.
    """
    try:
        found = (
            path for folder in open_folders(ctx) for path in folder.glob(pattern) if is_inside(path, folder)
        )
        files = sorted(islice(found, MOST))
    except (NotImplementedError, ValueError) as error:
        raise ToolError(f"Invalid pattern {pattern!r}: {error}") from None
    if not files:
        raise ToolError(f"No file matches {pattern}.")
    return [ResourceLink(name=file.name, uri=file.as_uri(), size=file.stat().st_size) for file in files]


@server.tool
def read_file(path: str, ctx: SyncContext) -> str:
    """Read a text file from one of the open folders.

    Args:
        path: relative to one of the folders, such as "docs/plan.md".
    """
    for folder in open_folders(ctx):
        if is_inside(file := folder / path, folder):
            return file.read_text(encoding="utf-8", errors="replace")
    raise ToolError(f"{path} is not in any of the open folders.")


if __name__ == "__main__":
    server.run()
