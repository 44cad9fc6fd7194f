"""The methods of a client, against a server of every revision."""

import asyncio
import contextlib
import inspect
import math
from dataclasses import dataclass
from typing import Any

import pytest

from client_cases import STATELESS, STRUCTURED, WRONG, Schooled, every_revision, said, sessions
from expected_limits import CLOSE_PATIENCE, MAX_WAITING
from raw_server import Asked, Clock, RawServer, run
from revision_dates import DATES
from toolpost import Client, Server, ToolResult
from toolpost.errors import (
    CapabilityNotDeclared,
    ChannelClosed,
    InvalidParams,
    LocalProtocolError,
    MCPError,
    RemoteProtocolError,
    RequestTimeout,
    ResourceNotFound,
    ToolError,
)
from toolpost.types import (
    UNSET,
    CallToolResult,
    CompleteResult,
    Completion,
    GetPromptResult,
    InputRequiredResult,
    ListToolsResult,
    LogParams,
    ProgressParams,
    Prompt,
    PromptMessage,
    PromptReference,
    ReadResourceResult,
    ResourceContents,
    ResourceReference,
    ResourceTemplate,
    Result,
    ServerCapabilities,
    TextContent,
    Tool,
)

# --------------------------------------------------------------------- tools


@every_revision
def test_a_tool_is_called(date):
    async def main() -> None:
        calls: list[Any] = []

        async def call(asked: Asked) -> Result:
            calls.append((asked.params.name, bytes(asked.params.arguments)))
            return await said(asked)

        async with Client(RawServer({"tools/call": call}), revision=date) as client:
            result = await client.call_tool("t", {"a": "ä"})
            assert result.text == "one"
            structured = STRUCTURED if date in DATES[2:] else UNSET  # older peers know no structured content
            assert result.structured_content == structured
            await client.call_tool("t")
            assert calls == [("t", '{"a":"ä"}'.encode()), ("t", b"{}")]

    run(main())


@every_revision
def test_data_may_have_a_type(date):
    @dataclass
    class Number:
        n: int

    async def call(_: Asked) -> Result:
        return CallToolResult(content=[TextContent('{"n": 1}')], structured_content=STRUCTURED)

    async def main() -> None:
        async with Client(RawServer({"tools/call": call}), revision=date) as client:
            assert (await client.call_tool("t", result_type=Number)).data == Number(1)
            with pytest.raises(RemoteProtocolError, match="the result of tool 't' is not of type int"):
                await client.call_tool("t", result_type=int)

    run(main())


@every_revision
@pytest.mark.parametrize(
    ("value", "kind"), [([1], list[int]), (5, int), (None, int | None), ({"a": 1}, dict[str, int])]
)
def test_data_is_the_same_in_every_revision(date, value, kind):
    server = Server("s")

    def give() -> Any:
        return value

    give.__annotations__["return"] = kind
    server.tool(give)

    async def main() -> None:
        async with Client(server, revision=date) as client:
            result = await client.call_tool("give")
            if result.structured_content is UNSET:  # an older peer, which gets the same as text
                assert date in DATES[:2]
                assert result.data == result.text
            else:
                assert result.data == value
            assert (await client.call_tool("give", result_type=kind)).data == value
            await client.list_tools()  # from here on it is validated, in the shape in which it came
            assert (await client.call_tool("give", result_type=kind)).data == value

    run(main())


@every_revision
def test_the_data_of_a_tool_that_returns_text_is_the_text(date):
    server = Server("s")

    @server.tool
    def shout() -> str:  # pyright: ignore[reportUnusedFunction] - the server has it
        return "HO"

    async def main() -> None:
        async with Client(server, revision=date) as client:
            assert (await client.call_tool("shout")).data == "HO"
            assert (await client.call_tool("shout", result_type=str)).data == "HO"

    run(main())


@pytest.mark.parametrize("listed", [False, True])
def test_results_wrapped_by_fastmcp_are_unwrapped_once_the_schema_is_known(listed):
    schema = {"type": "object", "x-fastmcp-wrap-result": True}

    async def tools(_: Asked) -> Result:
        return ListToolsResult(tools=[Tool("t", {"type": "object"}, output_schema=schema)])

    async def call(_: Asked) -> Result:
        return CallToolResult(content=[], structured_content={"result": 5})

    async def main() -> None:
        async with Client(RawServer({"tools/call": call, "tools/list": tools})) as client:
            if listed:
                await client.list_tools()
            assert (await client.call_tool("t")).data == (5 if listed else {"result": 5})

    run(main())


