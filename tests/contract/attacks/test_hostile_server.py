"""Servers that send invalid messages: the call fails with the reason, and other calls are not affected.

Every message here goes over each transport. All calls of a table are in flight at once, so each row also
shows that it fails alone. Faults of a connection, not of a message, are in the other files.
"""

import asyncio
import re
from typing import Any, NamedTuple

import pytest

from byte_server import said
from hostile_transports import LIMIT, WAYS, meeting, run
from toolpost.errors import MCPError, RemoteProtocolError, RequestFailed, RequestTimeout

OK = '"result":{"content":[{"type":"text","text":"x"}],"resultType":"complete"}'


def whole(rest: str = OK, key: str = "@ID@") -> str:
    return f'{{"jsonrpc":"2.0","id":{key},{rest}}}'


def text(inside: bytes) -> bytes:
    return whole().encode().replace(b'"x"', b'"' + inside + b'"')


def structured(value: str) -> str:
    return whole(f'"result":{{"content":[],"structuredContent":{value},"resultType":"complete"}}')


def result(members: str) -> str:
    return whole(f'"result":{{{members}}}')


# --------------------------------------------------------------------- responses that are not JSON-RPC


class Broken(NamedTuple):
    """A message instead of a response, and the error for the caller."""

    message: str | bytes
    why: str
    named: bool = True
    """Whether it is clear which request it answers."""


