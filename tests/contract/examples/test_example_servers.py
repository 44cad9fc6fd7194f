"""Each example that is a server works as described, for old and new clients, over stdio and HTTP."""

import asyncio
import io
import json
import struct
import wave
from base64 import b64decode

import pytest
from example_sessions import REVISIONS, WAYS, tour

from toolpost import Client, MCPError, ToolError
from toolpost.types import AudioContent, ImageContent, ProgressParams, ResourceReference, TextContent

OLDEST, *_, NEWEST = REVISIONS

by_every_way = pytest.mark.parametrize("way", WAYS)


# --------------------------------------------------------------------- weather


@by_every_way
def test_weather_returns_structured_data(way):
    heard = []

    async def visit(mcp: Client) -> None:
        assert [tool.name for tool in await mcp.list_tools()] == ["cities", "forecast", "warmest"]
        assert (await mcp.call_tool("cities", result_type=list[str])).data == [
            "Bergen",
            "Cairo",
            "Oslo",
            "Quito",
        ]
        arguments = {"city": "Oslo", "days": 2, "unit": "fahrenheit"}
        told = await mcp.call_tool("forecast", arguments, result_type=dict)
        assert told.data == {
            "city": "Oslo",
            "unit": "fahrenheit",
            "days": [{"day": 1, "sky": "snow", "high": 28.4}, {"day": 2, "sky": "clouds", "high": 33.8}],
        }
        assert (await mcp.call_tool("warmest", {"day": 4})).text == "Cairo"
        assert heard.pop().data["highs"]["Cairo"] == 30

    async def log(line):
        heard.append(line)

    tour("weather.py", way, visit, on_log=log)


def test_weather_explains_invalid_calls():
    async def visit(mcp: Client) -> None:
        with pytest.raises(ToolError, match=r"No forecast for Atlantis\. Choose one of Bergen, Cairo"):
            await mcp.call_tool("forecast", {"city": "Atlantis"})
        with pytest.raises(ToolError, match="days: expected at most 5"):
            await mcp.call_tool("forecast", {"city": "Oslo", "days": 6})
        with pytest.raises(ToolError, match="unit"):
            await mcp.call_tool("forecast", {"city": "Oslo", "unit": "kelvin"})

    tour("weather.py", "stdio", visit)


# --------------------------------------------------------------------- notes


@by_every_way
def test_notes_are_read_written_watched_and_completed(way):
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def notice(method, params):
        if method == "notifications/resources/updated":
            await heard.put(params.uri)

    async def visit(mcp: Client) -> None:
        assert [one.uri for one in await mcp.list_resources()] == ["notes://index"]
        assert [one.uri_template for one in await mcp.list_resource_templates()] == ["note://{name}"]
        assert await read(mcp, "note://ideas") == "A lamp that wakes me gently."
        await mcp.subscribe("notes://index")
        await mcp.subscribe("note://plan")
        assert (await mcp.call_tool("write_note", {"name": "plan", "text": "Sleep."})).text == "note://plan"
        assert {await heard.get(), await heard.get()} == {"note://plan", "notes://index"}
        assert await read(mcp, "note://plan") == "Sleep."
        assert json.loads(await read(mcp, "notes://index")) == ["ideas", "plan", "shopping"]
        if mcp.capabilities.completions is not None:
            ref = ResourceReference("note://{name}")
            assert (await mcp.complete(ref, "name", "p")).values == ["plan"]
            assert (await mcp.complete("tidy_up", "name", "i")).values == ["ideas"]
        filled = await mcp.get_prompt("tidy_up", {"name": "plan"})
        assert isinstance(filled.messages[0].content, TextContent)
        assert filled.messages[0].content.text.endswith("\n\nSleep.")
        await mcp.call_tool("erase_note", {"name": "plan"})
        assert {await heard.get(), await heard.get()} == {"note://plan", "notes://index"}
        with pytest.raises(MCPError, match="There is no note 'plan'"):
            await mcp.read_resource("note://plan")

    tour("notes.py", way, visit, on_notification=notice)


async def read(mcp: Client, uri: str) -> str:
    [contents] = (await mcp.read_resource(uri)).contents
    assert contents.text is not None
    return contents.text


# --------------------------------------------------------------------- approval

PAY = {"to": "Ink & Sons", "amount": 120}


@by_every_way
def test_approval_asks_twice_and_pays_once(way):
    asked: list[str] = []

    async def answer(question):
        asked.append(question.message)
        return {"approve": True, "remark": "for May"} if "Pay" in question.message else {"value": "office"}

    async def visit(mcp: Client) -> None:
        before = json.loads(await read(mcp, "ledger://paid"))
        if mcp.revision == OLDEST:  # it has no forms, so nothing is paid
            with pytest.raises(ToolError, match="elicitation"):
                await mcp.call_tool("pay", PAY)
            assert json.loads(await read(mcp, "ledger://paid")) == before
            return
        told = await mcp.call_tool("pay", PAY)
        receipt = len(before) + 1
        assert told.data == {"done": True, "receipt": receipt, "account": "office", "remark": "for May"}
        assert json.loads(await read(mcp, "ledger://paid")) == [*before, "120 to Ink & Sons"]
        assert asked[-2:] == [
            "Pay 120 to Ink & Sons?",
            f"Paid, receipt {receipt}. Which account?",
        ]

    tour("approval.py", way, visit, on_elicitation=answer)