@pytest.mark.requirement("TOOL-18")
@pytest.mark.parametrize(
    ("content", "text"), [([TextContent("no"), TextContent("way")], "no\nway"), ([], "tool 't' failed")]
)
def test_a_tool_that_fails_is_an_exception_unless_that_is_not_wanted(content, text):
    async def fail(_: Asked) -> Result:
        return CallToolResult(content=content, is_error=True)

    async def main() -> None:
        async with Client(RawServer({"tools/call": fail})) as client:
            with pytest.raises(ToolError, match=text):
                await client.call_tool("t")
            result = await client.call_tool("t", raise_on_error=False)
            assert result.is_error
            assert result.content == content

    run(main())


def test_a_call_that_the_server_refuses_is_an_error():
    async def refuse(_: Asked) -> Result:
        raise InvalidParams("Unknown tool: t")

    async def main() -> None:
        async with Client(RawServer({"tools/call": refuse})) as client:
            with pytest.raises(InvalidParams, match="Unknown tool"):
                await client.call_tool("t")

    run(main())


def test_arguments_that_are_not_json_fail_before_anything_is_sent():
    async def main() -> None:
        server = RawServer()
        async with Client(server) as client:
            with pytest.raises(LocalProtocolError, match="cannot be encoded as JSON"):
                await client.call_tool("t", {"a": object()})
            assert server.methods == ["server/discover"]

    run(main())


@pytest.mark.parametrize("date", DATES[:2])
def test_nothing_is_validated_without_structured_content(date):
    async def main() -> None:
        async with Client(Schooled(WRONG), revision=date) as client:
            await client.list_tools()
            await client.call_tool("t")

    run(main())


def test_a_strict_client_calls_no_tool_whose_schema_cannot_be_used():
    async def main() -> None:
        server = Schooled({"type": "nothing known"})
        async with Client(server, strict=True) as client:
            await client.list_tools()
            with pytest.raises(RemoteProtocolError, match="output schema that cannot be used"):
                await client.call_tool("t")
            assert "tools/call" not in server.methods
            await client.call_tool("t", validate=False)

    run(main())


# --------------------------------------------------------------------- resources, prompts, completion


@every_revision
def test_a_resource_is_read(date):
    async def read(asked: Asked) -> Result:
        if asked.params.uri != "x://a":
            raise ResourceNotFound("no such resource")
        return ReadResourceResult(contents=[ResourceContents("x://a", text="hi")])

    async def main() -> None:
        async with Client(RawServer({"resources/read": read}), revision=date) as client:
            result = await client.read_resource("x://a", meta={"a.b/c": 1})
            assert result.contents[0].text == "hi"
            missing = InvalidParams if date == STATELESS else ResourceNotFound
            with pytest.raises(missing):
                await client.read_resource("x://b")

    run(main())


@pytest.mark.requirement("ERR-7", "RES-7")
def test_the_old_code_for_a_missing_resource_is_understood_in_the_stateless_era():
    async def main() -> None:
        server = RawServer()
        async with Client(server, revision=STATELESS) as client:

            async def refuse(asked: Asked) -> Result:
                data = f'{{"jsonrpc":"2.0","id":{asked.id},"error":{{"code":-32002,"message":"none"}}}}'
                await server.channel.send(data.encode())
                return Result()

            server.functions["resources/read"] = refuse
            with pytest.raises(ResourceNotFound):
                await client.read_resource("x://a")

    run(main())


@every_revision
def test_a_prompt_is_filled_in(date):
    asked_for: list[Any] = []

    async def get(asked: Asked) -> Result:
        asked_for.append((asked.params.name, asked.params.arguments))
        return GetPromptResult(messages=[PromptMessage("user", TextContent("hello"))])

    async def main() -> None:
        async with Client(RawServer({"prompts/get": get}), revision=date) as client:
            result = await client.get_prompt("p", {"a": "1"})
            assert result.messages[0].content == TextContent("hello")
            await client.get_prompt("p")
            assert asked_for == [("p", {"a": "1"}), ("p", None)]

    run(main())


