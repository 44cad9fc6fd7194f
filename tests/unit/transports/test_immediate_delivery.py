"""Immediate delivery: the short paths through memory, pipes and HTTP."""

import asyncio
import json
import os

import pytest
from test_http_client import SESSION, in_session, open_session, reply, request, run, talking

from scripted import END, answer, chunk, event, stream
from toolpost.errors import ChannelClosed, RequestFailed
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.jsonrpc import JSONRPCErrorResponse, JSONRPCResponse
from toolpost.protocol.line_framing import OversizedLine
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import Row
from toolpost.protocol.revisions import LATEST, LATEST_SESSION
from toolpost.transports import http_client
from toolpost.transports.memory import MessageQueue, memory_pair
from toolpost.transports.pipes import WRITE_HIGH_WATER, LineWriter
from toolpost.types import (
    CallToolParams,
    ClientCapabilities,
    Implementation,
    Params,
    Raw,
    ReadResourceParams,
    Result,
)
from waiting import until

ADD = CallToolParams(name="add", arguments=Raw(b'{"n":1}'))

CALL = request(1, "tools/call", {"name": "add", "arguments": {"n": 1}}, marked=True)


# --------------------------------------------------------------------- mailboxes, memory, pipes


def test_a_current_listener_is_notified_and_nothing_is_stored():
    box = MessageQueue()
    told: list[object] = []
    box.on_oversized = told.append
    box.put(b"1")
    box.on_message = told.append
    box.put(b"2")  # behind unread messages
    assert told == []
    assert list(box.arrived) == [b"1", b"2"]
    box.arrived.clear()
    long = OversizedLine(9, 5, b"123", b"789")
    for message in (b"3", long, b"4"):
        box.put(message)
    assert told == [b"3", long, b"4"]
    assert not box.arrived


def test_memory_accepts_messages_while_there_is_room():
    async def main():
        one, other = memory_pair(limit=2)
        assert one.offer(b"1")
        assert one.offer(b"2")
        assert not one.offer(b"3")
        waiting = asyncio.create_task(one.send(b"3"))
        await asyncio.sleep(0)
        assert await other.receive() == b"1"
        assert not one.offer(b"4")  # another sender came first
        await waiting
        assert [await other.receive() for _ in "23"] == [b"2", b"3"]
        told: list[bytes] = []
        other.on_message(told.append)
        assert one.offer(b"5")
        assert told == [b"5"]
        await other.close()
        assert not one.offer(b"6")

    run(main)


def test_a_pipe_accepts_messages_while_there_is_room():
    async def main():
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        reasons: list[str] = []
        out = LineWriter(asyncio.get_running_loop(), theirs, "gone", reasons.append)
        assert out.offer(b"1")
        assert os.read(ours, 9) == b"1\n"
        assert out.offer(bytes(2 * WRITE_HIGH_WATER))
        assert not out.offer(b"2")
        os.close(ours)
        await out.closed
        assert not out.offer(b"3")
        assert reasons == ["gone"]

    run(main)


def test_a_pipe_that_breaks_has_not_taken_it():
    async def main():
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        out = LineWriter(asyncio.get_running_loop(), theirs, "gone", lambda _: None)
        os.close(ours)
        assert not out.offer(b"1")

    run(main)


# --------------------------------------------------------------------- HTTP


async def echo(heard):
    """Answers each request with the headers that are about it."""
    about = {name: value for name, value in heard.headers.items() if name.startswith("mcp-")}
    await heard.write(answer(body=reply(json.loads(heard.body)["id"], about=about)))


def outgoing(method="tools/call", params=ADD, revision=LATEST):
    """A request, as the connection of a client makes it."""
    party = LocalPeer(Implementation("c", "1"), ClientCapabilities())
    return Connection(party, revision=revision, peer=Peer(revision)).request(method, params)


async def asked(channel, made):
    """The headers about a request that is handed over as a record."""
    assert channel.send_request(made)
    return json.loads(await channel.receive())["result"]["about"]


def test_a_request_is_posted_with_the_headers_that_its_bytes_would_get():
    async def main():
        async with talking(echo) as (channel, _, _):
            for name in ("add", "sub", "add"):
                made = outgoing(params=CallToolParams(name=name))
                about = {
                    "mcp-protocol-version": LATEST.date,
                    "mcp-method": "tools/call",
                    "mcp-name": name,
                }
                assert await asked(channel, made) == about
                await channel.send(made.data)
                assert json.loads(await channel.receive())["result"]["about"] == about

    run(main)


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("resources/read", ReadResourceParams(uri="a:b"), "a:b"),
        ("tools/call", {"name": "add"}, "add"),
        ("tools/list", None, None),
        (Row("x/y", Params, Result), Params(), None),
    ],
)
def test_a_name_is_found_in_parameters_of_any_kind(method, params, name):
    async def main():
        async with talking(echo) as (channel, _, _):
            for _ in range(2):
                about = await asked(channel, outgoing(method, params))
                assert about.get("mcp-name") == name

    run(main)


@pytest.mark.parametrize("params", [{"name": 5}, {}])
def test_a_call_without_a_name_is_not_sent(params):
    async def main():
        async with talking(echo) as (channel, _, _):
            with pytest.raises(RequestFailed) as failed:
                channel.send_request(outgoing(params=params))
            assert failed.value.retry_safe  # the server has not got it

    run(main)


def test_arguments_that_have_to_be_repeated_are():
    async def main():
        async with talking(echo) as (channel, _, _):
            assert "mcp-param-n" not in await asked(channel, outgoing())
            channel.find_header_parameters = lambda _: {"mcp-param-n": ("n",)}
            for number in (1, 2):
                made = outgoing(params=CallToolParams(name="add", arguments=Raw(b'{"n":%d}' % number)))
                assert (await asked(channel, made))["mcp-param-n"] == str(number)

    run(main)