@pytest.mark.parametrize("answer", [None, {"approve": False}])
def test_nothing_is_paid_without_approval(answer):
    async def visit(mcp: Client) -> None:
        if mcp.revision != OLDEST:
            told = await mcp.call_tool("pay", PAY)
            assert told.data["done"] is False
            assert json.loads(await read(mcp, "ledger://paid")) == []

    tour("approval.py", "stdio", visit, on_elicitation=lambda _: answer)


# --------------------------------------------------------------------- files


@by_every_way
def test_files_shows_only_the_roots(way, tmp_path):
    book = tmp_path / "my book"
    (book / "parts").mkdir(parents=True)
    (book / "plan.md").write_text("First the end.")
    (book / "parts" / "one.md").write_text("Once upon a time")
    (tmp_path / "secret.md").write_text("nobody's business")
    (book / "link.md").symlink_to(tmp_path / "secret.md")

    async def visit(mcp: Client) -> None:
        found = await mcp.call_tool("find_files", {"pattern": "**/*.md"})
        told = "".join(repr(block) for block in found.content)
        assert "one.md" in told
        assert (book / "plan.md").as_uri() in told
        assert "secret.md" not in told
        assert "link.md" not in told
        assert len(found.content) == 2
        with pytest.raises(ToolError, match="No file matches"):
            await mcp.call_tool("find_files", {"pattern": "../*"})
        assert (await mcp.call_tool("read_file", {"path": "parts/one.md"})).text == "Once upon a time"
        for path in ("../secret.md", "link.md", str(tmp_path / "secret.md"), "nowhere.md", "parts"):
            with pytest.raises(ToolError, match="is not in any of the open folders"):
                await mcp.call_tool("read_file", {"path": path})
        with pytest.raises(ToolError, match="Invalid pattern"):
            await mcp.call_tool("find_files", {"pattern": "/etc/*"})

    tour("files.py", way, visit, on_roots=[book.as_uri()])


# --------------------------------------------------------------------- images


@by_every_way
def test_images_are_a_picture_and_a_sound(way):
    async def visit(mcp: Client) -> None:
        text, image = (await mcp.call_tool("sunset", {"width": 3, "height": 2})).content
        assert text == TextContent("A sunset, 3 by 2 pixels.")
        assert isinstance(image, ImageContent)
        assert image.mime_type == "image/png"
        data = b64decode(image.data)
        assert struct.unpack(">II", data[16:24]) == (3, 2)
        [sound] = (await mcp.call_tool("tone", {"hertz": 100, "seconds": 0.1})).content
        if mcp.revision == OLDEST:  # it does not support audio, and gets text instead
            assert isinstance(sound, TextContent)
            return
        assert isinstance(sound, AudioContent)
        assert sound.mime_type == "audio/wav"
        with wave.open(io.BytesIO(b64decode(sound.data))) as file:
            assert (file.getframerate(), file.getnframes()) == (8000, 800)

    tour("images.py", way, visit)


# --------------------------------------------------------------------- long_job


@by_every_way
def test_a_long_job_reports_progress_and_ends_when_it_is_cancelled(way):
    async def visit(mcp: Client) -> None:
        steps: asyncio.Queue[ProgressParams] = asyncio.Queue()
        told = await mcp.call_tool("bake", {"loaves": 1}, progress=steps.put)
        assert told.text == "1 loaves"
        step = steps.get_nowait()
        assert (step.progress, step.total, step.message) == (1, 1, "loaf 1 of 1")
        before = await diary(mcp, at_least=1)
        call = asyncio.create_task(mcp.call_tool("bake", {"loaves": 1000}, progress=steps.put))
        await steps.get()
        call.cancel()
        await asyncio.wait([call])
        *_, gave_up, oven = await diary(mcp, at_least=len(before) + 2)
        assert gave_up.startswith("gave up after ")
        assert oven == "the oven is off"

    tour("long_job.py", way, visit)


@by_every_way
def test_a_job_in_a_thread_looks_whether_it_is_cancelled(way):
    async def visit(mcp: Client) -> None:
        assert (await mcp.call_tool("largest_prime", {"below": 100})).data in {97, "97"}
        steps: asyncio.Queue[ProgressParams] = asyncio.Queue()
        before = await diary(mcp)
        call = asyncio.create_task(mcp.call_tool("largest_prime", {"below": 2_000_000}, progress=steps.put))
        await steps.get()
        call.cancel()
        await asyncio.wait([call])
        *_, last = await diary(mcp, at_least=len(before) + 1)
        assert last.startswith("stopped at ")

    tour("long_job.py", way, visit)


async def diary(mcp: Client, at_least: int = 0) -> list[str]:
    """The outcomes of jobs, as soon as this many have ended."""
    while len(lines := json.loads(await read(mcp, "bakery://diary"))) < at_least:  # noqa: ASYNC110 - of a process
        await asyncio.sleep(0.01)
    return lines
