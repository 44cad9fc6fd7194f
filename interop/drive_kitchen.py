"""Cases for our client with the kitchen servers of peers: every feature and every error once.

The names are those of `kitchen.py`. Comments mark deviations of a peer from the specification.
"""

import asyncio
from typing import Any, Final

import msgspec

from cases import Suite, eventually
from ours import Guest
from toolpost import RPCError, ToolError
from toolpost.errors import CapabilityNotDeclared, InvalidParams, ResourceNotFound
from toolpost.types import (
    CreateMessageParams,
    ElicitParams,
    ImageContent,
    PromptReference,
    ResourceReference,
    TextContent,
)

__all__ = ["BRIDGED", "KITCHEN", "PROXIED"]

KITCHEN: Final = Suite[Guest]()

TOOLS: Final = {
    *("add", "order", "echo", "media", "fail", "count", "slow", "cancelled"),
    *("ask_user", "ask_model", "ask_roots", "grow", "touch"),
}
PORTIONS: Final = 5


class Order(msgspec.Struct):
    """What was ordered."""

    dish: str
    portions: int


@KITCHEN.case("introduction")
async def introduction(guest: Guest) -> None:
    info = guest.client.server_info
    assert info is not None
    assert info.name == "kitchen"
    assert guest.client.instructions == "Order something."
    assert guest.client.capabilities.tools is not None


@KITCHEN.case("tools: list")
async def list_tools(guest: Guest) -> None:
    tools = {tool.name: tool for tool in await guest.client.list_tools()}
    assert set(tools) >= TOOLS, set(tools)
    assert tools["add"].input_schema["required"] == ["a", "b"]
    assert tools["add"].description == "Add two numbers."


@KITCHEN.case("tools: call, text")
async def call(guest: Guest) -> None:
    assert (await guest.client.call_tool("add", {"a": 1, "b": 2})).text == "3"
    odd = 'grüße, 世界 🍲 \u2028 \\ " \t\r\n\x7f'
    assert (await guest.client.call_tool("echo", {"text": odd})).text == odd
    large = "x" * 1_000_000
    assert (await guest.client.call_tool("echo", {"text": large})).text == large


@KITCHEN.case("tools: structured output", since="2025-06-18")
async def structured(guest: Guest) -> None:
    tools = {tool.name: tool for tool in await guest.client.list_tools()}
    schema = tools["order"].output_schema
    assert isinstance(schema, dict)
    assert schema["type"] == "object"
    result = await guest.client.call_tool("order", {"dish": "soup", "portions": 2}, result_type=Order)
    assert result.data == Order("soup", 2)
    assert (await guest.client.call_tool("add", {"a": 1, "b": 2})).data in ({"result": 3}, 3)


@KITCHEN.case("tools: typed result from text")
async def typed(guest: Guest) -> None:
    result = await guest.client.call_tool("order", {"dish": "tea"}, result_type=Order, validate=False)
    assert result.data == Order("tea", 1)


@KITCHEN.case("tools: picture")
async def media(guest: Guest) -> None:
    block = (await guest.client.call_tool("media")).content[0]
    assert isinstance(block, ImageContent)
    assert block.mime_type == "image/png"


@KITCHEN.case("tools: many at once")
async def many(guest: Guest) -> None:
    calls = (guest.client.call_tool("add", {"a": n, "b": 1}) for n in range(50))
    assert [result.text for result in await asyncio.gather(*calls)] == [str(n + 1) for n in range(50)]


@KITCHEN.case("errors: tool fails, arguments misfit")
async def failures(guest: Guest) -> None:
    assert "the oven is off" in await _tool_error(guest, "fail")
    assert "portions" in await _tool_error(guest, "order", {"dish": "soup", "portions": "many"})
    result = await guest.client.call_tool("fail", raise_on_error=False)
    assert result.is_error


