"""The differential test without its peers: requests, compared parts of responses, known differences."""

import asyncio
import contextlib
import json
import re
from collections import defaultdict

import pytest

import raw
from answers import Answer, normal
from differences import TABLE, VERDICTS, Difference, differing, drafted, entries, judge
from differential import fill
from probe import REVISIONS, SESSIONS, STATELESS, Table
from probes import all_probes, probes
from raw import Reply, exchange
from specification import rules

REQUEST = b'{"jsonrpc":"2.0","id":7,"method":"tools/list"}'


def revisions() -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for probe in all_probes():
        found[probe.name].append(probe.revision)
    return found


# --------------------------------------------------------------------- what is asked


def test_there_are_more_than_three_hundred_requests_and_each_revision_has_them():
    assert len(revisions()) > 300
    assert all(len(probes(revision)) > 300 for revision in REVISIONS)


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_well_formed_request_equals_that_of_a_real_client(revision):
    probe = next(one for one in probes(revision) if one.name == "tools/call: well-formed")
    head, _, body = probe.wire(80, "s1", probe.body).partition(b"\r\n\r\n")
    told = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
    assert head.startswith(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:80\r\n")
    assert int(told["Content-Length"]) == len(body)
    message = json.loads(body)
    assert message["params"]["name"] == "order"
    if revision == STATELESS:
        assert (told["MCP-Protocol-Version"], told["Mcp-Method"], told["Mcp-Name"]) == (
            revision,
            "tools/call",
            "order",
        )
        assert message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == revision
    else:
        assert told["Mcp-Session-Id"] == "s1"
        assert told.get("MCP-Protocol-Version") == (None if revision == SESSIONS[0] else revision)
        assert "_meta" not in message["params"]


def test_a_header_can_be_omitted_changed_and_repeated():
    table = Table(STATELESS)
    headers = {"Accept": None, "Mcp-Method": ("a", "b"), "Content-Type": "text/plain"}
    table.add("odd", table.request("tools/list"), headers=headers, host="elsewhere")
    [probe] = table
    head = probe.wire(80, "", None).decode()
    assert "Accept" not in head
    assert "Mcp-Method: a\r\nMcp-Method: b\r\n" in head
    assert "Host: elsewhere\r\n" in head
    assert "Content-Length" not in head


@pytest.mark.parametrize(
    ("result", "responses", "state"),
    [
        ({"inputRequests": {"k": {}}, "requestState": "s"}, {"k": 1, "more": 2}, "s"),
        ({"inputRequests": {"k": {}}}, {"k": 1, "more": 2}, None),
        ({}, {"{key}": 1, "more": 2}, None),
    ],
)
def test_a_retry_answers_the_questions_of_the_first_round(result, responses, state):
    first = Reply(200, {"content-type": "application/json"}, json.dumps({"id": 1, "result": result}).encode())
    body = {"params": {"inputResponses": {"{key}": 1, "more": 2}, "requestState": "{state}"}}
    params = json.loads(fill(json.dumps(body).encode(), first))["params"]
    assert params["inputResponses"] == responses
    assert params.get("requestState") == state


def test_the_changes_of_a_retry_are_kept():
    body = {"params": {"inputResponses": "yes", "requestState": "forged"}}
    assert json.loads(fill(json.dumps(body).encode(), Reply())) == body


# --------------------------------------------------------------------- what of an answer counts


def json_reply(value: object, status: int = 200) -> Reply:
    return Reply(status, {"content-type": "application/json; charset=utf-8"}, json.dumps(value).encode())


def stream(*values: object) -> Reply:
    events = "".join(f"id: 1\r\ndata: {json.dumps(value)}\r\n\r\n" for value in values)
    return Reply(200, {"content-type": "text/event-stream"}, f": hello\r\n\r\ndata:\r\n\r\n{events}".encode())


def result(**members: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 7, "result": members}


def error(code: int, **more: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "error": {"code": code, "message": "x"}, **more}


@pytest.mark.parametrize(
    ("reply", "content"),
    [
        (Reply(), "no answer"),
        (Reply(202, {}), "202 nothing"),
        (Reply(200, {"content-type": "text/event-stream"}), "200 stream"),
        (Reply(404, {"content-type": "text/html"}, b"<p>"), "404 text"),
        (Reply(200, {"content-type": "text/html"}, b"<p>"), "200 text/html"),
        (Reply(200, {}, b"{}"), "200 no type"),
        (Reply(400, {"content-type": "application/json"}, b"{"), "400 text"),
        (json_reply([]), "200 no JSON-RPC"),
        (json_reply({"id": 7}), "200 no JSON-RPC"),
        (json_reply({"jsonrpc": "2.0", "id": 7}), "200 no answer to anything"),
        (json_reply(error(-32601), 404), "404 error -32601"),
        (json_reply(error(-32022)), "200 error -32022"),
        (
            json_reply({"jsonrpc": "2.0", "error": {"code": -32022, "data": {"supported": [], "x": 1}}}),
            "200 error -32022 with supported",
        ),
        (json_reply(result(tools=[], nextCursor="x", _meta={})), "200 result {tools}"),
        (json_reply(result()), "200 result {}"),
        (json_reply(result(contents=[1], ttlMs=3)), "200 result {1 contents; ttlMs}"),
        (
            json_reply(result(content=[{"type": "text"}, {"type": "image"}], isError=True)),
            "200 result {content=text+image; isError=True}",
        ),
        (json_reply(result(content=[], isError=False)), "200 result {content=}"),
        (json_reply(result(structuredContent={"result": 5})), "200 result {}"),
        (json_reply(result(structuredContent=5)), "200 result {}"),
        (
            json_reply(result(structuredContent={"b": 1, "a": 2})),
            '200 result {structuredContent={"a": 2, "b": 1}}',
        ),
        (json_reply(result(completion={"values": ["a"]})), "200 result {completion=['a']}"),
        (
            json_reply(result(resultType="input_required", inputRequests={"k": {"method": "roots/list"}})),
            "200 result {asks roots/list; resultType=input_required}",
        ),
        (stream(result(tools=[])), "200 result {tools}"),
        (stream({"jsonrpc": "2.0", "method": "m", "id": 1}), "200 asks m"),
        (
            stream({"method": "b"}, {"method": "a"}, {"method": "b"}, result()),
            "200 result {} after a, b",
        ),
        (stream({"jsonrpc": "2.0", "method": "m"}), "200 tells m"),
    ],
)
def test_the_normal_form_contains_the_compared_parts(reply, content):
    assert normal(reply, REQUEST).content == content


def test_json_and_an_event_stream_say_the_same():
    assert normal(json_reply(result(tools=[])), REQUEST) == normal(stream(result(tools=[])), REQUEST)


@pytest.mark.parametrize(
    "reply", [json_reply([result(), error(-1, id=2)]), stream(error(-1, id=2), result())]
)
def test_the_responses_to_a_batch_come_in_any_order(reply):
    assert normal(reply, b"[]") == Answer("200 batch [error -1, result {}]")


def test_the_refusal_of_a_batch_is_an_error_like_any_other():
    assert normal(json_reply(error(-32600), 400), b"[]") == Answer("400 error -32600", "absent")


@pytest.mark.parametrize(
    ("more", "sent", "whose"),
    [
        ({"id": 7}, REQUEST, "same"),
        ({"id": 8}, REQUEST, "another"),
        ({"id": "7"}, REQUEST, "another"),
        ({"id": None}, REQUEST, "null"),
        ({}, REQUEST, "absent"),
        ({"id": 7}, b'{"id":7.0}', "same"),
        ({"id": 1}, b'{"id":true}', "another"),
        ({"id": 7}, b'{"id":7', "same"),
        ({"id": 7}, None, "another"),
        ({"method": "m"}, REQUEST, "none"),
    ],
)
def test_the_normal_form_says_whose_answer_it_is(more, sent, whose):
    assert normal(json_reply({"jsonrpc": "2.0", **more}), sent).id == whose


# --------------------------------------------------------------------- bytes on a socket


def served(answer: bytes, *, until: str = "answer", verb: str = "POST", ends: bool = True) -> Reply:
    """Return the parsed response of a server on loopback to any request."""

    async def main() -> Reply:
        done = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, EOFError):  # the client may be gone before it has said all
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                if not ends:
                    await reader.read()
                writer.close()
                await writer.wait_closed()
            done.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            reply = await exchange(port, f"{verb} / HTTP/1.1\r\n\r\n".encode(), until=until)
            await done.wait()
            return reply

    return asyncio.run(main())


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"{}"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_a_body_is_read_to_its_end_with_any_framing(answer, body):
    reply = served(answer)
    assert (reply.body, reply.ended) == (body, True)