NO_ID = 'the "id" of a response must be a string or an integer'
BROKEN = {
    "another id": Broken(whole(key="987654"), "it is not the response to this request", named=False),
    "the id with a fraction": Broken(whole(key="@ID@.0"), NO_ID, named=False),
    "the id with an exponent": Broken(whole(key="@ID@e0"), NO_ID, named=False),
    "the id in a list": Broken(whole(key="[@ID@]"), "not a JSON-RPC message", named=False),
    "true for an id": Broken(whole(key="true"), NO_ID, named=False),
    "null for an id": Broken(whole(key="null"), NO_ID, named=False),
    "no id": Broken(f'{{"jsonrpc":"2.0",{OK}}}', NO_ID, named=False),
    "an id twice": Broken(whole(f'"id":@ID@,{OK}'), "appears twice"),
    "a result twice": Broken(whole(f"{OK},{OK}"), "appears twice"),
    "a result and an error": Broken(
        whole(OK + ',"error":{"code":1,"message":"m"}'), "exactly one of method, result and error"
    ),
    "neither of them": Broken(whole('"x":1'), "exactly one of method, result and error", named=False),
    "capitals": Broken(
        whole().replace('"result"', '"Result"'), "exactly one of method, result and error", named=False
    ),
    "another JSON-RPC": Broken(whole().replace("2.0", "1.0"), 'must be "2.0"'),
    "a request with our id": Broken(
        whole('"method":"ping"'), "it is not the response to this request", named=False
    ),
    "a batch": Broken(f"[{whole()}]", "a batch is not allowed here", named=False),
    "an error that is text": Broken(whole('"error":"no"'), "in the error"),
    "an error without a code": Broken(whole('"error":{"message":"m"}'), "in the error"),
    "an error whose code is text": Broken(whole('"error":{"code":"1","message":"m"}'), "in the error"),
    "an error without words": Broken(whole('"error":{"code":1}'), "in the error"),
    "bytes that are no UTF-8": Broken(text(b"\xff\xfe"), "not UTF-8"),
    "a name that is no UTF-8": Broken(whole().encode().replace(b"type", b"typ\xff"), "not UTF-8"),
    "half an emoji in UTF-8": Broken(text(b"\xed\xa0\xbd"), "not UTF-8"),
    "another encoding": Broken(whole().encode("utf-16"), "not UTF-8", named=False),
    "a byte order mark": Broken(b"\xef\xbb\xbf" + whole().encode(), "byte order mark", named=False),
    "NaN": Broken(structured('{"n":NaN}'), "JSON is malformed"),
    "Infinity": Broken(structured('{"n":-Infinity}'), "JSON is malformed"),
    "a raw control character": Broken(text(b"\x00"), "JSON is malformed"),
    "100 000 lists in each other": Broken(
        structured("[" * 100_000 + "]" * 100_000), "more than 64 levels deep"
    ),
    "200 000 lists without end": Broken(structured("[" * 200_000), "more than 64 levels deep"),
    "30 000 objects in each other": Broken(
        structured('{"a":' * 30_000 + "1" + "}" * 30_000), "64 levels deep"
    ),
    "half an answer": Broken(whole()[:-5], "message is not JSON", named=False),
    "two answers on one line": Broken(whole() + whole(), "trailing characters"),
    "a line of a log": Broken("INFO: Uvicorn running", "message is not JSON", named=False),
    "nothing": Broken("", "the message is empty", named=False),
    "zeros": Broken(bytes(1000), "message is not JSON", named=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_is_none_fails_its_call_alone(way):
    form = way.split(" ")[0]

    async def main():
        async with meeting(way) as client:

            async def call(row: Broken) -> MCPError:
                # With one stream for all, an error reaches only the call that it names.
                patient = row.named or form in {"body", "stream"}
                with pytest.raises(MCPError) as caught:
                    await client.call_tool("say", said(row.message), timeout=10 if patient else 0.3)
                return caught.value

            async with asyncio.TaskGroup() as group:
                calls = {name: group.create_task(call(row)) for name, row in BROKEN.items()}
                good = group.create_task(client.call_tool("good", timeout=10))
            assert good.result().text == "ok"
            told = {name: _fits(form, BROKEN[name], call.result()) for name, call in calls.items()}
            assert told == dict.fromkeys(BROKEN, True), {
                name: repr(call.result()) for name, call in calls.items()
            }
            assert (await client.call_tool("good", timeout=10)).text == "ok"

    run(main)


def _fits(form: str, row: Broken, error: MCPError) -> bool:
    said = re.search(row.why, str(error)) is not None
    if form == "body":
        return isinstance(error, RequestFailed) and said
    if form == "stream":  # either the reader reports what was wrong with it, or that nothing else came
        ended = isinstance(error, RequestFailed) and "before the response to tools/call" in str(error)
        return ended or (isinstance(error, RemoteProtocolError) and said)
    if row.named:
        return isinstance(error, RemoteProtocolError) and said
    return isinstance(error, RequestTimeout)


# --------------------------------------------------------------------- results that are none

INVALID = {
    "a list": (whole('"result":[]'), "Expected `object`, got `array`"),
    "null": (whole('"result":null'), "Expected `object`, got `null`"),
    "text": (whole('"result":"x"'), "Expected `object`, got `str`"),
    "a type that is a number": (result('"resultType":7,"content":[]'), r"at `\$.resultType`"),
    "content that is text": (result('"content":"x","resultType":"complete"'), r"at `\$.content`"),
    "content that is null": (result('"content":[null],"resultType":"complete"'), r"at `\$.content\[0\]`"),
    "an error that is text": (
        result('"content":[],"isError":"y","resultType":"complete"'),
        r"at `\$.isError`",
    ),
    "facts in a list": (result('"content":[],"_meta":[],"resultType":"complete"'), r"at `\$._meta`"),
    "a number beyond all": (structured('{"n":1e999}'), "Number out of range"),
    "100 000 digits": (structured("1" * 100_000), "Integer value out of range"),
    "an exponent of 10 000 digits": (structured("1e" + "9" * 10_000), "Number out of range"),
    "a question without questions": (
        result('"resultType":"input_required"'),
        "has no input requests|required field",
    ),
}
MODERN = {
    "an unknown type": (
        result('"resultType":"surprise","content":[]'),
        "unknown result type for tools/call: 'surprise'",
    ),
    "a type with a long name": (
        result('"resultType":"%s","content":[]' % ("x" * 100_000)),
        "unknown result type",
    ),
    "questions without end": (
        result('"resultType":"input_required","inputRequests":{"%s":{"method":"x"}}' % ("k" * 1000)),
        ".",
    ),
    "a method that a server must not send": (
        result('"resultType":"input_required","inputRequests":{"k":{"method":"tools/call","params":{}}}'),
        "tools/call",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_result_that_is_none_fails_its_call_alone(way):
    rows = {**INVALID, **(MODERN if "stateless" in way else {})}

    async def main():
        async with meeting(way, timeout=10) as client:

            async def call(message: str, why: str) -> None:
                with pytest.raises(MCPError, match=why) as caught:
                    await client.call_tool("say", said(message))
                assert len(str(caught.value)) < 2000

            await asyncio.gather(*(call(*row) for row in rows.values()))
            assert (await client.call_tool("good")).text == "ok"

    run(main)


# --------------------------------------------------------------------- unsolicited messages


def notice(method: str, params: str = "{}") -> str:
    return f'{{"jsonrpc":"2.0","method":"notifications/{method}","params":{params}}}'


def ask(key: str, method: str, params: str = "{}") -> str:
    return f'{{"jsonrpc":"2.0","id":{key},"method":"{method}","params":{params}}}'


STRAY = {
    "an answer to no request": [whole(key="987654"), whole(key='"x"')],
    "an error for no request": [whole('"error":{"code":1,"message":"m"}', "987654")],
    "progress of no call": [notice("progress", '{"progressToken":"x","progress":1}')],
    "progress of an unknown call": [notice("progress", '{"progressToken":987654,"progress":1}')],
    "progress that is no number": [notice("progress", '{"progressToken":@ID@,"progress":"much"}')],
    "progress without a token": [notice("progress", '{"progress":1}')],
    "that we cancel what we asked": [notice("cancelled", '{"requestId":@ID@}')],
    "a cancellation of no request": [notice("cancelled", '{"requestId":"@ID@"}')],
    "that we cancel nothing": [notice("cancelled", "[]")],
    "a visit that has ended": [notice("elicitation/complete", '{"elicitationId":"x"}')],
    "an unknown task": [notice("tasks/status", '{"taskId":"x","status":"completed"}')],
    "a log that is none": [notice("message", '{"level":"shouting","data":1}'), notice("message", "7")],
    "that we are ready": [notice("initialized")],
    "notices of its own": [notice("acme/x", '{"a":1}')] * 3,
    "requests that only we make": [
        ask('"a"', "tools/list"),
        ask('"b"', "initialize"),
        ask('"c"', "server/discover"),
    ],
    "unknown requests": [ask('"d"', "acme/x"), ask('"e"', "")],
    "requests that we cannot answer": [
        ask('"f"', "sampling/createMessage"),
        ask('"g"', "elicitation/create"),
    ],
    "a request with an id of ours": [ask("@ID@", "ping"), ask("@ID@", "ping")],
    "what is no message": ["[]", "{}", "7", '"x"', "null", "{"],
}


@pytest.mark.parametrize("way", [way for way in WAYS if "body" not in way])
def test_an_unsolicited_response_changes_nothing(way):
    async def main():
        async with meeting(way, timeout=10, on_notification=lambda *_: None) as client:
            calls = [client.call_tool("say", said(*stray, whole())) for stray in STRAY.values()]
            for name, told in zip(STRAY, await asyncio.gather(*calls), strict=True):
                assert told.text == "x", name
            assert (await client.call_tool("good")).text == "ok"

    run(main)


@pytest.mark.parametrize("way", [way for way in WAYS if "body" not in way])
def test_a_repeated_response_is_received_once(way):
    async def main():
        async with meeting(way, timeout=10) as client:
            second = whole().replace('"x"', '"y"')
            after = notice("progress", '{"progressToken":@ID@,"progress":9}')
            heard: list[Any] = []
            for _ in range(5):
                told = await client.call_tool(
                    "say", said(whole(), second, after, after), progress=heard.append
                )
                assert told.text == "x"
                assert (await client.call_tool("good")).text == "ok"
            assert heard == []

    run(main)


FLOOD = 3000
"""Messages of a flood: three times what the client queues for its callbacks."""


@pytest.mark.parametrize("way", ["stdio session", "stream session", "stream stateless", "sse session"])
@pytest.mark.parametrize(
    "message",
    [
        notice("message", '{"level":"info","data":"%s"}' % ("x" * 20)),
        notice("tools/list_changed"),
        notice("resources/updated", '{"uri":"a://b"}'),
        notice("progress", '{"progressToken":@ID@,"progress":1}'),
        ask('"n"', "sampling/createMessage"),
        "rubbish",
    ],
    ids=["log", "list", "resource", "progress", "sampling", "rubbish"],
)
def test_a_flood_ends_and_the_answer_behind_it_is_received(way, message):
    async def main():
        async with meeting(way, timeout=60) as client:
            many = [message.replace('"n"', f'"{n}"') for n in range(FLOOD)]
            assert (await client.call_tool("say", said(*many, whole()))).text == "x"
            assert (await client.call_tool("good")).text == "ok"

    run(main, 90)


def test_the_limit_is_small_enough_to_be_met():
    assert max(len(row.message) for row in BROKEN.values()) < LIMIT