@KITCHEN.case("errors: unknown tool, method, resource, prompt")
async def unknown(guest: Guest) -> None:
    client = guest.client
    if guest.peer in {"server-2.4.0", "mcp-remote-0.15.1"}:
        assert isinstance(await _refusal(client.call_tool("nope")), InvalidParams)
    else:
        # The specification requires −32602; the other peers return a result with isError.
        assert "nope" in await _tool_error(guest, "nope")
    # Without a session mcp-remote sends an error of its own for a 404, with ours as the text.
    failed = {-32001} if guest.stateless and guest.peer == "mcp-remote-0.15.1" else {-32601, -32602}
    assert (await _refusal(client.request("kitchen/nope"))).code in failed
    missing = await _refusal(client.read_resource("config://nope"))
    if guest.peer == "mcp-1.30.0":
        # The specification requires −32002 (RES); this peer sends 0, its code for any failure.
        assert missing.code == 0
    else:
        # −32602 is correct in the stateless era; this peer also sends it in sessions, instead of −32002.
        assert isinstance(missing, InvalidParams | ResourceNotFound)
    assert isinstance(await _refusal(client.get_prompt("nope")), RPCError)
    assert isinstance(await _refusal(client.get_prompt("greet")), RPCError)


@KITCHEN.case("resources: list and read")
async def resources(guest: Guest) -> None:
    listed = {resource.uri: resource for resource in await guest.client.list_resources()}
    assert set(listed) == {"config://app", "logo://png"}
    assert listed["config://app"].mime_type == "application/json"
    (text,) = (await guest.client.read_resource("config://app")).contents
    assert text.text == '{"heat": 3}'
    (blob,) = (await guest.client.read_resource("logo://png")).contents
    assert blob.blob
    assert blob.mime_type == "image/png"


@KITCHEN.case("resources: templates")
async def templates(guest: Guest) -> None:
    (template,) = await guest.client.list_resource_templates()
    assert template.uri_template == "users://{name}/profile"
    (text,) = (await guest.client.read_resource("users://ann/profile")).contents
    assert text.text == "profile of ann"


@KITCHEN.case("prompts: list and get")
async def prompts(guest: Guest) -> None:
    prompt = (await guest.client.list_prompts())[0]
    assert [(a.name, bool(a.required)) for a in prompt.arguments or ()] == [("name", True), ("mood", False)]
    (message,) = (await guest.client.get_prompt("greet", {"name": "Ann", "mood": "fine"})).messages
    assert isinstance(message.content, TextContent)
    assert message.content.text == "Hello Ann, in a fine mood"


@KITCHEN.case("completion: prompt and template")
async def completion(guest: Guest) -> None:
    for ref in (PromptReference(name="greet"), ResourceReference(uri="users://{name}/profile")):
        assert (await guest.client.complete(ref, "name", "an")).values == ["ann", "anton"]


@KITCHEN.case("progress")
async def progress(guest: Guest) -> None:
    seen: list[Any] = []
    result = await guest.client.call_tool(
        "count", {"to": PORTIONS}, progress=lambda step: seen.append((step.progress, step.total))
    )
    assert result.text == "done"
    assert seen == [(n, PORTIONS) for n in range(1, PORTIONS + 1)], seen


@KITCHEN.case("log")
async def log(guest: Guest) -> None:
    await guest.client.set_log_level("info")
    before = len(guest.logs)  # log messages of earlier calls may still arrive
    await guest.client.call_tool("count", {"to": 1})
    wanted = ["info", "warning"]
    await eventually(lambda: [line.level for line in guest.logs[before:]][-2:] == wanted, "log")
    # FastMCP wraps what is logged.
    assert guest.logs[-2].data in ("counted", {"msg": "counted", "extra": None}), guest.logs[-2].data


@KITCHEN.case("log: only what was asked for", era="stateless")
async def log_level(guest: Guest) -> None:
    await guest.client.set_log_level("warning")
    guest.logs.clear()
    await guest.client.call_tool("count", {"to": 1})
    # Log messages of earlier calls may still arrive, before those of this one.
    await eventually(lambda: any(line.level == "warning" for line in guest.logs), "log")
    guest.logs.clear()
    await guest.client.call_tool("count", {"to": 1})
    await eventually(lambda: bool(guest.logs), "log")
    assert [line.level for line in guest.logs] == ["warning"], guest.logs


