"""Links: one connection over one channel, with everything that can go wrong."""

import asyncio
import logging
from typing import Any, Self

import pytest

from raw_server import ALL, Clock, run
from toolpost.client.connection.dispatcher import CALLBACK_CLOSE_TIMEOUT, Dispatcher
from toolpost.client.connection.incoming import MAX_QUEUED_CALLBACKS
from toolpost.client.connection.pending import NO_LIMITS, CallLimits
from toolpost.client.connection.status import Stats
from toolpost.errors import (
    CapabilityNotDeclared,
    ChannelClosed,
    InvalidParams,
    LocalProtocolError,
    MCPError,
    RemoteProtocolError,
    RequestTimeout,
)
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest, InvalidMessageReceived, NotificationReceived
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, Revision
from toolpost.testing import ScriptedChannel
from toolpost.types import (
    ClientCapabilities,
    Implementation,
    ListCapability,
    ListRootsResult,
    ProgressParams,
    Result,
    Root,
    ServerCapabilities,
)

LIST = {"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}


class Harness:
    """A link over a scripted channel, in the middle of a conversation."""

    def __init__(
        self,
        revision: Revision = LATEST_SESSION,
        capabilities: ServerCapabilities = ALL,
        answer: Any = None,
    ) -> None:
        party = LocalPeer(Implementation("me", "1"), ClientCapabilities(roots=ListCapability()))
        self.channel = ScriptedChannel()
        self.stats = Stats()
        self.notices: list[NotificationReceived] = []
        self.answer = answer
        self.connection = Connection(party, peer=Peer(revision, capabilities, Implementation("them", "1")))
        self.link = Dispatcher(
            self.channel,
            self.connection,
            self.stats,
            on_client_request=self._ask,
            on_notification=self.notices.append,
        )

    async def _ask(self, incoming: InboundRequest) -> Result:
        return await self.answer(incoming)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()
        assert self.channel.closed
        assert not self.link.calls
        assert not self.connection.outgoing

    def start(self, **limits: Any) -> asyncio.Task[Result]:
        return asyncio.create_task(self.link.request(CallLimits(**limits), "tools/list"))


async def turns(count: int = 10) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


# --------------------------------------------------------------------- answers


def test_a_request_is_answered():
    async def main() -> None:
        async with Harness() as it:
            call = it.start()
            sent = await it.channel.next_sent()
            assert (sent["id"], sent["method"]) == (1, "tools/list")
            assert [call.method for call in it.link.calls.values()] == ["tools/list"]
            it.channel.feed(LIST)
            assert (await call).raw == b'{"tools":[]}'
            assert it.stats.requests == 1

    run(main())


def test_answers_find_their_requests_in_any_order():
    async def main() -> None:
        async with Harness() as it:
            calls = [it.start() for _ in range(3)]
            await turns()
            for number in (3, 1, 2):
                it.channel.feed({"jsonrpc": "2.0", "id": number, "result": {"tools": [], "n": number}})
            raw = [(await call).raw for call in calls]
            assert raw == [b'{"tools":[],"n":%d}' % number for number in (1, 2, 3)]

    run(main())


def test_an_error_answer_is_raised_with_the_name_of_the_server():
    async def main() -> None:
        async with Harness() as it:
            call = it.start()
            await it.channel.next_sent()
            it.channel.feed({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no such tool"}})
            with pytest.raises(InvalidParams, match="them: no such tool"):
                await call

    run(main())


def test_an_answer_that_is_none_is_an_error_of_its_request_alone():
    async def main() -> None:
        async with Harness() as it:
            call, other = it.start(), it.start()
            await turns()
            it.channel.feed({"jsonrpc": "2.0", "id": 1, "result": {"tools": 7}})
            it.channel.feed({**LIST, "id": 2})
            with pytest.raises(RemoteProtocolError, match="invalid result"):
                await call
            await other

    run(main())


# --------------------------------------------------------------------- what fails before it is sent


@pytest.mark.requirement("LIFE-15")
def test_undeclared_capabilities_fail_at_once():
    async def main() -> None:
        async with Harness(capabilities=ServerCapabilities()) as it:
            with pytest.raises(CapabilityNotDeclared) as caught:
                await it.start()
            assert caught.value.capability == "tools"
            assert caught.value.retry_safe
            assert it.channel.raw == []

    run(main())


@pytest.mark.requirement("LIFE-14")
def test_unsupported_methods_fail_at_once():
    async def main() -> None:
        async with Harness(LATEST) as it:
            with pytest.raises(LocalProtocolError, match="ping"):
                await it.link.request(NO_LIMITS, "ping")
            with pytest.raises(LocalProtocolError):
                await it.link.notify("notifications/roots/list_changed")
            assert it.channel.raw == []

    run(main())


@pytest.mark.parametrize(
    "error", [OSError("the cable is cut"), TimeoutError("too slow"), ChannelClosed("gone")]
)
def test_a_send_that_fails_is_an_error_of_the_request(error):
    async def main() -> None:
        async with Harness() as it:
            it.channel.broken = error
            with pytest.raises(ChannelClosed, match=str(error)):
                await it.start(timeout=60.0)
            assert not it.link.calls
            assert not it.connection.outgoing
            with pytest.raises(ChannelClosed):
                await it.link.start_call(it.link.register_call(it.connection.request("tools/list")))

    run(main())


# --------------------------------------------------------------------- time-outs


@pytest.mark.requirement("TIME-1", "TIME-2", "TIME-3", "CANC-5", "CANC-6", "CANC-10", "STDIO-9")
@pytest.mark.parametrize("revision", [LATEST_SESSION, LATEST])
def test_a_request_that_times_out_is_cancelled(revision):
    async def main() -> None:
        async with Harness(revision) as it:
            with pytest.raises(
                RequestTimeout, match=r"them: no response to tools/list within 60 s"
            ) as caught:
                await it.start(timeout=60.0)
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.sent
            await turns()
            cancelled = it.channel.sent[-1]
            assert cancelled["method"] == "notifications/cancelled"
            assert cancelled["params"]["requestId"] == 1
            assert "timed out" in cancelled["params"]["reason"]
            it.channel.feed(LIST)  # late
            await turns()
            assert it.stats.discarded == {"late response": 1}
            assert it.stats.timeouts == 1

    run(main(), Clock)


def test_a_request_that_could_not_even_be_sent_in_time_may_be_sent_again():
    async def main() -> None:
        async with Harness() as it:
            it.channel.writable.clear()
            with pytest.raises(RequestTimeout) as caught:
                await it.start(timeout=60.0)
            assert not caught.value.sent
            assert caught.value.retry_safe
            it.channel.writable.set()
            await turns()
            assert it.channel.raw == []  # the server never received it, so there is nothing to cancel

    run(main(), Clock)


def test_a_quiet_request_is_given_up_without_a_word():
    async def main() -> None:
        async with Harness() as it:
            with pytest.raises(RequestTimeout):
                await it.start(timeout=60.0, quiet=True)
            await turns()
            assert len(it.channel.raw) == 1

    run(main(), Clock)


def progress(token: int, value: float) -> dict[str, Any]:
    params = {"progressToken": token, "progress": value}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


@pytest.mark.requirement("TIME-4", "PROG-1")
@pytest.mark.parametrize("cap", [100.0, None])
def test_progress_extends_the_time_out_up_to_the_cap(cap):
    async def main() -> None:
        async with Harness() as it:
            loop = asyncio.get_running_loop()
            call = it.start(timeout=60.0, cap=cap, extendable=True)
            sent = await it.channel.next_sent()
            assert sent["params"]["_meta"]["progressToken"] == 1
            for value in (1, 2, 3):
                await asyncio.sleep(30)
                it.channel.feed(progress(1, value))
            with pytest.raises(RequestTimeout):
                await call
            assert loop.time() == (100.0 if cap else 150.0)

    run(main(), Clock)


def test_progress_of_a_request_without_a_time_out_changes_nothing():
    async def main() -> None:
        async with Harness() as it:
            call = it.start(extendable=True)
            await turns()
            it.channel.feed(progress(1, 1), LIST)
            await call

    run(main())


@pytest.mark.requirement("PROG-7")
def test_progress_is_delivered_in_order_and_before_the_response():
    async def main() -> None:
        async with Harness() as it:
            told: list[float] = []

            async def tell(params: ProgressParams) -> None:
                await asyncio.sleep(0)
                told.append(params.progress)

            call = it.start(timeout=60.0, progress=tell)
            await turns()
            it.channel.feed(
                progress(1, 1), progress(1, 2), progress(1, 2), progress(1, 3), LIST, progress(1, 4)
            )
            await call
            assert told == [1, 2, 3]
            await turns()
            assert it.stats.discarded == {
                "progress that does not increase": 1,
                "progress of an unknown request": 1,
            }

    run(main())


def test_a_progress_callback_that_takes_for_ever_costs_no_answer():
    async def main() -> None:
        async with Harness() as it:

            async def tell(_: ProgressParams) -> None:
                await asyncio.Event().wait()

            call = it.start(timeout=60.0, progress=tell)
            await turns()
            it.channel.feed(progress(1, 1), LIST)
            assert (await call).raw is not None
            assert it.stats.timeouts == 0

    run(main(), Clock)


def test_progress_beyond_the_queue_is_counted():
    async def main() -> None:
        async with Harness() as it:
            gate = asyncio.Event()

            async def tell(_: ProgressParams) -> None:
                await gate.wait()

            call = it.start(progress=tell)
            await turns()
            it.channel.feed(progress(1, 0))
            await turns()
            it.channel.feed(*(progress(1, value) for value in range(1, MAX_QUEUED_CALLBACKS + 3)))
            await turns()
            gate.set()
            it.channel.feed(LIST)
            await call
            assert it.stats.discarded == {"progress over the limit": 2}

    run(main())


# --------------------------------------------------------------------- cancelling


@pytest.mark.requirement("CANC-1", "CANC-2", "CANC-10")
@pytest.mark.parametrize("revision", [LATEST_SESSION, LATEST])
def test_a_caller_that_is_cancelled_cancels_its_request(revision):
    async def main() -> None:
        async with Harness(revision) as it:
            call = it.start(timeout=60.0)
            await it.channel.next_sent()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            cancelled = await it.channel.next_sent()
            assert cancelled["method"] == "notifications/cancelled"
            assert cancelled["params"]["requestId"] == 1

    run(main())


@pytest.mark.requirement("CANC-6")
@pytest.mark.parametrize("answer", [LIST, {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}}])
def test_an_answer_that_meets_a_cancellation_is_dropped_and_nothing_is_sent(answer):
    async def main() -> None:
        async with Harness() as it:
            call = it.start()
            await it.channel.next_sent()
            it.channel.feed(answer)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await turns()
            assert len(it.channel.raw) == 1

    run(main())


def test_a_request_can_be_cancelled_by_its_id():
    async def main() -> None:
        async with Harness() as it:
            call, other = it.start(), it.start()
            await turns()
            assert it.link.cancel(1, "enough")
            assert not it.link.cancel(1)
            assert not it.link.cancel(99)
            with pytest.raises(MCPError, match="tools/list was cancelled: enough"):
                await call
            assert it.link.cancel(2)
            with pytest.raises(MCPError, match=r"tools/list was cancelled$"):
                await other
            await turns()
            assert [m["params"] for m in it.channel.sent[2:]] == [
                {"requestId": 1, "reason": "enough"},
                {"requestId": 2},
            ]

    run(main())


def test_a_cancellation_that_meets_an_answer_keeps_the_answer():
    async def main() -> None:
        async with Harness() as it:
            call = it.start()
            await turns()
            it.channel.feed(LIST)
            await asyncio.sleep(0)
            assert not it.link.cancel(1)  # the answer is there, its caller has not seen it yet
            assert (await call).raw is not None

    run(main())


def test_a_long_request_is_open_until_it_is_cancelled_or_answered():
    async def main() -> None:
        async with Harness() as it:
            first = it.link.register_call(it.connection.request("tools/list"))
            second = it.link.register_call(it.connection.request("tools/list"))
            await it.link.start_call(first)
            await it.link.start_call(second)
            it.channel.feed(LIST)
            await first.answer
            it.link.cancel(second.id)
            await turns()
            assert it.link.calls == {}

    run(main())


# --------------------------------------------------------------------- what the server asks


def ask(number: int | str = 7, method: str = "roots/list") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method}


def test_an_ask_is_answered_beside_everything_else():
    async def main() -> None:
        async def answer(_: InboundRequest) -> Result:
            await it.link.request(NO_LIMITS, "tools/list")  # a callback may ask back
            return ListRootsResult([Root("file:///a")])

        async with Harness(answer=answer) as it:
            it.channel.feed(ask())
            assert (await it.channel.next_sent())["method"] == "tools/list"
            it.channel.feed(LIST)
            reply = await it.channel.next_sent()
            assert reply == {"jsonrpc": "2.0", "id": 7, "result": {"roots": [{"uri": "file:///a"}]}}
            assert it.channel.related[-1] == 7
            assert it.stats.client_requests == 1

    run(main())


async def wrong_type(_: InboundRequest) -> Any:
    return object()


async def fails(_: InboundRequest) -> Result:
    raise LookupError("a secret")


async def refuses(_: InboundRequest) -> Result:
    raise InvalidParams("that is nonsense")


async def cancels_itself(_: InboundRequest) -> Result:
    raise asyncio.CancelledError


async def exits(_: InboundRequest) -> Result:
    raise SystemExit(3)


async def interrupts(_: InboundRequest) -> Result:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (refuses, -32602, "that is nonsense"),
        (fails, -32603, "Internal error: the client failed to answer roots/list"),
        (wrong_type, -32603, "Internal error: the client failed to answer roots/list"),
        (cancels_itself, -32603, "Internal error: the client failed to answer roots/list"),
        (exits, -32603, "Internal error: the client failed to answer roots/list"),
        (interrupts, -32603, "Internal error: the client failed to answer roots/list"),
    ],
)
@pytest.mark.requirement("ROOT-4")
def test_a_callback_that_fails_is_an_error_answer_and_a_line_in_the_log(answer, code, message, caplog):
    async def main() -> None:
        async with Harness(answer=answer) as it:
            it.channel.feed(ask())
            reply = await it.channel.next_sent()
            assert reply["error"] == {"code": code, "message": message}

    run(main())
    assert ("failed to answer roots/list" in caplog.text) is (code == -32603)


