"""Traces: parents, links, what is passed on, what is left out, and that telemetry changes no answer."""

import asyncio
import json
import logging
from typing import Any

import pytest

from fresh_imports import fresh
from recorded_telemetry import Recorded
from toolpost import (
    Client,
    Context,
    ForwardedResult,
    Handler,
    MCPError,
    Server,
    SyncContext,
    TaskOptions,
    Telemetry,
)
from toolpost.server.middleware import AccessLog
from toolpost.types import CallToolResult, TextContent

ERAS = ("2025-11-25", "2026-07-28")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


def make_server(option: Any, **options: Any) -> Server:
    server = Server("shop", telemetry=option, **options)

    @server.tool
    def price(item: str = "pen", password: str = "") -> str:
        return f"2.5, token=abcdef{item}"

    @server.tool
    def meta(ctx: SyncContext) -> str:
        return json.dumps({key: ctx.request.meta.get(key) for key in ("traceparent", "baggage", "own")})

    return server


def hex_ids(span: Any) -> tuple[str, str]:
    return format(span.context.trace_id, "032x"), format(span.parent.span_id, "016x")


@pytest.mark.parametrize("revision", ERAS)
def test_the_parent_of_a_request_is_in_its_meta(seen: Recorded, revision: str):
    async def main() -> None:
        async with Client(make_server(seen.telemetry()), revision=revision, telemetry=False) as client:
            await client.call_tool("price", meta={"traceparent": TRACEPARENT})
            await client.call_tool("price", meta={"traceparent": "00-nonsense"})

    asyncio.run(main())
    first, second = seen.spans("tools/call")
    assert hex_ids(first) == (TRACE, PARENT)
    assert second.parent is None


@pytest.mark.parametrize("revision", ERAS)
def test_the_current_span_is_the_parent_or_is_linked(seen: Recorded, revision: str):
    """As that of an instrumented web server."""
    tracer = seen.tracers.get_tracer("web")
    app = make_server(seen.telemetry()).asgi()

    async def web(scope: Any, receive: Any, send: Any) -> None:
        with tracer.start_as_current_span("POST"):
            await app(scope, receive, send)

    async def main() -> None:
        url = "http://127.0.0.1:8000/mcp"
        async with app.lifespan(), Client(url, http=web, revision=revision, telemetry=False) as client:
            await client.call_tool("price", meta={"traceparent": TRACEPARENT})
            await client.call_tool("price")

    asyncio.run(main())
    outer = {span.context.span_id for span in seen.spans() if span.name == "POST"}
    linked, child = seen.spans("tools/call")
    assert hex_ids(linked) == (TRACE, PARENT)
    assert {link.context.span_id for link in linked.links} <= outer
    assert len(linked.links) == 1
    assert child.parent.span_id in outer
    assert not child.links


def test_the_client_passes_context_and_baggage_on_but_keeps_what_the_caller_has_set(seen: Recorded):
    from opentelemetry import baggage, context  # noqa: PLC0415 - with the SDK

    async def main() -> None:
        async with Client(make_server(False), telemetry=seen.telemetry()) as client:
            token = context.attach(baggage.set_baggage("tenant", "blue"))
            passed = json.loads((await client.call_tool("meta", meta={"own": 1})).text)
            assert passed["own"] == 1
            assert passed["baggage"] == "tenant=blue"
            span = seen.spans("tools/call")[-1]
            assert passed["traceparent"].split("-")[1:3] == [
                format(span.context.trace_id, "032x"),
                format(span.context.span_id, "016x"),
            ]
            kept = json.loads((await client.call_tool("meta", meta={"traceparent": TRACEPARENT})).text)
            assert kept["traceparent"] == TRACEPARENT
            result: Any = await client.request(
                "tools/call", {"name": "meta", "_meta": {"traceparent": TRACEPARENT}}
            )
            assert TRACE in result.content[0].text
            context.detach(token)

    asyncio.run(main())


class Gateway(Handler):
    def __init__(self, upstream: Client, option: Any) -> None:
        super().__init__("gateway", telemetry=option)
        self.upstream = upstream

    def capabilities(self) -> Any:
        return self.upstream.capabilities

    async def forward_request(self, method: str, params: bytes, ctx: Context) -> ForwardedResult:
        return await self.upstream.forward(method, params)