def test_no_more_headers_are_kept_than_a_server_has_tools(monkeypatch):
    monkeypatch.setattr(http_client, "MAX_CACHED_HEADERS", 2)

    async def main():
        async with talking(echo) as (channel, _, _):
            for number in range(5):
                await asked(channel, outgoing(params=CallToolParams(name=f"add{number}")))
                assert len(channel._header_cache) <= 2

    run(main)


def test_in_a_session_its_headers_go_with_each_request():
    async def main():
        async with talking(in_session(echo)) as (channel, _, _):
            await open_session(channel)
            for _ in range(2):
                assert await asked(channel, outgoing(revision=LATEST_SESSION)) == {
                    "mcp-session-id": SESSION,
                    "mcp-protocol-version": LATEST_SESSION.date,
                }

    run(main)


def test_a_channel_that_was_closed_takes_nothing():
    async def main():
        async with talking(echo) as (channel, _, _):
            await asked(channel, outgoing())
            await channel.close()
            with pytest.raises(ChannelClosed) as closed:
                channel.send_request(outgoing())
            assert not closed.value.sent

    run(main)


def test_messages_are_recorded_as_read():
    async def serve(heard):
        if b"tools/list" in heard.body:
            await heard.write(stream(event(b'{"jsonrpc":"2.0","method":"a/b"}'), event(b"junk"), end=False))
            await heard.write(chunk(event(reply(1, n=1))))
            await heard.write(END)
        elif b"prompts/list" in heard.body:
            await heard.write(answer(400, b'{"jsonrpc":"2.0","error":{"code":-1,"message":"no"}}'))
        else:
            await echo(heard)

    async def main():
        async with talking(serve) as (channel, _, _):
            told = asyncio.Queue()
            channel.on_message(told.put_nowait)
            await channel.send(CALL)
            assert isinstance(await told.get(), JSONRPCResponse)
            await channel.send(request(1, marked=True))
            kinds = [type(await told.get()).__name__ for _ in range(3)]
            assert kinds == ["JSONRPCNotification", "bytes", "JSONRPCResponse"]
            await channel.send(request(7, "prompts/list", marked=True))
            lost = await told.get()  # its id was put in, so it is bytes again
            assert json.loads(lost)["id"] == 7
            assert not isinstance(lost, JSONRPCErrorResponse)

    run(main)


def test_two_requests_with_one_id_both_end_with_the_channel():
    """The second takes the place of the first, which is not forgotten for that."""

    async def serve(heard):
        await heard.gone()

    async def main():
        async with talking(serve) as (channel, server, _):
            await channel.send(CALL)
            await channel.send(CALL)
            await until(lambda: len(server.heard) == 2)

    run(main)


def test_a_stream_may_end_after_its_last_message():
    async def main():
        read = asyncio.Event()

        async def serve(heard):
            await heard.write(stream(event(reply(1, n=1)), end=False))
            await read.wait()
            await heard.write(END)

        async with talking(serve) as (channel, server, _):
            await channel.send(CALL)
            assert await channel.receive() == reply(1, n=1)
            read.set()
            await until(lambda: not channel._calls)
            assert server.open == 1  # the connection can be used again

    run(main)


@pytest.mark.parametrize(
    ("status", "body", "is_answer"),
    [
        (200, reply(1, n=1), True),
        (200, reply(2, n=1), False),  # of another request
        (200, reply(11, n=1), False),
        (200, b" " + reply(1, n=1), True),
        (404, reply(1, n=1), True),
    ],
)
def test_an_answer_has_the_id_of_its_request(status, body, is_answer):
    async def serve(heard):
        await heard.write(answer(status, body))

    async def main():
        told: list[object] = []
        lost: list[object] = []
        async with talking(serve) as (channel, _, __):
            channel.on_message(told.append)
            channel.on_request_lost(lambda _, error: lost.append(error))
            await channel.send(CALL)
            await until(lambda: not channel._calls)
            assert (len(told), len(lost)) == ((1, 0) if is_answer else (0, 1))

    run(main)


def test_what_begins_as_an_answer_and_is_none_is_not_waited_for():
    async def serve(heard):
        await heard.write(answer(200, reply(1, n=1)[:-1] + b"]"))

    async def main():
        lost: list[Exception] = []
        async with talking(serve) as (channel, _, __):
            channel.on_request_lost(lambda _, error: lost.append(error))
            await channel.send(CALL)
            await until(lambda: not channel._calls)
            assert "did not answer tools/call with JSON-RPC" in str(lost[0])

    run(main)


@pytest.mark.parametrize("era", ["session", "stateless"])
def test_headers_that_were_kept_are_those_of_the_first_request(era):
    """In a session they include its id and revision as soon as these are known."""

    async def main():
        sent: list[dict[str, str]] = []

        async def serve(heard):
            sent.append({**heard.headers, "content-length": ""})
            await heard.write(answer(200, reply(json.loads(heard.body)["id"])))

        revision = LATEST_SESSION if era == "session" else LATEST
        async with talking(in_session(serve) if era == "session" else serve) as (channel, _, __):
            if era == "session":
                await open_session(channel)
            for _ in range(3):
                channel.send_request(outgoing(revision=revision))
                await channel.receive()
        assert sent[0] == sent[1] == sent[2]
        assert sent[0]["user-agent"].startswith("toolpost/")
        assert sent[0]["content-type"] == "application/json"
        assert ("mcp-session-id" in sent[0]) is (era == "session")
        assert ("mcp-name" in sent[0]) is (era == "stateless")

    run(main)
