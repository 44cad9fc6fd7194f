"""One conversation: tasks, cancellation, its end, and internal errors."""

import asyncio
import logging
from typing import Any, Self

import pytest

from toolpost import Client, Context, Handler, Server
from toolpost.errors import ChannelClosed, RequestTimeout
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.testing import ScriptedChannel
from toolpost.types import Result

SESSIONS = [date for date in DATES if not REVISIONS[date].stateless]


class Talk:
    """A conversation whose client is the test, past the handshake."""

    def __init__(self, server: Handler, revision: str = SESSIONS[-1], **capabilities: Any) -> None:
        self.channel = ScriptedChannel()
        self.conversation = ServerConversation(server, self.channel)
        self._hello = {
            "protocolVersion": revision,
            "capabilities": capabilities,
            "clientInfo": {"name": "c", "version": "1"},
        }

    async def __aenter__(self) -> Self:
        self.serving = asyncio.create_task(self.conversation.run())
        self.ask("initialize", self._hello, 0)
        assert "result" in await self.channel.next_sent()
        self.channel.feed({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    async def __aexit__(self, *_: object) -> None:
        self.channel.end()
        await self.serving

    def ask(self, method: str, params: dict[str, Any], request_id: int | str) -> None:
        self.channel.feed({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})

    def call(self, name: str, request_id: int | str) -> None:
        self.ask("tools/call", {"name": name}, request_id)


def asking() -> Server:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            return str(await ctx.elicit("Well?", str))
        except ChannelClosed as error:
            return f"closed: {error}"

    @server.tool
    async def impatient(ctx: Context) -> str:
        try:
            await ctx.elicit("Well?", str, timeout=0)
        except RequestTimeout as error:
            return str(error)
        return ""

    @server.tool
    async def forever() -> str:
        await asyncio.Event().wait()
        return ""

    return server


def test_a_question_goes_out_on_the_stream_of_its_request():
    async def main() -> None:
        async with Talk(asking(), elicitation={}) as talk:
            talk.call("ask", "a")
            question = await talk.channel.next_sent()
            assert question["method"] == "elicitation/create"
            assert talk.channel.related[-1] == "a"
            answer = {"action": "accept", "content": {"value": "fine"}}
            talk.channel.feed({"jsonrpc": "2.0", "id": question["id"], "result": answer})
            assert "fine" in (await talk.channel.next_sent())["result"]["content"][0]["text"]
            talk.channel.feed({"jsonrpc": "2.0", "id": question["id"], "result": answer})  # a second time
            talk.ask("ping", {}, "b")
            assert (await talk.channel.next_sent())["id"] == "b"

    asyncio.run(main())


def test_an_error_answer_is_raised_where_it_was_asked():
    async def main() -> None:
        async with Talk(asking(), elicitation={}) as talk:
            talk.call("ask", "a")
            question = await talk.channel.next_sent()
            error = {"code": -1, "message": "no"}
            talk.channel.feed({"jsonrpc": "2.0", "id": question["id"], "error": error})
            assert (await talk.channel.next_sent())["error"]["code"] == -1

    asyncio.run(main())


@pytest.mark.requirement("TIME-2", "CANC-1")
def test_a_question_without_an_answer_is_withdrawn():
    async def main() -> None:
        async with Talk(asking(), elicitation={}) as talk:
            talk.call("impatient", "a")
            sent = [await talk.channel.next_sent() for _ in range(3)]
            methods = {message.get("method", "answer"): message for message in sent}
            assert set(methods) == {"elicitation/create", "notifications/cancelled", "answer"}
            withdrawn = methods["notifications/cancelled"]["params"]["requestId"]
            assert withdrawn == methods["elicitation/create"]["id"]
            assert "within 0 s" in methods["answer"]["result"]["content"][0]["text"]

    asyncio.run(main())


def test_the_end_of_the_channel_ends_everything():
    async def main() -> None:
        before = asyncio.all_tasks()
        talk = Talk(asking(), elicitation={})
        await talk.__aenter__()
        talk.call("ask", 1)
        assert (await talk.channel.next_sent())["method"] == "elicitation/create"
        talk.call("forever", 2)
        talk.ask("ping", {}, 3)
        assert (await talk.channel.next_sent())["id"] == 3
        await talk.__aexit__()
        assert talk.channel.closed
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_a_client_that_has_gone_before_its_answer_is_harmless():
    async def main() -> None:
        server = Server("s")
        go = asyncio.Event()

        @server.tool
        async def wait() -> str:
            await go.wait()
            return ""

        async with Talk(server) as talk:
            talk.call("wait", 1)
            talk.ask("ping", {}, 2)
            await talk.channel.next_sent()
            talk.channel.broken = ChannelClosed("gone")
            go.set()
            await talk.conversation.drain()

    asyncio.run(main())


def test_draining_waits_for_the_answers():
    async def main() -> None:
        server = Server("s")
        go = asyncio.Event()

        @server.tool
        async def wait() -> str:
            await go.wait()
            return "done"

        async with Talk(server) as talk:
            talk.call("wait", 1)
            talk.ask("ping", {}, 2)
            await talk.channel.next_sent()
            draining = asyncio.create_task(talk.conversation.drain())
            await asyncio.sleep(0)
            assert not draining.done()
            go.set()
            await draining
            assert (await talk.channel.next_sent())["result"]["content"][0]["text"] == "done"

    asyncio.run(main())


def test_what_is_refused_is_answered_and_what_means_nothing_is_dropped():
    async def main() -> None:
        async with Talk(asking()) as talk:
            talk.channel.feed(b"no json", {"jsonrpc": "2.0", "id": 9, "result": {}})
            assert (await talk.channel.next_sent())["error"]["code"] == -32700
            talk.channel.feed({"jsonrpc": "2.0", "method": "notifications/cancelled"})
            talk.channel.feed(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}
            )
            talk.ask("ping", {}, 1)
            assert (await talk.channel.next_sent())["id"] == 1

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError("secret"), SystemExit("secret"), KeyboardInterrupt("secret")])
def test_a_route_that_answers_at_once_may_fail_at_once(error, caplog):
    async def main() -> None:
        server = Server("s")

        def broken(ctx: Context, params: Any) -> Result:
            raise error

        server.routes = {**server.routes, "ping": broken}
        async with Talk(server) as talk:
            talk.ask("ping", {}, 1)
            answer = await talk.channel.next_sent()
            assert answer["error"]["code"] == -32603
            assert "secret" not in str(answer)

    with caplog.at_level(logging.ERROR, "toolpost.server"):
        asyncio.run(main())
    assert "secret" in caplog.text