@pytest.mark.requirement("CANC-4")
def test_an_ask_that_the_server_cancels_is_not_answered():
    async def main() -> None:
        begun = asyncio.Event()
        ended: list[str] = []

        async def answer(_: InboundRequest) -> Result:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")
            return Result()

        async with Harness(answer=answer) as it:
            it.channel.feed(ask())
            await begun.wait()
            params = {"requestId": 7}
            it.channel.feed({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            await turns()
            assert ended == ["cancelled"]
            assert it.channel.raw == []

    run(main())


def test_a_cancellation_that_comes_after_the_answer_was_made_changes_nothing():
    async def main() -> None:
        async def answer(_: InboundRequest) -> Result:
            return Result()

        async with Harness(answer=answer) as it:
            it.channel.writable.clear()
            it.channel.feed(ask())
            await turns()
            params = {"requestId": 7}
            it.channel.feed({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            await turns()
            it.channel.writable.set()
            assert (await it.channel.next_sent())["id"] == 7
            assert it.stats.discarded == {"cancellation of an unknown request": 1}

    run(main())


def test_a_server_may_use_an_id_again_while_its_cancelled_ask_still_ends():
    async def main() -> None:
        gates = [asyncio.Event(), asyncio.Event()]
        count = iter(gates)

        async def answer(_: InboundRequest) -> Result:
            gate = next(count)
            try:
                await gate.wait()
            except asyncio.CancelledError:
                await gates[0].wait()
                raise
            return Result()

        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        async with Harness(answer=answer) as it:
            it.channel.feed(ask())
            await turns()
            it.channel.feed(cancel, ask())
            await turns()
            gates[0].set()  # the first one ends now
            await turns()
            it.channel.feed(cancel)
            await turns()
            assert it.channel.raw == []

    run(main())


def test_a_callback_that_cancels_its_own_task_ends_alone():
    async def main() -> None:
        async def answer(_: InboundRequest) -> Result:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
            return Result()

        async with Harness(answer=answer) as it:
            it.channel.feed(ask())
            await turns()
            params = {"requestId": 7}
            it.channel.feed({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            call = it.start()
            await it.channel.next_sent()
            it.channel.feed(LIST)
            await call  # the reader is alive

    run(main())


def test_a_refusal_without_an_answer_is_counted():
    async def main() -> None:
        async with Harness() as it:
            it.link._router._handle_refusal(InvalidMessageReceived(InvalidParams("no")))
            await turns()
            assert it.channel.raw == []
            assert it.stats.discarded == {"rejected message": 1}

    run(main())


def test_a_message_that_breaks_a_rule_is_refused_and_counted(caplog):
    async def main() -> None:
        async with Harness() as it:
            it.channel.feed(ask(method="no/such"))
            reply = await it.channel.next_sent()
            assert reply["error"]["code"] == -32601
            it.channel.feed(b"this is not JSON", {"jsonrpc": "2.0", "id": 99, "result": {}})
            await turns()
            assert it.stats.discarded == {
                "rejected message": 1,
                "malformed message": 1,
                "response to an unknown request": 1,
            }
            assert it.channel.unread == 0

    with caplog.at_level(logging.DEBUG):
        run(main())
    assert "no/such" in caplog.text


@pytest.mark.requirement("MSG-22", "STDIO-6")
def test_a_stateless_client_answers_nothing():
    async def main() -> None:
        async with Harness(LATEST) as it:
            it.channel.feed(ask(), ask(method="no/such"), b"nonsense")
            await turns()
            assert it.channel.raw == []
            assert it.stats.discarded == {"request to a stateless client": 2, "malformed message": 1}

    run(main())


def test_a_server_that_does_not_read_cannot_fill_the_memory():
    async def main() -> None:
        async with Harness() as it:
            it.channel.writable.clear()
            it.channel.feed(*(ask(number, "no/such") for number in range(MAX_QUEUED_CALLBACKS + 3)))
            await turns()
            assert it.stats.discarded["response that the peer does not read"] == 3

    run(main())


# --------------------------------------------------------------------- notifications


def test_notifications_are_handed_on():
    async def main() -> None:
        async with Harness() as it:
            it.channel.feed({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            it.channel.feed({"jsonrpc": "2.0", "method": "x/y", "params": {"a": 1}})
            await turns()
            assert [notice.method for notice in it.notices] == ["notifications/tools/list_changed", "x/y"]
            assert it.stats.notifications == 2

    run(main())


def test_a_fault_of_ours_costs_one_message_and_not_the_connection(caplog):
    async def main() -> None:
        async with Harness() as it:
            it.link._router._on_notification = None  # type: ignore[assignment] - a fault
            it.channel.feed({"jsonrpc": "2.0", "method": "x/y"})
            call = it.start()
            await it.channel.next_sent()
            it.channel.feed(LIST)
            await call
            assert it.stats.discarded == {"message that could not be handled": 1}

    run(main())
    assert "failed to handle" in caplog.text


# --------------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ChannelClosed("exit code 3", hint="read its log"), "exit code 3 (read its log)"),
        (OSError("the cable is cut"), "the channel failed: the cable is cut"),
    ],
)
def test_when_the_channel_ends_every_waiter_gets_the_cause(end, text, caplog):
    async def main() -> None:
        async with Harness() as it:
            calls = [it.start(timeout=60.0) for _ in range(3)]
            await turns()
            it.channel.end(end)
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert [str(error) for error in errors] == [text] * 3
            assert len({id(error) for error in errors}) == 3
            assert all(isinstance(error, ChannelClosed) and error.sent for error in errors)
            with pytest.raises(ChannelClosed) as caught:
                await it.start()
            assert str(caught.value) == text
            assert caught.value.sent is False
            assert caught.value.retry_safe
            with pytest.raises(ChannelClosed):
                await it.link.notify("notifications/roots/list_changed")

    run(main())


def test_when_the_channel_ends_asks_are_not_answered():
    async def main() -> None:
        ended: list[int] = []

        async def answer(_: InboundRequest) -> Result:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)
            return Result()

        async with Harness(answer=answer) as it:
            it.channel.feed(ask())
            await turns()
            it.channel.end()
            await turns()
            assert ended == [1]

    run(main())


def test_an_answer_that_can_no_longer_be_sent_is_dropped():
    async def main() -> None:
        async def answer(_: InboundRequest) -> Result:
            it.channel.broken = OSError("gone")
            return Result()

        async with Harness(answer=answer) as it:
            it.channel.feed(ask())
            await turns()
            assert it.channel.raw == []

    run(main())


def test_closing_ends_everything():
    async def main() -> None:
        async with Harness() as it:
            call = it.start(timeout=60.0)
            await turns()
            await it.link.close()
            with pytest.raises(ChannelClosed, match="the client was closed"):
                await call
            assert it.channel.closed
            assert len(it.channel.raw) == 1  # the end of the channel says it all

    run(main())


def test_closing_goes_on_when_its_caller_is_cancelled():
    async def main() -> None:
        gate = asyncio.Event()

        async def close(self: ScriptedChannel = ScriptedChannel()) -> None:  # noqa: B008 - only stands in
            await gate.wait()
            it.channel.closed = True

        it = Harness()
        it.channel.close = close
        closing = asyncio.create_task(it.link.close())
        await turns()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        gate.set()
        await it.link.close()
        assert it.channel.closed

    run(main())


def test_a_loop_that_ends_while_callbacks_are_waited_for_closes_the_channel():
    async def main() -> None:
        it = Harness()
        it.link.callback_queue.put(asyncio.Event().wait)
        closing = asyncio.create_task(it.link.close())
        await turns()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.wait([closing, *rest])
        assert it.channel.closed

    run(main())


def test_a_channel_that_cannot_be_closed_in_order_is_logged(caplog):
    async def main() -> None:
        async def close() -> None:
            raise OSError("stuck")

        it = Harness()
        it.channel.close = close
        await it.link.close()

    run(main())
    assert "stuck" in caplog.text


def test_a_callback_may_close_the_link():
    async def main() -> None:
        async def answer(_: InboundRequest) -> Result:
            await it.link.close()
            return Result()

        it = Harness(answer=answer)
        it.channel.feed(ask())
        await turns(20)
        await it.link.close()
        assert it.channel.closed

    run(main())


def test_a_callback_that_refuses_to_end_does_not_hold_up_closing(caplog):
    gate = asyncio.Event()

    async def main() -> None:
        async def answer(_: InboundRequest) -> Result:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue
            return Result()

        it = Harness(answer=answer)
        it.channel.feed(ask())
        await turns()
        await it.link.close()
        assert asyncio.get_running_loop().time() == CALLBACK_CLOSE_TIMEOUT
        assert it.channel.closed
        gate.set()
        await turns()

    run(main(), Clock)
    assert "still running after the client was closed" in caplog.text


@pytest.mark.parametrize(("data", "kind"), [("{}", "str"), (None, "NoneType"), ({}, "dict")])
def test_a_channel_that_does_not_return_bytes_is_reported(data, kind, caplog):
    async def main() -> None:
        async def receive() -> Any:
            return data

        it = Harness()
        it.channel.receive = receive
        with pytest.raises(
            ChannelClosed, match=rf"ScriptedChannel\.receive\(\) must return bytes, not {kind}"
        ):
            await it.link.request(NO_LIMITS, "tools/list")
        await it.link.close()

    run(main())
    assert "must return bytes" in caplog.text


def test_a_link_without_a_name_tag_has_no_name():
    async def main() -> None:
        async with Harness() as it:
            assert it.link.peer_name == "them"
            it.connection.set_peer(Peer(LATEST_SESSION))
            assert it.link.peer_name is None

    run(main())
