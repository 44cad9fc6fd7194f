"""Cases for our client with npm's `@modelcontextprotocol/server-everything`: all its features.

It sends updates and log messages every five seconds; those cases wait for the first, which comes immediately.
"""

import asyncio
import json
from typing import Any, Final

from cases import Suite, at_least, eventually
from ours import Guest
from toolpost import RPCError, ToolError
from toolpost.errors import InvalidParams
from toolpost.types import (
    CreateMessageParams,
    ElicitParams,
    EmbeddedResource,
    ImageContent,
    PromptReference,
    ResourceLink,
    ResourceReference,
    TextContent,
)

__all__ = ["EVERYTHING"]

EVERYTHING: Final = Suite[Guest]()

TEXT: Final = "demo://resource/dynamic/text/{resourceId}"


async def _ready(guest: Guest) -> None:
    """Wait for the tools that depend on our capabilities: the server adds them after the handshake."""
    for _ in range(100):
        if any(tool.name == "trigger-sampling-request" for tool in await guest.client.list_tools()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the server did not see our capabilities")


@EVERYTHING.case("tools: list")
async def tools(guest: Guest) -> None:
    await _ready(guest)
    tools = {tool.name: tool for tool in await guest.client.list_tools()}
    assert len(tools) >= 15, sorted(tools)
    assert tools["get-sum"].input_schema["required"] == ["a", "b"]
    if at_least(guest.client.revision, "2025-03-26"):
        annotations = tools["echo"].annotations
        assert annotations is not None
        assert annotations.read_only_hint is True


@EVERYTHING.case("tools: echo, get-sum, get-env")
async def plain(guest: Guest) -> None:
    odd = 'grüße, 世界 🍲 \u2028 \\ " \t\r\n\x7f'
    assert (await guest.client.call_tool("echo", {"message": odd})).text == f"Echo: {odd}"
    assert "5" in (await guest.client.call_tool("get-sum", {"a": 2, "b": 3})).text
    assert "PATH" in json.loads((await guest.client.call_tool("get-env")).text)


@EVERYTHING.case("tools: pictures, annotations, links, resources")
async def content(guest: Guest) -> None:
    call = guest.client.call_tool
    assert any(isinstance(block, ImageContent) for block in (await call("get-tiny-image")).content)
    message = await call("get-annotated-message", {"messageType": "error", "includeImage": True})
    first = message.content[0]
    assert isinstance(first, TextContent)
    assert first.annotations is not None
    assert first.annotations.priority == 1.0
    links = await call("get-resource-links", {"count": 4})
    uris = [block.uri for block in links.content if isinstance(block, ResourceLink)]
    assert len(uris) == 4
    await guest.client.read_resource(uris[1])
    embedded = await call("get-resource-reference", {"resourceType": "Text", "resourceId": 1})
    assert any(isinstance(block, EmbeddedResource) for block in embedded.content)


@EVERYTHING.case("tools: structured output", since="2025-06-18")
async def structured(guest: Guest) -> None:
    result = await guest.client.call_tool(
        "get-structured-content", {"location": "Chicago"}, result_type=dict[str, Any]
    )
    assert result.data == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}


@EVERYTHING.case("tools: a resource of the session")
async def gzip(guest: Guest) -> None:
    arguments = {"name": "a.gz", "data": "data:text/plain;base64,aGVsbG8=", "outputType": "resourceLink"}
    (link,) = (await guest.client.call_tool("gzip-file-as-resource", arguments)).content
    assert isinstance(link, ResourceLink)
    (contents,) = (await guest.client.read_resource(link.uri)).contents
    assert contents.blob
    await eventually(lambda: guest.heard("notifications/resources/list_changed"), "notice")


@EVERYTHING.case("errors: unknown tool, misfit, resource, prompt")
async def errors(guest: Guest) -> None:
    client = guest.client
    # This peer returns results with isError and the code in the text for both.
    assert "-32602" in await _said(client.call_tool("nope"))
    assert "-32602" in await _said(client.call_tool("get-sum", {"a": "x"}))
    # The specification requires −32002; this peer sends −32602 in every revision.
    assert isinstance(await _refusal(client.read_resource("demo://resource/nope")), InvalidParams)
    assert isinstance(await _refusal(client.get_prompt("nope")), InvalidParams)
    assert isinstance(await _refusal(client.get_prompt("args-prompt")), InvalidParams)


@EVERYTHING.case("resources: list, read, templates")
async def resources(guest: Guest) -> None:
    listed = await guest.client.list_resources()
    assert len(listed) >= 7
    (contents,) = (await guest.client.read_resource(listed[0].uri)).contents
    assert contents.text
    templates = {template.uri_template for template in await guest.client.list_resource_templates()}
    assert TEXT in templates, templates
    (dynamic,) = (await guest.client.read_resource("demo://resource/dynamic/text/3")).contents
    assert "Resource 3" in (dynamic.text or "")


@EVERYTHING.case("prompts: list and get")
async def prompts(guest: Guest) -> None:
    names = {prompt.name for prompt in await guest.client.list_prompts()}
    assert names == {"simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"}
    (message,) = (await guest.client.get_prompt("args-prompt", {"city": "Bern", "state": "BE"})).messages
    assert isinstance(message.content, TextContent)
    assert "Bern, BE" in message.content.text
    filled = {"resourceType": "Text", "resourceId": "2"}
    messages = (await guest.client.get_prompt("resource-prompt", filled)).messages
    assert isinstance(messages[1].content, EmbeddedResource)