def test_a_client_that_has_gone_before_an_answer_that_is_there_at_once_ends_the_conversation():
    async def main() -> None:
        talk = Talk(Server("s"))
        await talk.__aenter__()
        talk.channel.broken = ChannelClosed("gone")
        talk.ask("ping", {}, 1)
        await talk.serving
        assert talk.channel.closed

    asyncio.run(main())


def test_a_request_that_was_cancelled_gets_no_answer():
    async def main() -> None:
        async with Talk(asking()) as talk:
            talk.call("forever", 1)
            talk.channel.feed(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
            )
            talk.ask("ping", {}, 2)
            assert (await talk.channel.next_sent())["id"] == 2
            assert talk.channel.unread == 0

    asyncio.run(main())


def test_a_notification_that_arrives_with_the_end_is_dropped():
    async def main() -> None:
        server = Server("s")
        server.on_notification("example/x")(lambda ctx: None)
        channel = ScriptedChannel()
        channel.feed({"jsonrpc": "2.0", "method": "example/x"})
        channel.end()
        await ServerConversation(server, channel).run()

    asyncio.run(main())


def test_no_change_is_sent_before_the_handshake():
    async def main() -> None:
        server = asking()
        channel = ScriptedChannel()
        serving = asyncio.create_task(ServerConversation(server, channel).run())
        await asyncio.sleep(0)
        server.tool(name="new")(lambda: "")
        await asyncio.sleep(0)
        channel.feed({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert (await channel.next_sent())["id"] == 1
        channel.end()
        await serving

    asyncio.run(main())


def test_undeclared_notifications_are_not_sent():
    class Bare(Handler):
        """Serves nothing."""

    async def main() -> None:
        bare = Bare()
        async with Talk(bare) as talk:
            bare.broadcaster.broadcast_list_changed("tools")
            talk.ask("ping", {}, 1)
            assert (await talk.channel.next_sent())["id"] == 1

    asyncio.run(main())


def test_a_call_from_another_loop_leaves_ours_alone():
    """A mistake that affects no other client: tasks of a loop are entered where it runs."""
    server = Server("x")
    seen: list[Any] = []

    @server.tool
    async def whose() -> None:
        seen.append(asyncio.current_task())

    @server.tool
    async def later() -> None:
        await asyncio.sleep(0)

    async def call() -> None:
        await client.call_tool("whose")

    client = Client(server)
    ours, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        ours.run_until_complete(client.connect())
        caller = other.create_task(call())
        other.run_until_complete(asyncio.wait({caller}))
        assert seen[0] is not caller
        again = other.create_task(client.call_tool("later"))
        with pytest.raises(RuntimeError, match=r"connected in another event loop.* SyncClient"):
            other.run_until_complete(again)
        assert seen[0].get_loop() is other
    finally:
        ours.run_until_complete(client.close())
        ours.close()
        other.close()