@pytest.mark.parametrize("revision", ERAS)
def test_a_gateway_is_between_client_and_server_in_one_trace(seen: Recorded, revision: str):
    option = seen.telemetry(only=["tools/call"])

    async def main() -> None:
        async with (
            Client(make_server(option), telemetry=option) as upstream,
            Client(Gateway(upstream, option), telemetry=option, revision=revision) as client,
        ):
            await client.call_tool("price")

    asyncio.run(main())
    spans = {span.context.span_id: span for span in seen.spans()}
    assert len(spans) == 4
    assert len({span.context.trace_id for span in spans.values()}) == 1
    (last,) = [
        span
        for span in spans.values()
        if all(
            other.parent is None or other.parent.span_id != span.context.span_id for other in spans.values()
        )
    ]
    kinds = []
    while last is not None:
        kinds.append(last.kind.name)
        last = spans.get(last.parent.span_id) if last.parent is not None else None
    assert kinds == ["SERVER", "CLIENT", "SERVER", "CLIENT"]


def test_a_failed_tool_of_a_forwarded_call_is_an_error_everywhere(seen: Recorded):
    option = seen.telemetry(only=["tools/call"])

    class Failing(Handler):
        async def call_tool(self, name: str, arguments: Any, ctx: Context) -> CallToolResult:
            return CallToolResult(content=[TextContent("no")], is_error=True)

        async def list_tools(self, cursor: str | None) -> Any:
            return []

    async def main() -> None:
        async with (
            Client(Failing(telemetry=option), telemetry=option) as upstream,
            Client(Gateway(upstream, option), telemetry=option) as client,
        ):
            await client.call_tool("any", raise_on_error=False)

    asyncio.run(main())
    assert [span.attributes["error.type"] for span in seen.spans()] == ["tool_error"] * 4


@pytest.mark.parametrize("revision", ERAS)
def test_one_request_has_one_span_where_a_server_chooses_another(seen: Recorded, revision: str):
    inner = make_server(seen.telemetry())

    async def choose(client: Any, capabilities: Any, principal: Any) -> Server:
        return inner

    door = Server.factory(choose, "door")

    async def main() -> None:
        async with Client(door, revision=revision, telemetry=False) as client:
            await client.call_tool("price")

    asyncio.run(main())
    assert [span.attributes["mcp.method.name"] for span in seen.spans()][1:] == ["tools/call"]


def test_a_cancelled_request_is_an_error_of_the_client_only(seen: Recorded):
    async def main() -> None:
        started, ended = asyncio.Event(), asyncio.Event()
        server = make_server(seen.telemetry())

        @server.tool
        async def wait() -> str:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return ""

        async with Client(server, telemetry=seen.telemetry()) as client:
            call = asyncio.create_task(client.call_tool("wait"))
            await started.wait()
            call.cancel()
            await asyncio.wait([call])
            await ended.wait()

    asyncio.run(main())
    (sent,), (received,) = seen.spans("tools/call", "CLIENT"), seen.spans("tools/call", "SERVER")
    assert (sent.attributes["error.type"], sent.status.status_code.name) == ("cancelled", "ERROR")
    assert ("error.type" in received.attributes, received.status.status_code.name) == (False, "UNSET")


def test_functions_find_their_span_also_in_threads(seen: Recorded):
    from opentelemetry import trace  # noqa: PLC0415 - with the SDK

    found: list[int] = []
    server = Server("s", telemetry=seen.telemetry())

    @server.tool
    def plain() -> None:
        found.append(trace.get_current_span().get_span_context().span_id)

    @server.tool
    async def waiting() -> None:
        await asyncio.sleep(0)
        found.append(trace.get_current_span().get_span_context().span_id)

    async def main() -> None:
        async with Client(server, telemetry=False) as client:
            await client.call_tool("plain")
            await client.call_tool("waiting")

    asyncio.run(main())
    assert found == [span.context.span_id for span in seen.spans("tools/call")]


def test_arguments_and_results_are_recorded_on_request_without_secrets(seen: Recorded):
    option = seen.telemetry(arguments=True, results=True)
    server = make_server(option)

    @server.prompt
    def greet(name: str) -> str:
        return name

    async def main() -> None:
        async with Client(server, telemetry=False) as client:
            await client.call_tool("price", {"item": "x" * 9000, "password": "hunter2"})
            await client.call_tool("price", {"item": "pen", "password": "hunter2"})
            await client.get_prompt("greet", {"name": "ann"})

    asyncio.run(main())
    long, short = seen.spans("tools/call")
    assert len(long.attributes["gen_ai.tool.call.arguments"]) == 4096
    assert json.loads(short.attributes["gen_ai.tool.call.arguments"]) == {
        "item": "pen",
        "password": "<masked>",
    }
    assert "2.5" in short.attributes["gen_ai.tool.call.result"]
    assert "abcdef" not in short.attributes["gen_ai.tool.call.result"]
    assert "ann" in seen.spans("prompts/get")[0].attributes["gen_ai.prompt.variable.name"]


