"""Cases for our client with npm's `@modelcontextprotocol/server-filesystem`: all its tools.

It works in a folder of ours, which it gets as a root after it was started with another folder.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

from cases import Suite, at_least, eventually
from ours import Guest
from toolpost import MCPError, RequestTimeout, ToolError
from toolpost.errors import MethodNotFound

__all__ = ["FILESYSTEM"]

FILESYSTEM: Final = Suite[Guest]()


async def _call(guest: Guest, name: str, **arguments: Any) -> str:
    return (await guest.client.call_tool(name, arguments)).text


def _path(guest: Guest, name: str) -> str:
    return str(Path(guest.place) / name)


@FILESYSTEM.case("tools: list")
async def tools(guest: Guest) -> None:
    tools = {tool.name: tool for tool in await guest.client.list_tools()}
    assert len(tools) == 14, sorted(tools)
    assert tools["write_file"].input_schema["required"] == ["path", "content"]


@FILESYSTEM.case("roots: the folder is the one that we name")
async def roots(guest: Guest) -> None:
    for _ in range(100):
        if guest.place in await _call(guest, "list_allowed_directories"):
            break
    else:
        raise AssertionError("the server did not use our root")
    await guest.client.notify_roots_changed()


@FILESYSTEM.case("tools: write, read, edit")
async def files(guest: Guest) -> None:
    path = _path(guest, "note.txt")
    text = "".join(f"line {n}, grüße 🍲\n" for n in range(10))
    await _call(guest, "write_file", path=path, content=text)
    assert await _call(guest, "read_text_file", path=path) == text
    assert "line 1," in await _call(guest, "read_text_file", path=path, head=2)
    assert await _call(guest, "read_file", path=path) == text
    edits = [{"oldText": "line 3,", "newText": "line three,"}]
    assert "+line three," in await _call(guest, "edit_file", path=path, edits=edits)
    assert "line three," in await _call(guest, "read_multiple_files", paths=[path])
    large = "x" * 1_000_000
    await _call(guest, "write_file", path=_path(guest, "large.txt"), content=large)
    assert await _call(guest, "read_text_file", path=_path(guest, "large.txt")) == large


@FILESYSTEM.case("tools: folders")
async def folders(guest: Guest) -> None:
    await _call(guest, "create_directory", path=_path(guest, "deep/er"))
    await _call(guest, "write_file", path=_path(guest, "deep/a.txt"), content="a")
    await _call(guest, "move_file", source=_path(guest, "deep/a.txt"), destination=_path(guest, "deep/b.txt"))
    assert "[FILE] b.txt" in await _call(guest, "list_directory", path=_path(guest, "deep"))
    assert "b.txt" in await _call(guest, "list_directory_with_sizes", path=_path(guest, "deep"))
    assert '"er"' in await _call(guest, "directory_tree", path=_path(guest, "deep"))
    assert "b.txt" in await _call(guest, "search_files", path=guest.place, pattern="**/b.txt")
    assert "size: 1" in await _call(guest, "get_file_info", path=_path(guest, "deep/b.txt"))


@FILESYSTEM.case("tools: media")
async def media(guest: Guest) -> None:
    path = Path(_path(guest, "dot.png"))
    await asyncio.to_thread(path.write_bytes, bytes.fromhex("89504e470d0a1a0a"))
    (block,) = (await guest.client.call_tool("read_media_file", {"path": str(path)})).content
    assert type(block).__name__ == "ImageContent"


@FILESYSTEM.case("tools: structured output", since="2025-06-18")
async def structured(guest: Guest) -> None:
    await guest.client.list_tools()
    result = await guest.client.call_tool("list_allowed_directories")
    assert result.data == {"content": result.text}


@FILESYSTEM.case("errors: outside, missing, misfit, unknown")
async def errors(guest: Guest) -> None:
    assert "outside allowed directories" in await _error(guest, "read_text_file", path="/etc/hostname")
    assert "ENOENT" in await _error(guest, "read_text_file", path=_path(guest, "nope"))
    # This peer returns results with isError and the code in the text for both.
    assert "-32602" in await _error(guest, "read_text_file", path=3)
    assert "-32602" in await _error(guest, "nope")


@FILESYSTEM.case("lists that it does not offer are errors of a strict client")
async def undeclared(guest: Guest) -> None:
    for request in (guest.client.list_prompts, guest.client.list_resources):
        try:
            await request()
        except MethodNotFound:
            continue
        raise AssertionError("it has the list")


@FILESYSTEM.case("annotations", since="2025-03-26")
async def annotations(guest: Guest) -> None:
    tools = {tool.name: tool for tool in await guest.client.list_tools()}
    hints = tools["write_file"].annotations
    assert hints is not None
    assert hints.destructive_hint is True
    assert at_least(guest.client.revision, "2025-03-26")


@FILESYSTEM.case("an answer of 6 MB is read, or refused at once")
async def large(guest: Guest) -> None:
    path = Path(_path(guest, "huge.txt"))
    await asyncio.to_thread(path.write_text, "x" * 3_000_000)  # it comes twice: as text and as data
    try:
        await guest.client.call_tool("read_text_file", {"path": str(path)}, timeout=5)
    except RequestTimeout:
        raise AssertionError("the response was dropped without an error") from None
    except MCPError as error:
        if "limit" not in str(error):
            raise


@FILESYSTEM.case("ping")
async def ping(guest: Guest) -> None:
    await guest.client.ping()
    await eventually(lambda: not guest.client.pending, "end of requests")


async def _error(guest: Guest, name: str, **arguments: Any) -> str:
    try:
        await guest.client.call_tool(name, arguments)
    except ToolError as error:
        return str(error)
    raise AssertionError(f"{name} did not fail")
