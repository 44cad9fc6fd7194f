"""Notes: resources, templates, completion and subscriptions.

Each note has a URI. Hosts can read it and subscribe to changes.

    toolpost list examples/notes.py
    toolpost read examples/notes.py note://ideas
    toolpost run examples/notes.py --http 127.0.0.1:8000
    toolpost listen http://127.0.0.1:8000/mcp --uri note://ideas    then write a note from another terminal
"""

from toolpost import Context, Server
from toolpost.errors import ResourceNotFound

server = Server("notes", version="1.0")

NOTES = {"ideas": "A lamp that wakes me gently.", "shopping": "Milk, bread, ink."}


@server.resource("notes://index", mime_type="application/json")
def index() -> list[str]:
    """Return the names of all notes."""
    return sorted(NOTES)


@server.resource("note://{name}", mime_type="text/plain")
def note(name: str) -> str:
    """Return one note."""
    if name not in NOTES:
        raise ResourceNotFound(f"There is no note {name!r}; notes://index lists all names.")
    return NOTES[name]


@note.complete("name")
def names(typed: str) -> list[str]:
    return [name for name in sorted(NOTES) if name.startswith(typed)]


@server.tool
async def write_note(name: str, text: str, ctx: Context) -> str:
    """Create a note or replace it."""
    is_new = name not in NOTES
    NOTES[name] = text
    await ctx.notify_resource_updated(f"note://{name}")  # notifies the subscribers of this note
    if is_new:
        await ctx.notify_resource_updated("notes://index")
    return f"note://{name}"


@server.tool
async def erase_note(name: str, ctx: Context) -> None:
    """Delete a note."""
    if NOTES.pop(name, None) is not None:
        await ctx.notify_resource_updated(f"note://{name}")
        await ctx.notify_resource_updated("notes://index")


@server.prompt
def tidy_up(name: str) -> str:
    """Rewrite a note as a short list."""
    return f"Rewrite this note as a short list. Leave nothing out.\n\n{note(name)}"


tidy_up.complete("name")(names)

if __name__ == "__main__":
    server.run()