@KITCHEN.case("sampling")
async def sampling(guest: Guest) -> None:
    guest.questions.clear()
    assert (await guest.client.call_tool("ask_model")).text == "the soup"
    (question,) = guest.questions
    assert isinstance(question, CreateMessageParams)
    assert question.max_tokens == 100
    assert question.system_prompt == "Be brief."


@KITCHEN.case("elicitation", since="2025-06-18")
async def elicitation(guest: Guest) -> None:
    guest.questions.clear()
    assert (await guest.client.call_tool("ask_user")).text == "2 x soup"
    (question,) = guest.questions
    assert isinstance(question, ElicitParams)
    assert set((question.requested_schema or {})["properties"]) == {"dish", "portions"}


@KITCHEN.case("roots")
async def roots(guest: Guest) -> None:
    assert (await guest.client.call_tool("ask_roots")).text == "file:///kitchen"
    await guest.client.notify_roots_changed()


@KITCHEN.case("tools: list changed")
async def changed(guest: Guest) -> None:
    await guest.client.call_tool("grow")
    await eventually(lambda: guest.heard("notifications/tools/list_changed"), "notice")
    *_, extra = sorted(tool.name for tool in await guest.client.list_tools() if tool.name.startswith("extra"))
    assert (await guest.client.call_tool(extra)).text == "extra"


@KITCHEN.case("tools: list changed, as a loop hears it")
async def listened(guest: Guest) -> None:
    async with guest.client.listen(tools=True) as changes:
        await guest.client.call_tool("touch_tools")
        change = await anext(aiter(changes))
    assert change.kind == "tools"
    assert not change.missed


@KITCHEN.case("subscription")
async def subscription(guest: Guest) -> None:
    if guest.peer in {"mcp-1.30.0", "fastmcp-4.1.0"}:
        # These peers always declare `subscribe: false`, so we must not subscribe.
        assert "resources.subscribe" in (await _not_declared(guest)).capability
        return
    await guest.client.subscribe("config://app")
    await guest.client.call_tool("touch")
    await eventually(lambda: guest.heard("notifications/resources/updated"), "notice")
    await guest.client.unsubscribe("config://app")


@KITCHEN.case("cancellation")
async def cancellation(guest: Guest) -> None:
    before = int((await guest.client.call_tool("cancelled")).text)
    call = asyncio.create_task(guest.client.call_tool("slow"))
    await eventually(lambda: "tools/call" in guest.client.pending.values(), "request")
    await guest.client.ping()  # earlier messages have arrived
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    await _dropped(guest, before)


@KITCHEN.case("time-out tells the server")
async def timeout(guest: Guest) -> None:
    before = int((await guest.client.call_tool("cancelled")).text)
    try:
        await guest.client.call_tool("slow", timeout=0.2)
    except TimeoutError:
        pass
    else:
        raise AssertionError("there was no timeout")
    await _dropped(guest, before)


@KITCHEN.case("ping")
async def ping(guest: Guest) -> None:
    await guest.client.ping()


async def _tool_error(guest: Guest, name: str, arguments: dict[str, Any] | None = None) -> str:
    try:
        await guest.client.call_tool(name, arguments)
    except ToolError as error:
        return str(error)
    raise AssertionError(f"{name} did not fail")


async def _dropped(guest: Guest, before: int) -> None:
    for _ in range(100):
        if int((await guest.client.call_tool("cancelled")).text) > before:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the server did not drop the call")


async def _refusal(request: Any) -> RPCError:
    try:
        result = await request
    except RPCError as error:
        return error
    raise AssertionError(f"it was not rejected: {result}")


async def _not_declared(guest: Guest) -> CapabilityNotDeclared:
    try:
        await guest.client.subscribe("config://app")
    except CapabilityNotDeclared as error:
        return error
    raise AssertionError("it was not rejected")


# Our kitchen has no tool that only tells of a change.
BRIDGED: Final = KITCHEN.without("tools: list changed, as a loop hears it")
"""Cases for our own kitchen behind a bridge."""

PROXIED: Final = BRIDGED.without(
    *("log", "sampling", "elicitation", "roots", "tools: list changed", "subscription"),
    *("cancellation", "time-out tells the server"),
)
"""Cases for a bridge that hands on requests and progress, but no other notification, and no question."""
