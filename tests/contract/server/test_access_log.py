"""The access log has one line for each request, with the same facts as fields, and no secrets."""

import asyncio
import logging
from typing import Any

import pytest

from toolpost import Client, Context, MCPError, Server, ToolError
from toolpost.server.middleware import AccessLog

ERAS = ("2025-11-25", "2026-07-28")
FIELDS = {
    "method", "target", "outcome", "is_error", "error_code", "duration_ms", "client", "principal",
    "request_id", "session", "trace_id", "revision",
}  # fmt: skip
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def make_server(*logs: AccessLog) -> Server:
    server = Server("shop", observers=logs or [AccessLog()])

    @server.tool
    def price(item: str) -> float:
        return 2.5

    @server.tool
    def fail() -> str:
        raise ToolError("no luck")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit("How many?", int))

    @server.resource("shop://list")
    def read() -> str:
        return "pens"

    @server.prompt
    def greet() -> str:
        return "hello"

    return server


async def talk(client: Client) -> None:
    await client.call_tool(
        "price", {"item": "hunter2-secret"}, meta={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    )
    await client.call_tool("fail", raise_on_error=False)
    await client.call_tool("ask")
    await client.read_resource("shop://list")
    await client.get_prompt("greet")
    with pytest.raises(MCPError):
        await client.call_tool("nope")


def run(revision: str, server: Server, **options: Any) -> None:
    async def main() -> None:
        answers = {"on_elicitation": lambda params: {"value": 3}}
        async with Client(
            server, revision=revision, name="desk", version="2", **answers, **options
        ) as client:
            await talk(client)

    asyncio.run(main())


@pytest.mark.parametrize("revision", ERAS)
def test_each_request_has_one_line_with_fields(revision: str, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "toolpost.access"):
        run(revision, make_server())
    found = [vars(record) for record in caplog.records if record.name == "toolpost.access"]
    assert all(each.keys() >= FIELDS for each in found)
    rounds = ["ok"] if revision == ERAS[0] else ["input_required", "ok"]
    greeting = "initialize" if revision == ERAS[0] else "server/discover"
    assert [(each["method"], each["target"], each["outcome"]) for each in found] == [
        (greeting, None, "ok"),
        ("tools/call", "price", "ok"),
        ("tools/call", "fail", "failed"),
        *(("tools/call", "ask", outcome) for outcome in rounds),
        ("resources/read", "shop://list", "ok"),
        ("prompts/get", "greet", "ok"),
        ("tools/call", "nope", "error"),
    ]
    assert [each["error_code"] for each in found if each["is_error"]] == [None, -32602]
    assert {(each["client"], each["revision"], each["session"]) for each in found[1:]} == {
        ("desk/2", revision, None)
    }
    assert found[1]["trace_id"] == TRACE
    assert found[1]["duration_ms"] >= 0


def test_a_line_names_the_tool_that_failed_and_has_no_arguments(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "toolpost.access"):
        run(ERAS[1], make_server())
    lines = [line for line in caplog.messages if line.startswith("tools/call")]
    assert any(line.startswith("tools/call fail failed in ") for line in lines)
    assert "secret" not in caplog.text


def test_a_client_cannot_forge_lines(caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        async with Client(make_server(), name="evil\nforged line", version="1\r\n") as client:
            with pytest.raises(MCPError):
                await client.call_tool("x\ntools/call ok" + "y" * 5000)

    with caplog.at_level(logging.INFO, "toolpost.access"):
        asyncio.run(main())
    assert all("\n" not in line and "\r" not in line and len(line) < 1000 for line in caplog.messages)
    assert all(
        "\n" not in str(each)
        for record in caplog.records
        for each in vars(record).values()
        if record.name == "toolpost.access" and isinstance(each, str)
    )


def test_a_level_that_is_off_writes_nothing(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "toolpost.access"):
        run(ERAS[1], make_server())
    assert not caplog.records


def test_it_writes_to_a_logger_of_yours(caplog: pytest.LogCaptureFixture):
    log = AccessLog(logging.getLogger("mine"), logging.WARNING)
    with caplog.at_level(logging.WARNING, "mine"):
        run(ERAS[1], make_server(log))
    assert {record.name for record in caplog.records} == {"mine"}


def test_a_cancelled_request_is_logged(caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        started = asyncio.Event()
        server = Server("slow", observers=[AccessLog()])

        @server.tool
        async def wait() -> str:
            started.set()
            await asyncio.Event().wait()
            return ""

        async with Client(server) as client:
            call = asyncio.create_task(client.call_tool("wait"))
            await started.wait()
            call.cancel()
            await asyncio.wait([call])

    with caplog.at_level(logging.INFO, "toolpost.access"):
        asyncio.run(main())
    assert caplog.messages[-1].startswith("tools/call wait cancelled in ")