def test_an_answer_to_head_has_no_body():
    reply = served(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", verb="HEAD", ends=False)
    assert (reply.status, reply.body) == (200, b"")


@pytest.mark.parametrize(
    ("until", "seen"),
    [("head", []), ("message", [{"method": "m"}]), ("answer", [{"method": "m"}, {"id": 7, "result": {}}])],
)
def test_an_open_stream_is_read_until_the_response(until, seen):
    said = [b"data: \r\n\r\n", b'data: {"method":"m"}\r\n\r\n', b'data: {"id":7,"result":{}}\r\n\r\n']
    pieces = said[:2] if until == "message" else said
    reply = served(EVENTS + b"".join(map(chunk, pieces)), until=until, ends=False)
    assert reply.messages == seen
    assert not reply.ended


def test_a_stream_is_read_to_its_end_where_that_is_wanted():
    said = [chunk(b'data: {"id":%d,"result":{}}\n\n' % n) for n in (1, 2)]
    reply = served(EVENTS + b"".join(said) + b"0\r\n\r\n", until="end")
    assert [message["id"] for message in reply.messages] == [1, 2]


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent"])
def test_an_unreadable_response_counts_as_no_response(answer):
    assert normal(served(answer), REQUEST) == Answer("no answer")


def test_silence_counts_as_no_response(monkeypatch):
    monkeypatch.setattr(raw, "PATIENCE", 0.5)
    assert not served(b"", ends=False).status


# --------------------------------------------------------------------- the table


SENT = {
    "one": ["2025-06-18", "2026-07-28"],
    "a: x": ["2025-06-18"],
    "b: x": ["2025-06-18"],
    "c: x": ["2025-06-18"],
}

ENTRY = """
[[difference]]
verdict = "{verdict}"
rule = "{rule}"
why = "because"
[[difference.seen]]
peer = "p"
ours = "400 error 1"
theirs = "202 nothing"
requests = [{requests}]
"""


def known(requests: str, verdict: str = "ours right", rule: str = "MSG-5"):
    return entries(ENTRY.format(verdict=verdict, rule=rule, requests=requests), SENT)


def difference(name: str, revision: str = "2025-06-18") -> Difference:
    return Difference(name, revision, "p", "content", "400 error 1", "202 nothing")


ONE = [difference("one"), difference("one", "2026-07-28")]


def test_responses_differ_by_content_and_errors_also_by_id():
    key = ("one", "2025-06-18")
    ours: dict[tuple[str, str], Answer] = {key: Answer("400 error 1", "same")}
    told = {
        "p": Answer("400 error 1", "same"),
        "q": Answer("400 error 2", "null"),
        "r": Answer("200 result {}", "another"),
        "s": Answer("no answer"),
    }
    assert differing(ours, {peer: {key: answer} for peer, answer in told.items()}) == {
        Difference(*key, "q", "content", "400 error 1", "400 error 2"),
        Difference(*key, "q", "id", "same", "null"),
        Difference(*key, "r", "content", "400 error 1", "200 result {}"),
        Difference(*key, "s", "content", "400 error 1", "no answer"),
    }


@pytest.mark.parametrize(
    ("requests", "meant"),
    [
        ('"one"', ONE),
        ('"one @ 2026-07-28"', ONE[1:]),
        ('"one @ 2025-*"', ONE[:1]),
        ('"*: x"', [difference("a: x"), difference("b: x"), difference("c: x")]),
        ('"a: x", "b: x"', [difference("a: x"), difference("b: x")]),
    ],
)
def test_an_entry_names_its_requests(requests, meant):
    [entry] = known(requests)
    assert entry.differences == set(meant)


def test_a_run_passes_if_all_differences_are_known_and_there_still():
    counts, faults = judge(ONE, known('"one"'))
    assert not faults
    assert counts == {"ours right": 2, "theirs right": 0, "free choice": 0, "not classified": 0}


def test_an_unknown_difference_fails_the_run():
    counts, [fault] = judge([*ONE, difference("a: x")], known('"one"'))
    assert fault.startswith("not classified: a: x @ 2025-06-18, p")
    assert counts["not classified"] == 1


def test_an_answer_that_differs_in_another_way_fails_the_run_twice():
    changed = ONE[0]._replace(theirs="200 result {}")
    _, faults = judge([changed, ONE[1]], known('"one"'))
    assert [fault.partition(":")[0] for fault in faults] == ["no longer differs", "not classified"]


def test_an_entry_that_does_not_differ_any_more_fails_the_run():
    _, [fault] = judge(ONE[:1], known('"one"'))
    assert fault.startswith("no longer differs: one @ 2026-07-28")


def test_where_others_are_right_the_run_fails_until_we_are_too():
    counts, faults = judge(ONE, known('"one"', "theirs right"))
    assert [fault.partition(":")[0] for fault in faults] == ["theirs is right (MSG-5)"] * 2
    assert counts["theirs right"] == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ENTRY.format(verdict="nobody right", rule="MSG-5", requests='"one"'), "without a verdict"),
        (ENTRY.format(verdict="ours right", rule="", requests='"one"'), "without a verdict"),
        (ENTRY.format(verdict="ours right", rule="none", requests='"one"'), "requires a rule"),
        (ENTRY.format(verdict="free choice", rule="none", requests='"two"'), "unknown request: two"),
        (ENTRY.format(verdict="free choice", rule="none", requests='"a: x @ 2026-*"'), "unknown request"),
        (ENTRY.format(verdict="free choice", rule="none", requests='"one"') * 2, "two entries"),
    ],
)
def test_an_entry_that_is_none_is_refused(text, told):
    with pytest.raises(ValueError, match=told):
        entries(text, SENT)


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (ONE, ["one"]),
        (ONE[:1], ["one @ 2025-*"]),
        (ONE[1:], ["one @ 2026-07-28"]),
        ([difference(name) for name in ("a: x", "b: x", "c: x")], ["*: x"]),
        ([difference(name) for name in ("a: x", "b: x")], ["a: x", "b: x"]),
        ([difference("one")._replace(part="id", ours="it's", theirs="{}")], ["one @ 2025-*"]),
    ],
)
def test_a_draft_becomes_entries_when_it_gets_a_verdict(found, lines):
    draft = drafted(found, SENT)
    assert all(f"'{line}'" in draft for line in lines)
    head = '[[difference]]\nverdict = "free choice"\nrule = "none"\nwhy = "x"\n'
    [entry] = entries(head + draft, SENT)
    assert entry.differences == set(found)


def test_the_table_can_be_read_and_says_why():
    table = entries(TABLE.read_text(encoding="utf-8"), revisions())
    assert {entry.verdict for entry in table} <= set(VERDICTS)
    assert all(len(entry.why) > 10 for entry in table)


def test_the_rules_of_the_table_are_rules(spec):
    ids = {rule for section in rules().values() for rule in section}
    for entry in entries(TABLE.read_text(encoding="utf-8"), revisions()):
        assert entry.rule in ids or re.fullmatch(r"none|REVISIONS \d+|RFC \d+", entry.rule), entry