@EVERYTHING.case("completion: prompt and template")
async def completion(guest: Guest) -> None:
    prompt = PromptReference(name="completable-prompt")
    assert (await guest.client.complete(prompt, "department", "S")).values == ["Sales", "Support"]
    if at_least(guest.client.revision, "2025-06-18"):  # `context` is new in that revision
        named = await guest.client.complete(prompt, "name", "", context={"department": "Sales"})
        assert named.values == ["David", "Eve", "Frank"]
    assert (await guest.client.complete(ResourceReference(uri=TEXT), "resourceId", "7")).values == ["7"]


@EVERYTHING.case("progress")
async def progress(guest: Guest) -> None:
    seen: list[Any] = []
    await guest.client.call_tool(
        "trigger-long-running-operation",
        {"duration": 0.5, "steps": 5},
        progress=lambda step: seen.append((step.progress, step.total)),
    )
    assert seen == [(n, 5) for n in range(1, 6)], seen


@EVERYTHING.case("sampling")
async def sampling(guest: Guest) -> None:
    await _ready(guest)
    guest.questions.clear()
    result = await guest.client.call_tool("trigger-sampling-request", {"prompt": "soup?", "maxTokens": 50})
    assert "the soup" in result.text
    assert isinstance(guest.questions[0], CreateMessageParams)
    assert guest.questions[0].max_tokens == 50


@EVERYTHING.case("elicitation by form", since="2025-06-18")
async def elicitation(guest: Guest) -> None:
    await _ready(guest)
    guest.questions.clear()
    result = await guest.client.call_tool("trigger-elicitation-request")
    assert "Ann" in result.text
    # A missing value is the default of the form.
    assert "Favorite Integer: 42" in result.text
    assert isinstance(guest.questions[0], ElicitParams)


@EVERYTHING.case("elicitation by URL", since="2025-11-25")
async def url(guest: Guest) -> None:
    await _ready(guest)
    guest.questions.clear()
    arguments = {"url": "https://example.com/pay", "message": "Pay"}
    assert "completed" in (await guest.client.call_tool("trigger-url-elicitation", arguments)).text
    assert guest.questions[0].url == "https://example.com/pay"
    refused = await _refusal(
        guest.client.call_tool("trigger-url-elicitation", {**arguments, "errorPath": True})
    )
    assert refused.code == -32042


@EVERYTHING.case("roots")
async def roots(guest: Guest) -> None:
    await _ready(guest)
    assert "file:///kitchen" in (await guest.client.call_tool("get-roots-list")).text
    await guest.client.notify_roots_changed()


@EVERYTHING.case("log")
async def log(guest: Guest) -> None:
    await guest.client.set_log_level("debug")
    await guest.client.call_tool("toggle-simulated-logging")
    await eventually(lambda: bool(guest.logs), "log")
    await guest.client.call_tool("toggle-simulated-logging")


@EVERYTHING.case("subscription")
async def subscription(guest: Guest) -> None:
    await guest.client.subscribe("demo://resource/dynamic/text/1")
    await guest.client.call_tool("toggle-subscriber-updates")
    await eventually(lambda: guest.heard("notifications/resources/updated"), "update")
    await guest.client.call_tool("toggle-subscriber-updates")
    await guest.client.unsubscribe("demo://resource/dynamic/text/1")


RESEARCH: Final = "simulate-research-query"


@EVERYTHING.case("a tool that runs only as a task is driven to its end", since="2025-11-25")
async def task(guest: Guest) -> None:
    result = await guest.client.call_tool(RESEARCH, {"topic": "soup", "ambiguous": True})
    assert result.text.startswith("# Research Report: soup ("), result.text
    assert any("multiple interpretations" in asked.message for asked in guest.questions)


@EVERYTHING.case("a task is watched and found by its id", since="2025-11-25")
async def watched_task(guest: Guest) -> None:
    started = await guest.client.start_task(RESEARCH, {"topic": "tea"})
    messages = [state.message async for state in started]
    assert "Generating report..." in messages, messages
    result = await guest.client.task(started.id).result()
    assert result.text.startswith("# Research Report: tea"), result.text


@EVERYTHING.case("a task is cancelled", since="2025-11-25")
async def cancelled_task(guest: Guest) -> None:
    task = await guest.client.start_task(RESEARCH, {"topic": "ice"})
    await task.cancel()
    assert (await task.refresh()).status == "cancelled"


@EVERYTHING.case("cancellation, time-out, ping")
async def cancellation(guest: Guest) -> None:
    arguments = {"duration": 20, "steps": 20}
    call = asyncio.create_task(guest.client.call_tool("trigger-long-running-operation", arguments))
    await eventually(lambda: bool(guest.client.pending), "request")
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    try:
        await guest.client.call_tool("trigger-long-running-operation", arguments, timeout=0.3)
    except TimeoutError:
        pass
    else:
        raise AssertionError("there was no timeout")
    await guest.client.ping()
    assert not guest.client.pending


async def _said(call: Any) -> str:
    try:
        await call
    except ToolError as error:
        return str(error)
    raise AssertionError("it did not fail")


async def _refusal(request: Any) -> RPCError:
    try:
        result = await request
    except RPCError as error:
        return error
    raise AssertionError(f"it was not rejected: {result}")