@every_revision
@pytest.mark.parametrize(
    ("ref", "sent"),
    [
        (PromptReference("p"), PromptReference("p")),
        (Prompt("p", title="P"), PromptReference("p")),
        (ResourceReference("x://{a}"), ResourceReference("x://{a}")),
        (ResourceTemplate("x://{a}", "t"), ResourceReference("x://{a}")),
    ],
)
def test_an_argument_is_completed(date, ref, sent):
    asked_for: list[Any] = []

    async def complete(asked: Asked) -> Result:
        asked_for.append(asked.params)
        return CompleteResult(Completion(["Ulm"], total=1, has_more=False))

    async def main() -> None:
        async with Client(RawServer({"completion/complete": complete}), revision=date) as client:
            completion = await client.complete(ref, "city", "U", context={"country": "de"})
            assert completion == Completion(["Ulm"], total=1, has_more=False)
            await client.complete(ref, "city")
            first, second = asked_for
            assert first.ref == sent
            assert (first.argument.name, first.argument.value) == ("city", "U")
            assert first.context.arguments == {"country": "de"}
            assert (second.argument.value, second.context) == ("", None)

    run(main())


@pytest.mark.requirement("LOG-6", "LOG-7")
def test_a_log_callback_receives_the_log_without_a_request():
    async def call(asked: Asked) -> Result:
        for level in ("debug", "info", "warning"):
            await asked.log(level, level)
        return await said(asked)

    async def main() -> None:
        heard: list[Any] = []

        async def on_log(line: LogParams) -> None:
            heard.append(line.data)

        client = Client(RawServer({"tools/call": call}), revision=STATELESS, on_log=on_log)
        for _ in range(2):  # settings are forgotten when it reconnects
            async with client:
                await client.call_tool("t")
                await client.set_log_level("warning")
                await client.call_tool("t")
            assert heard == ["info", "warning", "warning"]
            heard.clear()

    run(main())


# --------------------------------------------------------------------- what is left at the end


async def chatter(asked: Asked) -> Result:
    for number in range(20):
        await asked.log("info", number)
    return await said(asked)


@every_revision
def test_messages_before_the_close_are_delivered(date):
    heard: list[Any] = []

    def on_log(line: LogParams) -> None:  # in a thread, so that the callback does not run at once
        heard.append(line.data)

    async def main() -> None:
        async with Client(RawServer({"tools/call": chatter}), revision=date, on_log=on_log) as client:
            await client.call_tool("t")

    run(main())
    assert heard == list(range(20))


def test_a_callback_that_takes_too_long_does_not_hold_up_closing():
    async def main() -> None:
        heard: list[Any] = []

        async def on_log(line: LogParams) -> None:
            heard.append(line.data)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        async with Client(RawServer({"tools/call": chatter}), on_log=on_log) as client:
            await client.call_tool("t")
        assert heard == [0]  # and nothing that waited behind it
        assert asyncio.get_running_loop().time() == CLOSE_PATIENCE

    run(main(), Clock)


def test_a_callback_that_closes_the_client_does_not_wait_for_itself():
    async def main() -> None:
        async def on_log(_: LogParams) -> None:
            await asyncio.create_task(client.close())

        client = Client(RawServer({"tools/call": chatter}), on_log=on_log)
        await client.connect()
        with contextlib.suppress(ChannelClosed):
            await client.call_tool("t")
        await client.close()
        assert asyncio.get_running_loop().time() == 0

    run(main(), Clock)


def test_a_level_that_does_not_exist_fails_at_once():
    async def main() -> None:
        async with Client(RawServer()) as client:
            with pytest.raises(ValueError, match="'loud' is not a log level"):
                await client.set_log_level("loud")  # type: ignore[arg-type] - it is the case

    run(main())


@every_revision
def test_undeclared_capabilities_fail_locally(date):
    async def main() -> None:
        server = RawServer(capabilities=ServerCapabilities())
        async with Client(server, revision=date) as client:
            calls = {
                "tools": client.call_tool("t"),
                "resources": client.read_resource("x://a"),
                "resources.subscribe": client.subscribe("x://a"),
                "prompts": client.get_prompt("p"),
                "logging": client.set_log_level("info"),
            }
            before = list(server.methods)
            for capability, call in calls.items():
                with pytest.raises(CapabilityNotDeclared) as caught:
                    await call
                assert caught.value.capability == capability
                assert capability in str(caught.value)
            assert server.methods == before

    run(main())


