"""Tools that must not run twice: lost sessions, upstream refusals, withdrawn hints, replayed states."""

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from hosted import call, legacy, modern, serving
from request_state_talk import REFUSED, Name, Talk
from toolpost import Client, Context, Extension, ForwardedResult, Handler, KeyRing, Server, SyncContext
from toolpost.errors import (
    InvalidParams,
    MissingScopes,
    RateLimited,
    RPCError,
    SessionLost,
    ToolError,
    UnsupportedRevision,
    UrlElicitationRequired,
)
from toolpost.server.middleware import Call, Next
from toolpost.types import (
    CallToolResult,
    ListCapability,
    Params,
    PromptReference,
    Result,
    ServerCapabilities,
    ToolAnnotations,
)

SESSION = "2025-11-25"
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


class ForgetfulServer:
    """An ASGI application that runs `pay`, answers 404 as if its session had ended, and counts the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        status, kind, data = self.answer(scope["method"], body)
        headers = [(b"content-type", kind), (b"mcp-session-id", b"s")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    def answer(self, method: str, body: bytes) -> tuple[int, bytes, bytes]:
        message = json.loads(body) if method == "POST" else {}
        result: Any = {"content": [{"type": "text", "text": "done"}]}
        match message.get("method"):
            case "initialize":
                about = {"name": "s", "version": "1"}
                tools = {"tools": {"listChanged": True}}
                result = {"protocolVersion": SESSION, "capabilities": tools, "serverInfo": about}
            case "tools/list":
                pay = {"name": "pay", "inputSchema": {"type": "object"}}
                result = {"tools": [{**pay, "annotations": {"idempotentHint": True}}]}
            case "tools/call":
                self.calls.append(message["params"]["name"])
                if self.calls.count("pay") == 1 and self.calls[-1] == "pay":
                    return 404, b"text/plain", b""
            case _:
                return (202 if method == "POST" else 405), b"text/plain", b""
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        if message.get("params", {}).get("name") == "change":
            events = "".join(f"data: {json.dumps(each)}\n\n" for each in (CHANGED, answer))
            return 200, b"text/event-stream", events.encode()
        return 200, b"application/json", json.dumps(answer).encode()


class RelayingServer(ForgetfulServer):
    """Answers a call with the error of another server: that it does not support the revision."""

    def answer(self, method: str, body: bytes) -> tuple[int, bytes, bytes]:
        message = json.loads(body) if method == "POST" else {}
        if message.get("method") != "tools/call":
            return super().answer(method, body)
        self.calls.append(message["params"]["name"])
        error = {"code": UnsupportedRevision.code, "message": "no", "data": {"supported": [SESSION]}}
        answer = {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return 200, b"application/json", json.dumps(answer).encode()


def test_a_relayed_error_about_the_revision_does_not_repeat_the_call():
    async def main() -> None:
        server = RelayingServer()
        async with Client("http://s.test/mcp", http=server, revision=SESSION) as client:
            with pytest.raises(UnsupportedRevision):
                await client.call_tool("pay")
            assert server.calls == ["pay"]

    asyncio.run(main())


def test_a_session_that_ends_during_a_call_never_repeats_the_call():
    async def main() -> None:
        server = ForgetfulServer()
        async with Client("http://s.test/mcp", http=server, revision=SESSION) as client:
            with pytest.raises(SessionLost) as caught:
                await client.call_tool("pay")
            assert caught.value.sent
            assert server.calls == ["pay"]
            await client.call_tool("other")  # in a new session

    asyncio.run(main())


def test_a_session_that_is_deleted_during_a_call_never_repeats_the_call():
    async def main() -> None:
        server, sessions, go, begun = Server("shop"), list[str](), asyncio.Event(), asyncio.Event()
        app, calls = server.asgi(), list[int]()

        @server.tool
        async def pay() -> str:
            calls.append(len(sessions))
            begun.set()
            await go.wait()
            return "paid"

        async def record_sessions(scope: Any, receive: Any, send: Any) -> None:
            session = dict(scope.get("headers", ())).get(b"mcp-session-id", b"").decode()
            if session and session not in sessions:
                sessions.append(session)
            await app(scope, receive, send)

        async with (
            serving(record_sessions) as site,
            Client(f"http://127.0.0.1:{site.port}/mcp", revision=SESSION) as client,
        ):
            call = asyncio.ensure_future(client.call_tool("pay"))
            await begun.wait()
            assert (await site.ask("DELETE", "/mcp", legacy(sessions[0], SESSION))).status == 200
            with pytest.raises(SessionLost):
                await call
            assert calls == [1]
            go.set()
            await client.call_tool("pay")
            await site.ask("DELETE", "/mcp", legacy(sessions[1], SESSION))
            assert (await client.call_tool("pay")).text == "paid"  # the server says that it was not executed
            assert calls == [1, 2, 3]

    asyncio.run(main())


@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_hint_counts_until_the_list_changes(withdrawn):
    async def main() -> None:
        server = ForgetfulServer()
        async with Client("http://s.test/mcp", http=server, revision=SESSION) as client:
            await client.list_tools()
            if withdrawn:
                await client.call_tool("change")
                with pytest.raises(SessionLost):
                    await client.call_tool("pay")
            else:
                await client.call_tool("pay")
            assert server.calls.count("pay") == (1 if withdrawn else 2)

    asyncio.run(main())


VISIT = {"mode": "url", "message": "m", "url": "https://evil.test/", "elicitationId": "1"}
UPSTREAM = [
    RateLimited("too fast", {"retryAfter": 0}),
    UnsupportedRevision("not that one", {"supported": [SESSION], "requested": SESSION}),
    MissingScopes.for_scopes(['a", resource_metadata="https://evil.test']),
    UrlElicitationRequired("sign in", {"elicitations": [VISIT]}),
]


@pytest.mark.parametrize("error", UPSTREAM, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("revision", [SESSION, "2026-07-28"])
def test_an_error_of_an_upstream_server_is_an_error_of_the_tool(error, revision):
    upstream, server = Server("upstream"), Server("s")
    runs: list[str] = []
    visits: list[object] = []

    @upstream.tool
    def refuse() -> str:
        raise error

    async def use() -> str:
        runs.append("run")
        async with Client(upstream, revision=SESSION, retries=0) as client:
            return str(await client.call_tool("refuse"))

    server.tool(use)
    server.resource("x://use")(use)
    server.prompt(name="use")(lambda word="": use()).complete("word")(lambda word: use())

    async def main() -> None:
        ask = lambda asked: visits.append(asked.url)  # noqa: E731 - never called
        async with Client(
            "http://127.0.0.1/mcp", http=server.asgi(), revision=revision, on_elicitation=ask
        ) as client:
            with pytest.raises(ToolError, match="upstream"):
                await client.call_tool("use")
            completion = client.complete(PromptReference("use"), "word", "w")
            for work in (client.get_prompt("use"), client.read_resource("x://use"), completion):
                with pytest.raises(RPCError) as caught:
                    await work
                assert caught.value.code == -32603
        assert (len(runs), visits) == (4, [])

    asyncio.run(main())


class Nothing(Result):
    """A result without members."""


@pytest.mark.parametrize("error", UPSTREAM, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("revision", [SESSION, "2026-07-28"])
def test_an_error_of_an_upstream_server_is_not_ours_behind_a_tool_either(error, revision):
    """Middleware, methods of extensions and low-level servers use clients, too."""
    upstream, extension = Server("upstream"), Extension("com.example/pay", since="2024-11-05")
    runs: list[str] = []
    visits: list[object] = []

    @upstream.tool
    def refuse() -> str:
        raise error

    async def use(*_: object) -> Nothing:
        runs.append("run")
        async with Client(upstream, revision=SESSION, retries=0) as client:
            await client.call_tool("refuse")
        return Nothing()

    async def audit(call: Call, step: Next) -> object:
        result = await step(call)
        if call.method == "tools/call":
            await use()
        return result

    class LowLevel(Handler):
        async def call_tool(self, name: str, arguments: object, ctx: Context) -> CallToolResult:
            await use()
            return CallToolResult([])

    extension.method("pay/now", Params, Nothing)(use)
    audited = Server("s", middleware=[audit], extensions=[extension])
    audited.tool(name="pay")(lambda: runs.append("paid"))

    async def main() -> None:
        options: Any = {
            "revision": revision,
            "extensions": [extension],
            "on_elicitation": lambda asked: visits.append(asked.url),
        }
        for server in (audited, LowLevel("low")):
            async with Client("http://127.0.0.1/mcp", http=server.asgi(), **options) as client:
                with pytest.raises(RPCError, match="upstream") as caught:
                    await client.call_tool("pay")
                assert caught.value.code == -32603
                if server is audited:
                    with pytest.raises(RPCError, match="upstream") as caught:
                        await client.request("pay/now", {})
                    assert caught.value.code == -32603
        assert (runs, visits) == (["paid", "run", "run", "run"], [])

    asyncio.run(main())


@pytest.mark.parametrize("error", UPSTREAM, ids=lambda error: type(error).__name__)
def test_an_error_of_the_client_that_was_asked_is_an_error_of_the_tool(error):
    server = Server("s")
    runs: list[str] = []

    @server.tool
    async def use(ctx: Context) -> str:
        runs.append("run")
        return str(await ctx.sample("hello", max_tokens=5))

    def sample(_: object) -> Any:
        raise error

    async def main() -> None:
        async with serving(server.asgi()) as site:
            url = f"http://127.0.0.1:{site.port}/mcp"
            async with Client(url, revision=SESSION, on_sampling=sample) as client:
                with pytest.raises(ToolError):
                    await client.call_tool("use")
        assert runs == ["run"]

    asyncio.run(main())


@pytest.mark.parametrize("error", UPSTREAM[:3], ids=lambda error: type(error).__name__)
def test_what_a_gateway_forwards_is_neither_a_status_nor_a_challenge(error):
    upstream = Server("upstream")

    @upstream.tool
    def refuse() -> str:
        raise error

    class Gateway(Handler):
        async def forward_request(self, method: str, params: bytes, ctx: Context) -> ForwardedResult:
            async with Client(upstream, revision=SESSION, retries=0) as client:
                return await client.forward(method, params)

        def capabilities(self) -> ServerCapabilities:
            return ServerCapabilities(tools=ListCapability())

    async def main() -> None:
        async with serving(Gateway("gateway").asgi()) as site:
            answer = await site.post(*modern("tools/call", call("refuse")))
            assert (answer.status, answer.json["error"]["code"]) == (200, error.code)
            assert not {"www-authenticate", "retry-after"} & answer.headers.keys()

    asyncio.run(main())


def test_what_is_no_scope_does_not_get_into_a_header():
    server = Server("s")

    @server.tool
    async def use() -> str:
        raise MissingScopes.for_scopes(["read", 'a",resource_metadata="https://evil.test', "é", "b\\"])

    async def main() -> None:
        async with serving(server.asgi(principal=lambda _: "alice")) as site:
            answer = await site.post(*modern("tools/call", call("use")))
            assert answer.status == 403
            assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="read"'

    asyncio.run(main())


def test_a_state_with_steps_is_used_once():
    server = Server("s")
    shipped: list[str] = []

    @server.tool
    async def greet(ctx: Context) -> str:
        paid = await ctx.step("pay", lambda: "paid")
        await ctx.elicit("What is your name?", Name, key="user_name")
        shipped.append(paid)
        return paid

    async def main() -> None:
        async with Talk(server) as talk:
            first = await talk.ask()
            await talk.ask(first.request_state)
            with pytest.raises(InvalidParams, match=REFUSED):
                await talk.ask(first.request_state)
        assert shipped == ["paid"]

    asyncio.run(main())


@pytest.mark.parametrize("encrypts", [False, True])
def test_equal_calls_have_states_of_their_own(encrypts):
    """Otherwise the second of two users with equal concurrent calls could not answer."""
    server = Server("s", keys=KeyRing(["k" * 32], encrypt=encrypts))
    paid: list[str] = []

    @server.tool
    async def greet(ctx: Context) -> str:
        await ctx.elicit("What is your name?", Name, key="user_name")
        await ctx.step("pay", paid.append, "paid")
        return "done"

    async def main() -> None:
        async with Talk(server) as talk:
            states = [(await talk.ask()).request_state for _ in range(20)]
            for state in states:
                assert (await talk.ask(state)).content[0].text == "done"
        assert len(paid) == len(states)

    asyncio.run(main())


@pytest.mark.parametrize("threaded", [False, True])
def test_steps_behind_the_last_question_run_once(threaded):
    """The state holds no step yet, so the client may send the same answers again until one begins."""
    server = Server("s")
    paid: list[str] = []

    async def greet(ctx: Context) -> str:
        await ctx.elicit("What is your name?", Name, key="user_name")
        await asyncio.gather(*(ctx.step(name, paid.append, name) for name in ("pay", "ship")))
        return "done"

    def greet_in_thread(ctx: SyncContext) -> str:
        ctx.elicit("What is your name?", Name, key="user_name")
        for name in ("pay", "ship"):
            ctx.step(name, paid.append, name)
        return "done"

    work: Any = greet_in_thread if threaded else greet
    server.tool(name="greet")(work)

    async def main() -> None:
        async with Talk(server) as talk:
            first = await talk.ask()
            assert (await talk.ask(first.request_state)).content[0].text == "done"
            with pytest.raises(InvalidParams, match=REFUSED):
                await talk.ask(first.request_state)
        assert sorted(paid) == ["pay", "ship"]

    asyncio.run(main())


def test_a_state_of_a_destructive_tool_is_used_once():
    server = Server("s")
    deleted: list[str] = []

    @server.tool(annotations=ToolAnnotations(destructive_hint=True))
    async def greet(ctx: Context) -> str:
        await ctx.elicit("What is your name?", Name, key="user_name")
        deleted.append("all")
        return "done"

    async def main() -> None:
        async with Talk(server) as talk:
            first = await talk.ask()
            assert (await talk.ask(first.request_state)).content[0].text == "done"
            with pytest.raises(InvalidParams, match=REFUSED):
                await talk.ask(first.request_state)
        assert deleted == ["all"]

    asyncio.run(main())


PAYMENTS: list[str] = []


class Receipt: ...


def pay() -> Receipt:
    PAYMENTS.append("paid")
    return Receipt()


async def pay_later() -> list[Receipt]:
    return [pay()]


class Till:
    def __call__(self) -> Receipt:
        return pay()

    def take(self) -> "Receipt":
        return pay()


@pytest.mark.parametrize("revision", [SESSION, "2026-07-28"])
@pytest.mark.parametrize("step", [pay, pay_later, partial(pay), Till(), Till().take])
def test_a_step_that_cannot_be_stored_does_not_run(step, revision):
    server = Server("s")

    @server.tool
    async def buy(ctx: Context) -> str:
        await ctx.step("pay", step)
        return "bought"

    async def main() -> None:
        async with Client(server, revision=revision) as client:
            with pytest.raises(ToolError, match="cannot be stored"):
                await client.call_tool("buy")
        assert PAYMENTS == []

    asyncio.run(main())
