"""Notes: resources, templates, completion and subscriptions.

Each note has a URI, so that hosts can read it, and hear when it changes.

    toolpost list examples/notes.py
    toolpost read examples/notes.py note://ideas
    toolpost run examples/notes.py --http 127.0.0.1:8000
    toolpost listen http://127.0.0.1:8000/mcp --uri note://ideas    and write one from another terminal
"""

from toolpost import Context, Server
from toolpost.errors import ResourceNotFound

server = Server("notes", version="1.0")

NOTES = {"ideas": "A lamp that wakes me gently.", "shopping": "Milk, bread, ink."}


@server.resource("notes://index", mime_type="application/json")
def index() -> list[str]:
    """The names of all notes."""
    return sorted(NOTES)


@server.resource("note://{name}", mime_type="text/plain")
def note(name: str) -> str:
    """One note."""
    if name not in NOTES:
        raise ResourceNotFound(f"There is no note {name!r}; notes://index has the names.")
    return NOTES[name]


@note.complete("name")
def names(typed: str) -> list[str]:
    return [name for name in sorted(NOTES) if name.startswith(typed)]


@server.tool
async def write_note(name: str, text: str, ctx: Context) -> str:
    """Write a note, or write it anew."""
    is_new = name not in NOTES
    NOTES[name] = text
    await ctx.notify_resource_updated(f"note://{name}")  # to whoever watches this note
    if is_new:
        await ctx.notify_resource_updated("notes://index")
    return f"note://{name}"


@server.tool
async def erase_note(name: str, ctx: Context) -> None:
    """Erase a note."""
    if NOTES.pop(name, None) is not None:
        await ctx.notify_resource_updated(f"note://{name}")
        await ctx.notify_resource_updated("notes://index")


@server.prompt
def tidy_up(name: str) -> str:
    """Bring order into a note."""
    return f"Rewrite this note as a short list. Leave nothing out.\n\n{note(name)}"


tidy_up.complete("name")(names)

if __name__ == "__main__":
    server.run()