@every_revision
def test_a_server_that_does_not_answer_a_ping_is_found_out(date):
    async def main() -> None:
        server = RawServer()
        async with Client(server, revision=date) as client:
            await client.ping()
            server.functions |= {"ping": hang, "server/discover": hang}
            with pytest.raises(RequestTimeout):
                await client.ping(timeout=2.0)

    run(main(), Clock)


async def hang(_: Asked) -> Result:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.requirement("ROOT-2")
@every_revision
def test_the_server_is_notified_of_changed_roots_where_possible(date):
    async def main() -> None:
        server = RawServer()
        async with Client(server, revision=date, on_roots=[]) as client:
            await client.notify_roots_changed()
            await client.ping()
            told = ["notifications/roots/list_changed"] if client.era == "session" else []
            assert [name for name in server.notices if "roots" in name] == told
        async with Client(RawServer(), revision=date) as client:
            with pytest.raises(CapabilityNotDeclared, match="roots"):
                await client.notify_roots_changed()

    run(main())


def test_a_server_that_asks_for_ever_is_given_up():
    async def call(_: Asked) -> Result:
        return InputRequiredResult(request_state="again")

    async def main() -> None:
        server = RawServer({"tools/call": call})
        async with Client(server) as client:
            with pytest.raises(RemoteProtocolError, match="asked for input more than 10 times"):
                await client.call_tool("t")
            assert server.methods.count("tools/call") == 11

    run(main(), Clock)


# --------------------------------------------------------------------- limits


async def slow(asked: Asked) -> Result:
    for step in range(10):
        await asyncio.sleep(40)
        await asked.progress(step + 1, 10)
    return await said(asked)


@pytest.mark.requirement("TIME-1", "TIME-3", "TIME-4")
@pytest.mark.parametrize(
    ("options", "timeout", "waited"),
    [
        ({}, None, 300.0),  # progress comes in time, but the cap is reached
        ({"max_timeout": None}, None, None),
        ({"max_timeout": 500.0}, None, None),
        ({"timeout": 30.0}, None, 30.0),
        ({"timeout": None}, None, None),
        ({}, 30.0, 30.0),
        ({}, 350.0, 350.0),  # a caller may wait longer than the cap
        ({}, math.inf, None),
    ],
)
@every_revision
def test_how_long_a_call_may_take(date, options, timeout, waited):
    async def main() -> None:
        server = RawServer({"tools/call": slow})
        async with Client(server, revision=date, **options) as client:
            if waited is None:
                await client.call_tool("t", timeout=timeout)
                assert client.stats.timeouts == 0
            else:
                with pytest.raises(RequestTimeout):
                    await client.call_tool("t", timeout=timeout)
                assert asyncio.get_running_loop().time() == waited
                await server.until(lambda: server.cancelled)
                assert client.stats.timeouts == 1

    run(main(), Clock)


@every_revision
def test_progress_reaches_the_callback_of_the_call_or_of_the_client(date):
    async def call(asked: Asked) -> Result:
        await asked.progress(1, 2, "half")
        await asked.progress(2, 2)
        return await said(asked)

    async def main() -> None:
        ours: list[ProgressParams] = []
        theirs: list[ProgressParams] = []
        server = RawServer({"tools/call": call})
        async with Client(server, revision=date, on_progress=ours.append) as client:
            await client.call_tool("t", progress=theirs.append)
            await client.call_tool("t")
        for heard in (ours, theirs):
            assert [(line.progress, line.total, line.message) for line in heard] == [
                (1, 2, "half"),
                (2, 2, None),
            ]

    run(main())


def test_a_call_can_be_cancelled_by_its_id_or_by_its_task():
    async def main() -> None:
        server = RawServer({"tools/call": hang})
        async with Client(server) as client:
            first, second = (asyncio.create_task(client.call_tool("t")) for _ in range(2))
            await server.until(lambda: server.methods.count("tools/call") == 2)
            ids = sorted(client.pending)
            assert set(client.pending.values()) == {"tools/call"}
            assert await client.cancel(ids[0], "enough")
            with pytest.raises(MCPError, match="tools/call was cancelled: enough"):
                await first
            second.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await second
            assert not await client.cancel(ids[0])
            await server.until(lambda: len(server.cancelled) == 2)
            assert client.pending == {}

    run(main())