def test_only_some_methods_are_recorded(seen: Recorded):
    option = seen.telemetry(only=["tools/call"])

    async def main() -> None:
        async with Client(make_server(option), telemetry=option) as client:
            await client.list_tools()
            await client.call_tool("price")

    asyncio.run(main())
    assert {span.attributes["mcp.method.name"] for span in seen.spans()} == {"tools/call"}
    assert {
        point.attributes["mcp.method.name"] for point in seen.points("mcp.client.operation.duration")
    } == {"tools/call"}


@pytest.mark.parametrize(("spans", "metrics"), [(True, False), (False, True)])
def test_spans_and_metrics_are_independent(seen: Recorded, spans: bool, metrics: bool):
    option = seen.telemetry(spans=spans, metrics=metrics)

    async def main() -> None:
        async with Client(make_server(option), telemetry=option) as client:
            passed = json.loads((await client.call_tool("meta")).text)
            assert (passed["traceparent"] is not None) is spans

    asyncio.run(main())
    assert bool(seen.spans()) is spans
    assert bool(seen.points("mcp.server.operation.duration")) is metrics


@pytest.mark.parametrize("place", ["on_start", "on_end"])
def test_a_processor_that_fails_changes_no_answer(
    seen: Recorded, place: str, caplog: pytest.LogCaptureFixture
):
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider  # noqa: PLC0415 - with the SDK

    class Failing(SpanProcessor):
        pass

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no")

    setattr(Failing, place, fail)
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(Failing())
    option = Telemetry(tracer_provider=tracers, meter_provider=seen.meters)

    async def main() -> None:
        async with Client(make_server(option), telemetry=option) as client:
            assert (await client.call_tool("price")).text.startswith("2.5")
            with pytest.raises(MCPError, match="nope"):
                await client.call_tool("nope")

    asyncio.run(main())
    assert "telemetry failed" in caplog.text


@pytest.mark.parametrize("option", ["on", 1, None, Telemetry])
def test_an_invalid_option_is_refused(option: Any):
    with pytest.raises(TypeError, match="telemetry must be"):
        Server("s", telemetry=option)


CALL = """
import asyncio, sys
from toolpost import Client, Server
server = Server("s")

@server.tool
def price() -> float:
    return 2.5

async def main():
    async with Client(server) as client:
        await client.call_tool("price")

asyncio.run(main())
"""
GLOBAL = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
COUNT = "print(sum(span.name == 'tools/call price' for span in exporter.get_finished_spans()))"


def test_without_an_sdk_nothing_is_loaded():
    names = fresh(CALL + "print(*sys.modules)").split()
    foreign = ("opentelemetry", "prometheus_client", "toolpost.telemetry")
    assert [name for name in names if name.startswith(foreign)] == []


def test_an_sdk_that_is_only_loaded_records_nothing():
    """As redis-py loads it wherever it is installed."""
    shown = "print('toolpost.telemetry.instrumentation' in sys.modules, server.observers)"
    assert fresh("import opentelemetry.sdk.trace\n" + CALL + shown).strip() == "True ()"


def test_a_provider_turns_telemetry_on():
    assert fresh(GLOBAL + CALL + COUNT).strip() == "2"


def test_a_provider_that_is_set_later_turns_telemetry_on_for_the_next_client():
    assert fresh(CALL + GLOBAL + "asyncio.run(main())\n" + COUNT).strip() == "2"


def test_telemetry_can_be_off_although_there_is_a_provider():
    off = CALL.replace('Server("s")', 'Server("s", telemetry=False)').replace(
        "(server)", "(server, telemetry=False)"
    )
    assert fresh(GLOBAL + off + COUNT).strip() == "0"


@pytest.mark.parametrize("revision", ERAS)
def test_a_call_that_becomes_a_task_has_a_span_and_a_line_with_its_own_id(
    seen: Recorded, revision: str, caplog: pytest.LogCaptureFixture
):
    server = Server("s", telemetry=seen.telemetry(), observers=[AccessLog()])

    @server.tool(task=TaskOptions(required=True))
    async def slow() -> str:
        await asyncio.sleep(0)
        return "done"

    async def main() -> None:
        async with Client(server, revision=revision, tasks=True, telemetry=False) as client:
            task = await client.start_task("slow")
            assert (await task.result()).text == "done"

    with caplog.at_level(logging.INFO, "toolpost.access"):
        asyncio.run(main())
    (span,) = seen.spans("tools/call")
    (record,) = (each for each in map(vars, caplog.records) if each.get("method") == "tools/call")
    assert span.attributes["jsonrpc.request.id"] == str(record["request_id"])
    assert record["outcome"] == "ok"
