"""Spans and metrics of every kind of request, in both eras, compared with a table of the conventions."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from recorded_telemetry import Recorded
from toolpost import Client, Context, MCPError, Server, ToolError

SESSION, STATELESS = "2025-11-25", "2026-07-28"
ERAS = (SESSION, STATELESS)
WAYS = ("memory", "http")
URL = "http://127.0.0.1:8000/mcp"
BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)

TARGETS = {
    "tools/call": "gen_ai.tool.name",
    "prompts/get": "gen_ai.prompt.name",
    "resources/read": "mcp.resource.uri",
    "resources/subscribe": "mcp.resource.uri",
    "resources/unsubscribe": "mcp.resource.uri",
}
"""Conditionally required: the attribute for what a method is about."""

IN_NAME = {"gen_ai.tool.name", "gen_ai.prompt.name"}
"""Targets that are part of the name of a span: those with few values."""

ALWAYS = {"mcp.method.name", "jsonrpc.request.id", "mcp.protocol.version"}
HTTP = {"network.transport", "network.protocol.name"}
HTTP_CLIENT = {*HTTP, "server.address", "server.port"}
HTTP_SERVER = {*HTTP, "network.protocol.version", "client.address", "client.port"}

ON_METRICS = {
    "mcp.method.name", "gen_ai.tool.name", "gen_ai.prompt.name", "gen_ai.operation.name",
    "mcp.protocol.version", "error.type", "rpc.response.status_code", "network.transport",
    "network.protocol.name", "network.protocol.version", "server.address", "server.port",
}  # fmt: skip
"""All that metrics may have: no ids, no URIs, no arguments."""

COMMON = {
    "tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read",
    "prompts/list", "prompts/get", "completion/complete",
}  # fmt: skip
METHODS = {
    SESSION: COMMON
    | {"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
    | {"elicitation/create", "sampling/createMessage", "roots/list"},
    STATELESS: COMMON | {"server/discover"},
}


def make_server(seen: Recorded) -> Server:
    server = Server("shop", telemetry=seen.telemetry())

    @server.tool
    def price(item: str) -> float:
        return 2.5

    @server.tool
    def fail() -> str:
        raise ToolError("no luck")

    @server.tool
    def crash() -> str:
        raise MCPError("never seen")

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.sample("How?")
        await ctx.roots()
        return str(await ctx.elicit("How many?", int))

    @server.resource("shop://list")
    def read() -> str:
        return "pens"

    @server.resource("shop://items/{name}")
    def item(name: str) -> str:
        return name

    @server.resource("shop://broken")
    def broken() -> str:
        raise ValueError("seen in the log only")

    @server.prompt
    def greet(name: str) -> str:
        return f"hello {name}"

    @greet.complete("name")
    def names(value: str) -> list[str]:
        return ["ann"]

    return server


@asynccontextmanager
async def connected(seen: Recorded, revision: str, way: str, **options: Any) -> AsyncGenerator[Client]:
    server = make_server(seen)
    target: Any = server
    app = server.asgi()
    if way == "http":
        target, options["http"] = URL, app
    async with (
        app.lifespan(),
        Client(
            target,
            revision=revision,
            telemetry=seen.telemetry(),
            on_elicitation=lambda params: {"value": 3},
            on_sampling=lambda params: "so",
            on_roots=["file:///here"],
            **options,
        ) as client,
    ):
        yield client


async def visit_everything(client: Client) -> None:
    """Send a request of each kind, and some that fail."""
    await client.list_tools()
    await client.list_resources()
    await client.list_resource_templates()
    await client.list_prompts()
    await client.call_tool("price", {"item": "pen"})
    await client.call_tool("ask")
    await client.read_resource("shop://list")
    await client.get_prompt("greet", {"name": "ann"})
    await client.complete("greet", "name", "a")
    if client.era == "session":
        await client.ping()
        await client.set_log_level("error")
        await client.subscribe("shop://list")
        await client.unsubscribe("shop://list")
    await client.call_tool("fail", raise_on_error=False)
    for failing in (client.call_tool("nope"), client.read_resource("shop://broken")):
        with pytest.raises(MCPError):
            await failing


def expected_attributes(span: Any, way: str, revision: str) -> set[str]:
    """Return the attributes that the conventions require or recommend for a span."""
    method, is_client = span.attributes["mcp.method.name"], span.kind.name == "CLIENT"
    is_ours = method in {"elicitation/create", "sampling/createMessage", "roots/list"}
    expected = {*ALWAYS}
    if method in TARGETS:
        expected.add(TARGETS[method])
    if method == "tools/call":
        expected.add("gen_ai.operation.name")
    if way == "http":
        expected |= HTTP_CLIENT if is_client is not is_ours else HTTP_SERVER
        if revision == SESSION and not (method == "initialize" and is_client):
            expected.add("mcp.session.id")
    return expected


CONDITIONAL = {"error.type", "rpc.response.status_code", "toolpost.round"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("revision", ERAS)
def test_every_request_has_a_span_at_both_ends_as_the_conventions_say(
    seen: Recorded, revision: str, way: str
):
    async def main() -> None:
        async with connected(seen, revision, way) as client:
            await visit_everything(client)

    asyncio.run(main())
    sent, received = seen.spans(kind="CLIENT"), seen.spans(kind="SERVER")
    assert {span.attributes["mcp.method.name"] for span in sent} == METHODS[revision]
    parents = {span.parent.span_id: span for span in received}
    for span in sent:
        other = parents[span.context.span_id]
        assert other.context.trace_id == span.context.trace_id
        for each in (span, other):
            found = each.attributes
            assert found.keys() - CONDITIONAL == expected_attributes(each, way, revision), each.name
            target = TARGETS.get(found["mcp.method.name"])
            is_real = found.get(target) != "nope" or each is span
            suffix = f" {found[target]}" if target in IN_NAME and is_real else ""
            assert each.name == found["mcp.method.name"] + suffix
            assert isinstance(found["jsonrpc.request.id"], str)
            assert found["mcp.protocol.version"] == revision
            assert found.get("network.transport") == ("tcp" if way == "http" else None)
            assert ("error.type" in found) == (each.status.status_code.name == "ERROR")
        ids = (
            ("jsonrpc.request.id", "mcp.session.id") if span.name != "initialize" else ("jsonrpc.request.id",)
        )
        assert [span.attributes.get(each) for each in ids] == [other.attributes.get(each) for each in ids]


@pytest.mark.parametrize("revision", ERAS)
def test_failures_are_marked_by_the_side_whose_fault_they_are(seen: Recorded, revision: str):
    async def main() -> None:
        async with connected(seen, revision, "memory") as client:
            await visit_everything(client)

    asyncio.run(main())

    def describe(kind: str) -> dict[str, tuple[str, Any, Any]]:
        named: dict[str, tuple[str, Any, Any]] = {}
        for span in seen.spans(kind=kind):
            found = span.attributes
            about = found.get("gen_ai.tool.name") or found.get("mcp.resource.uri")
            if about in {"fail", "nope", "shop://broken", "price"}:
                codes = found.get("error.type"), found.get("rpc.response.status_code")
                named[about] = (span.status.status_code.name, *codes)
        return named

    failed = ("ERROR", "tool_error", None)
    crashed = ("ERROR", "-32603", "-32603")
    fine = ("UNSET", None, None)
    assert describe("CLIENT") == {
        "price": fine, "fail": failed, "nope": ("ERROR", "-32602", "-32602"), "shop://broken": crashed,
    }  # fmt: skip
    # An invalid request is not a failure of the server.
    assert describe("SERVER") == {
        "price": fine, "fail": failed, "nope": ("UNSET", None, "-32602"), "shop://broken": crashed,
    }  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("revision", ERAS)
def test_durations_are_histograms_with_few_attributes(seen: Recorded, revision: str, way: str):
    async def main() -> None:
        async with connected(seen, revision, way) as client:
            await visit_everything(client)

    asyncio.run(main())
    for side in ("client", "server"):
        points = seen.points(f"mcp.{side}.operation.duration")
        assert {point.attributes["mcp.method.name"] for point in points} == METHODS[revision]
        assert all(point.attributes.keys() <= ON_METRICS for point in points)
        assert all(point.explicit_bounds == BUCKETS for point in points)
        assert sum(point.count for point in points) == len(seen.spans(kind=side.upper()))
        tools = {point.attributes.get("gen_ai.tool.name") for point in points}
        assert tools == {"price", "fail", "ask", None}  # "nope" does not exist
        assert {point.attributes.get("error.type") for point in points} >= {None, "tool_error", "-32603"}
        sessions = seen.points(f"mcp.{side}.session.duration")
        assert [point.count for point in sessions] == ([1] if revision == SESSION else [])
        assert all(point.attributes["mcp.protocol.version"] == revision for point in sessions)


def test_a_stdio_connection_is_a_pipe(seen: Recorded, tmp_path: Any):
    import sys  # noqa: PLC0415 - only here

    program = tmp_path / "server.py"
    program.write_text("from toolpost import Server\nServer('s', declares=['tools']).run()\n")

    async def main() -> None:
        async with Client([sys.executable, str(program)], telemetry=seen.telemetry()) as client:
            await client.list_tools()

    asyncio.run(main())
    assert {span.attributes["network.transport"] for span in seen.spans()} == {"pipe"}


def test_a_second_round_is_linked_to_the_first(seen: Recorded):
    async def main() -> None:
        async with connected(seen, STATELESS, "memory") as client:
            await client.call_tool("ask")

    asyncio.run(main())
    for kind in ("CLIENT", "SERVER"):
        rounds = seen.spans("tools/call", kind)
        assert [span.attributes.get("toolpost.round") for span in rounds] == [None, 2, 3, 4]
        for before, after in pairwise(rounds):
            assert before.context.span_id in {link.context.span_id for link in after.links}