@pytest.mark.requirement("META-5")
def test_a_key_that_is_reserved_cannot_be_sent():
    async def main() -> None:
        async with Client(RawServer()) as client:
            with pytest.raises(LocalProtocolError, match="reserved"):
                await client.call_tool("t", meta={"io.modelcontextprotocol/mine": 1})

    run(main())


def test_notifications_beyond_the_queue_are_counted():
    async def main() -> None:
        gate = asyncio.Event()

        async def on_notification(_: str, __: Any) -> None:
            await gate.wait()

        server = RawServer()
        async with Client(server, revision=DATES[0], on_notification=on_notification) as client:
            for _ in range(MAX_WAITING + 5):
                await server.channel.send(b'{"jsonrpc":"2.0","method":"x/y"}')
            await client.ping()
            assert client.stats.discarded == {"notification over the limit": 5}
            gate.set()

    run(main())


def test_a_notification_whose_params_are_not_an_object_is_harmless():
    async def main() -> None:
        heard: list[Any] = []

        async def on_notification(method: str, params: Any) -> None:
            heard.append((method, params))

        server = RawServer()
        async with Client(server, revision=DATES[0], on_notification=on_notification) as client:
            await server.channel.send(b'{"jsonrpc":"2.0","method":"x/y","params":[1,2]}')
            await server.channel.send(b'{"jsonrpc":"2.0","method":"x/y","params":{"n":1e999}}')
            await server.channel.send(b'{"jsonrpc":"2.0","method":"x/z","params":{}}')
            await client.ping()
            assert heard == [("x/z", {})]
            assert client.stats.discarded == {"malformed notification": 2}

    run(main())


def test_a_notification_callback_may_use_the_client():
    async def main() -> None:
        done = asyncio.Event()

        async def on_notification(_: str, __: Any) -> None:
            await client.ping()
            done.set()

        server = RawServer()
        async with Client(server, revision=DATES[0], on_notification=on_notification) as client:
            await server.channel.send(b'{"jsonrpc":"2.0","method":"x/y"}')
            await done.wait()

    run(main())


# --------------------------------------------------------------------- what cannot work


def test_a_revision_that_does_not_exist_fails_when_the_client_is_made():
    with pytest.raises(ValueError, match="'2020-01-01' is not a protocol revision; use one of 2024-11-05"):
        Client(RawServer(), revision="2020-01-01")


def test_a_request_of_a_stateless_server_is_dropped_and_counted():
    async def main() -> None:
        server = RawServer()
        async with Client(server, on_roots=["file:///r"]) as client:
            await server.channel.send(b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}')
            await client.ping()
            assert client.stats.discarded == {"request to a stateless client": 1}
            assert client.stats.client_requests == 0

    run(main())


@sessions
def test_undeclared_server_requests_are_rejected(date):
    async def call(asked: Asked) -> Result:
        # A server that does not look at what was declared.
        await asked.server.channel.send(b'{"jsonrpc":"2.0","id":77,"method":"roots/list"}')
        return await said(asked)

    async def main() -> None:
        server = RawServer({"tools/call": call})
        async with Client(server, revision=date) as client:
            await client.call_tool("t")
            await client.notify("x/y")
            assert client.stats.discarded == {"rejected message": 1}

    run(main())


# --------------------------------------------------------------------- what a client says of itself


def test_the_repr_of_a_client_names_the_server_and_the_state():
    async def main() -> None:
        client = Client(RawServer(), revision=STATELESS)
        assert repr(client) == "<Client for RawServer: not connected>"
        async with client:
            assert repr(client) == f"<Client for RawServer: connected, {STATELESS}>"
        assert repr(client) == "<Client for RawServer: not connected>"

    run(main())


def test_help_describes_a_result():
    told = inspect.getdoc(ToolResult)
    assert told is not None
    names = [*ToolResult.__struct_fields__, "text"]
    assert [name for name in names if f"\n    {name}: " not in told] == []
