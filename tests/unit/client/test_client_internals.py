"""The methods of a client, against a server of every revision."""

import asyncio
import inspect
import pydoc
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import pytest

from client_cases import STATELESS, WRONG, Schooled, every_revision, ids, said, sessions
from raw_server import ALL, Asked, RawServer, run
from toolpost.client.client import Client
from toolpost.client.connection.status import Stats
from toolpost.connect import InProcessChannel
from toolpost.errors import (
    InternalError,
    InvalidParams,
    LocalProtocolError,
    RemoteProtocolError,
    ToolError,
    UserRejected,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.methods import DATES, Row
from toolpost.types import (
    CallToolResult,
    ClientRequestParams,
    CreateMessageParams,
    ElicitParams,
    InputRequest,
    InputRequiredResult,
    LogParams,
    NotificationParams,
    Raw,
    Result,
    Root,
    SamplingMessage,
    ServerCapabilities,
    TextContent,
)


def test_a_tool_error_has_a_note_about_the_servers_stderr():
    async def fail(_: Asked) -> Result:
        return CallToolResult(content=[TextContent("its log tells why")], is_error=True)

    class Chatty(InProcessChannel):
        stderr_hint: str | None = "it goes to the logger"

    async def main() -> None:
        channel = Chatty(RawServer({"tools/call": fail}))
        async with Client(channel) as client:
            for notes in (["it goes to the logger"], []):
                with pytest.raises(ToolError) as caught:
                    await client.call_tool("t")
                assert str(caught.value) == "its log tells why"  # hosts show it to models
                assert getattr(caught.value, "__notes__", []) == notes
                channel.stderr_hint = None

    run(main())


@pytest.mark.requirement("TOOL-14")
@pytest.mark.parametrize("date", DATES[2:])
def test_structured_content_is_validated_after_the_tools_are_listed(date):
    async def main() -> None:
        server = Schooled(WRONG)
        async with Client(server, revision=date) as client:
            await client.call_tool("t")
            await client.list_tools()
            with pytest.raises(RemoteProtocolError, match=r"structured content\['n'\]"):
                await client.call_tool("t")
            await client.call_tool("t", validate=False)
            if client.era == "session":
                await server.channel.send(server.connection.notify("notifications/tools/list_changed"))
                await client.ping()
                await client.call_tool("t")  # the cached schema may be outdated

    run(main())


# --------------------------------------------------------------------- logs, ping, roots


@every_revision
def test_the_log_starts_at_the_level_that_was_set(date):
    async def call(asked: Asked) -> Result:
        for level in ("debug", "info", "warning"):
            await asked.log(level, level.upper())
        return await said(asked)

    async def set_level(asked: Asked) -> Result:
        asked.server.connection.log_level = asked.params.level
        return Result()

    async def main() -> None:
        heard: list[LogParams] = []

        async def on_log(line: LogParams) -> None:
            heard.append(line)

        server = RawServer({"tools/call": call, "logging/setLevel": set_level})
        async with Client(server, revision=date, on_log=on_log) as client:
            await client.set_log_level("info")
            await client.call_tool("t")
            await client.ping()
            assert [(line.level, line.data) for line in heard] == [("info", "INFO"), ("warning", "WARNING")]

    run(main())


@pytest.mark.parametrize(
    ("on_log", "capabilities"), [(None, ALL), (list[LogParams]().append, ServerCapabilities(tools=ALL.tools))]
)
def test_no_log_is_requested_without_a_callback_or_a_capability(on_log, capabilities):
    async def call(asked: Asked) -> Result:
        assert asked.incoming.peer.log_level is None
        return await said(asked)

    async def main() -> None:
        server = RawServer({"tools/call": call}, capabilities=capabilities)
        async with Client(server, revision=STATELESS, on_log=on_log) as client:
            await client.call_tool("t")

    run(main())


def asking(method: str, params: Any = None) -> RawServer:
    """A server with a tool that asks the client, as its revision does, and returns the raw answer."""

    async def call(asked: Asked) -> Result:
        ids.append(asked.id)
        if asked.incoming.peer.revision.stateless:
            assert asked.incoming.peer.info is not None
            answers = asked.params.input_responses
            if answers is None:
                ask = InputRequest(method, Raw(b"{}") if params is None else Raw(jsonrpc.encode(params)))
                return InputRequiredResult(input_requests={"q": ask}, request_state="state")
            assert asked.params.request_state == "state"
            return CallToolResult(content=[TextContent(bytes(answers["q"]).decode())])
        try:
            answer = await asked.ask(method, params)
        except (InternalError, UserRejected, InvalidParams) as error:
            return CallToolResult(content=[TextContent(f"{error.code}")], is_error=True)
        return CallToolResult(content=[TextContent((answer.raw or b"").decode())])

    return RawServer({"tools/call": call})


@pytest.mark.requirement("MRTR-21", "MRTR-23", "TOOL-23", "META-7", "META-8", "META-9")
@every_revision
def test_the_same_callbacks_serve_both_eras(date):
    question = CreateMessageParams(messages=[SamplingMessage("user", TextContent("hi"))], max_tokens=3)
    form = ElicitParams(message="who?", requested_schema={"type": "object", "properties": {}})
    cases: list[tuple[str, Any, dict[str, Any], str]] = [
        ("sampling/createMessage", question, {"on_sampling": lambda _: "hello"}, '"text":"hello"'),
        ("roots/list", None, {"on_roots": ["file:///r"]}, '{"roots":[{"uri":"file:///r"}]}'),
        (
            "elicitation/create",
            form,
            {"on_elicitation": lambda _: {"name": "Ada"}},
            '{"action":"accept","content":{"name":"Ada"}}',
        ),
    ]

    async def main() -> None:
        for method, params, callbacks, answer in cases:
            if method == "elicitation/create" and date in DATES[:2]:
                continue  # before elicitation existed
            server = asking(method, params)
            ids.clear()
            async with Client(server, revision=date, **callbacks) as client:
                assert answer in (await client.call_tool("t")).text
                assert client.stats.client_requests == (client.era == "session")
                assert len(set(ids)) == len(ids) == (1 if client.era == "session" else 2)

    run(main())


@sessions
def test_a_callback_that_fails_does_not_fail_the_connection(date, caplog):
    def fail(_: Any) -> str:
        raise LookupError("a secret")

    async def main() -> None:
        params = CreateMessageParams(messages=[], max_tokens=3)
        async with Client(
            asking("sampling/createMessage", params), revision=date, on_sampling=fail
        ) as client:
            with pytest.raises(ToolError, match="-32603"):
                await client.call_tool("t")
            await client.ping()

    run(main())
    assert "a secret" in caplog.text


@sessions
def test_a_callback_may_ask_back(date):
    async def main() -> None:
        async def on_roots() -> list[Root]:
            await client.ping()
            return [Root("file:///r")]

        async with Client(asking("roots/list"), revision=date, on_roots=on_roots) as client:
            assert "file:///r" in (await client.call_tool("t")).text

    run(main())


@sessions
def test_a_custom_method_of_the_server_is_answered(date):
    own = Row("x/own", ClientRequestParams, Result)

    async def call(asked: Asked) -> Result:
        answer = await asked.ask(own, {"a": 1})
        return CallToolResult(content=[TextContent((answer.raw or b"").decode())])

    async def main() -> None:
        server = RawServer({"tools/call": call})
        handlers = {"x/own": lambda params: {"got": params}}
        async with Client(server, revision=date, request_handlers=handlers) as client:
            assert (await client.call_tool("t")).text == '{"got":{"a":1}}'

    run(main())


def test_a_stateless_callback_that_fails_fails_its_call():
    def refuse(_: Any) -> None:
        raise LookupError("no user here")

    async def main() -> None:
        params = ElicitParams(message="?", requested_schema={"type": "object", "properties": {}})
        async with Client(asking("elicitation/create", params), on_elicitation=refuse) as client:
            with pytest.raises(LookupError, match="no user here"):
                await client.call_tool("t")

    run(main())


# --------------------------------------------------------------------- raw


class OwnDict(TypedDict):
    n: int


class OwnResult(Result):
    n: int


@every_revision
def test_custom_requests_and_notifications_can_be_sent(date):
    own = Row("x/own", ClientRequestParams, Result)

    async def answer(asked: Asked) -> Result | Raw:
        return Raw(b'{"n":%d,"_meta":{}}' % len(asked.meta))

    @dataclass
    class Number:
        n: int

    async def main() -> None:
        server = RawServer({"x/own": answer, "tools/call": said}, extra={"x/own": own})
        async with Client(server, revision=date) as client:
            facts = 3 if client.era == "stateless" else 0
            result = await client.request("x/own", {"a": 1})
            assert type(result) is Result
            assert result.raw == b'{"n":%d,"_meta":{}}' % facts
            assert await client.request("x/own", meta={"a.b/c": 1}, result_type=Number) == Number(facts + 1)
            assert await client.request("x/own", result_type=dict) == {"n": facts, "_meta": {}}
            assert await client.request("x/own", result_type=dict[str, Any]) == {"n": facts, "_meta": {}}
            assert (await client.request("x/own", result_type=OwnDict))["n"] == facts
            assert (await client.request("x/own", result_type=OwnResult)).n == facts
            with pytest.raises(RemoteProtocolError, match="the result of x/own is not of type int"):
                await client.request("x/own", result_type=int)
            called = await client.request("tools/call", {"name": "t"}, result_type=CallToolResult)
            assert called.content == [TextContent("one")]
            await client.notify("x/said", {"a": 1})
            await client.notify("x/said", NotificationParams(meta={"a": 1}))
            await client.ping()
            assert server.notices.count("x/said") == 2
            missing = "ping" if client.era == "stateless" else "server/discover"
            with pytest.raises(LocalProtocolError, match=f"a client cannot send {missing}"):
                await client.request(missing)
            with pytest.raises(LocalProtocolError):
                await client.notify("notifications/message", {"level": "info", "data": 1})

    run(main())


# --------------------------------------------------------------------- notifications


@sessions
def test_every_other_notification_reaches_the_callback_in_order(date):
    async def main() -> None:
        heard: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

        async def on_notification(method: str, params: Any) -> None:
            heard.put_nowait((method, params))

        server = RawServer()
        async with Client(server, revision=date, on_notification=on_notification):
            connection = server.connection
            await server.channel.send(connection.notify("notifications/tools/list_changed"))
            await server.channel.send(connection.notify(Row("x/own", NotificationParams), {"a": 1}))
            await server.channel.send(b'{"jsonrpc":"2.0","method":"x/none"}')
            await server.channel.send(
                connection.notify("notifications/message", {"level": "info", "data": 1})
            )
            assert (await heard.get())[0] == "notifications/tools/list_changed"
            assert await heard.get() == ("x/own", {"a": 1})
            assert await heard.get() == ("x/none", {})
            assert await heard.get() == ("notifications/message", LogParams(level="info", data=1))

    run(main())


def test_notifications_without_a_callback_are_dropped_silently():
    async def main() -> None:
        server = RawServer()
        async with Client(server, revision=DATES[0]) as client:
            await server.channel.send(
                server.connection.notify("notifications/message", {"level": "info", "data": 1})
            )
            await client.ping()
            assert client.stats.notifications == 1

    run(main())


def test_help_describes_the_statistics():
    assert "stats" in pydoc.plain(pydoc.render_doc(Client))
    told = inspect.getdoc(Stats)
    assert told is not None
    assert [field.name for field in fields(Stats) if f"\n    {field.name}: " not in told] == []
