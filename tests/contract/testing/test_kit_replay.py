"""Recorded and replayed conversations, in both eras and over every transport."""

import asyncio
import json
import sys

import pytest

from calculator import calculator
from toolpost import Client, RequestTimeout, RPCError, SyncClient
from toolpost.errors import MCPError
from toolpost.testing import (
    REVISIONS,
    Fault,
    Transcript,
    faulty,
    in_process,
    memory_pair,
    read_tape,
    record,
    replay,
)

WAYS = {
    "memory": calculator,
    "http": lambda: in_process(calculator()),
    "sse": lambda: in_process(calculator(), "sse"),
}


async def talk(target, revision=None, name="Ann"):
    """All messages that a client receives in a conversation with every feature."""
    heard = []

    async def ask(params):
        heard.append(params.message)
        return {"name": name}

    client = Client(
        target,
        revision=revision,
        on_elicitation=ask,
        on_log=lambda params: heard.append(params.data),
        on_progress=lambda params: heard.append(params.progress),
    )
    async with client as mcp:
        heard.append((await mcp.call_tool("sign", {"text": "Hi"})).text)
        sums = await asyncio.gather(*(mcp.call_tool("add", {"a": n, "b": 1}) for n in range(3)))
        heard.append([each.text for each in sums])
        heard.append((await mcp.read_resource("sums://last")).contents[0].text)
    return client.revision, sorted(map(str, heard))  # logs and progress have no order between them


CASES = [
    (date, way)
    for date, revision in REVISIONS.items()
    for way in WAYS
    if "elicitation/create" in {*revision.requests["server"], *revision.input_requests}
    if way != "sse" or not revision.stateless
]


@pytest.mark.parametrize(("revision", "way"), CASES)
def test_a_conversation_is_had_again(tmp_path, revision, way):
    path = tmp_path / "talk.jsonl"
    recorded = asyncio.run(talk(record(WAYS[way](), path), revision))
    again = replay(path)
    assert asyncio.run(talk(again, revision)) == recorded
    assert again.unplayed_requests == []
    assert asyncio.run(talk(again, revision)) == recorded, "each client has it from the beginning"


def test_a_client_that_detects_the_revision_gets_the_recorded_one(tmp_path):
    path = tmp_path / "talk.jsonl"
    recorded = asyncio.run(talk(record(calculator(), path), "2025-06-18"))
    assert asyncio.run(talk(replay(path))) == recorded


def test_a_process_is_recorded(tmp_path):
    path = tmp_path / "talk.jsonl"
    program = tmp_path / "program.py"
    program.write_text("from toolpost import Server\nServer('started').run()\n")
    for target in (lambda: record([sys.executable, str(program)], path), lambda: replay(path)):
        with SyncClient(target(), revision="2025-11-25") as mcp:
            mcp.ping()
            assert getattr(mcp.server_info, "name", None) == "started"
    assert read_tape(path)[1][-1].closed == "the client disconnected"


def test_secrets_are_masked_and_still_match(tmp_path):
    path = tmp_path / "talk.jsonl"
    arguments = {"user": "ann", "password": "tiger"}

    def login(target):
        with SyncClient(target) as mcp:
            return mcp.call_tool("login", arguments).text

    assert login(record(calculator(), path, secrets=["tiger"])) == "ann has tiger"
    assert "tiger" not in path.read_text()
    assert login(replay(path)) == "ann has <masked>"


def test_a_recording_that_cannot_be_written_says_so(tmp_path):
    with (
        pytest.raises(MCPError, match=r"could not write the recording: .*nowhere"),
        SyncClient(record(calculator(), tmp_path / "nowhere" / "talk.jsonl")),
    ):
        pass


def test_an_end_of_the_server_is_recorded(tmp_path):
    path = tmp_path / "talk.jsonl"
    program = tmp_path / "program.py"
    program.write_text("import sys\nsys.exit('no')\n")
    with pytest.raises(MCPError), SyncClient(record([sys.executable, str(program)], path)):
        pass
    assert any("exit" in str(line.closed) for line in read_tape(path)[1])


# --------------------------------------------------------------------- what was not recorded


@pytest.fixture
def tape(tmp_path):
    """A conversation with two sums."""
    path = tmp_path / "sums.jsonl"
    with SyncClient(record(calculator(), path)) as mcp:
        mcp.call_tool("add", {"a": 1, "b": 2})
        mcp.call_tool("add", {"a": 10, "b": 20})
    return path


def test_a_request_that_was_not_recorded_shows_the_nearest(tape):
    with SyncClient(replay(tape)) as mcp, pytest.raises(RPCError) as caught:
        mcp.call_tool("add", {"a": 10, "b": 21})
    assert caught.value.message == (
        f'tools/call {{"name":"add","arguments":{{"a":10,"b":21}}}} was not recorded in {tape}; '
        'the closest is line 6: tools/call {"name":"add","arguments":{"a":10,"b":20}}'
    )


def test_a_method_that_was_not_recorded_shows_the_nearest(tape):
    with (
        SyncClient(replay(tape)) as mcp,
        pytest.raises(RPCError, match=r"tools/list was not recorded in .*closest"),
    ):
        mcp.list_tools()


def test_a_request_that_is_made_too_often(tape):
    asked = {"a": 1, "b": 2}
    with SyncClient(replay(tape)) as mcp:
        assert mcp.call_tool("add", asked).data == 3
        with pytest.raises(RPCError, match=r"was recorded once in .*\(line 4\), but is sent more often"):
            mcp.call_tool("add", asked)
    with SyncClient(replay(tape, again=True)) as mcp:
        assert [mcp.call_tool("add", asked).data for _ in range(3)] == [3, 3, 3]


def test_garbage_is_not_answered(tape):
    target = faulty(replay(tape), Fault("garbage", "client", method="tools/call"))
    with SyncClient(target, retries=0) as mcp:
        with pytest.raises(RequestTimeout):
            mcp.call_tool("add", {"a": 1, "b": 2}, timeout=0.05)
        assert mcp.call_tool("add", {"a": 1, "b": 2}).data == 3


def test_unplayed_requests_are_listed(tape):
    again = replay(tape)
    with SyncClient(again) as mcp:
        mcp.call_tool("add", {"a": 10, "b": 20})
    assert again.unplayed_requests == ['tools/call {"name":"add","arguments":{"a":1,"b":2}}']


def test_another_answer_than_the_recorded_one_is_refused(tmp_path):
    path = tmp_path / "talk.jsonl"
    asyncio.run(talk(record(calculator(), path), "2025-11-25"))
    with pytest.raises(RPCError, match=r'the client responded with .*"Bob".*; recorded: .*"Ann"'):
        asyncio.run(talk(replay(path), "2025-11-25", name="Bob"))


# --------------------------------------------------------------------- tapes by hand


def written(path, *lines):
    """A recording of these lines: the sender, and a message or another entry."""
    rows = [{"tape": 1}]
    rows += [
        {
            "at": 0,
            "from": sender,
            **(more if {"closed", "lost", "text"} & set(map(str, more)) else {"message": more}),
        }
        for sender, more in lines
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


INIT = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "result": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "tape", "version": "1"},
    },
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


def test_a_request_that_was_lost_is_lost_again_unless_it_was_made_again(tmp_path):
    path = written(
        tmp_path / "talk.jsonl",
        ("client", INIT),
        ("server", {"lost": 1, "why": "HTTP 503"}),
        ("client", INIT),
        ("server", HELLO),
        ("client", LIST),
        ("server", {"lost": 2, "why": "HTTP 500"}),
    )
    with (
        SyncClient(replay(path), revision="2025-06-18") as mcp,
        pytest.raises(RPCError, match=r"no recorded response: HTTP 500"),
    ):
        mcp.list_tools()


CALL = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "add"}}
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ([], "the recording ends before the response"),
        ([("server", {"closed": "it ended with exit code 1"})], "it ended with exit code 1"),
    ],
)
def test_a_request_without_an_answer_is_refused_at_once(tmp_path, end, why):
    path = written(
        tmp_path / "talk.jsonl",
        ("client", INIT),
        ("server", HELLO),
        ("client", READY),
        ("client", CALL),
        *end,
    )
    with (
        SyncClient(replay(path), revision="2025-06-18", timeout=None) as mcp,
        pytest.raises(RPCError, match=f"tools/call .* has no recorded response: {why}"),
    ):
        mcp.call_tool("add")


def test_a_request_that_was_taken_back_is_not_answered(tmp_path):
    odd = {"jsonrpc": "2.0", "id": {}, "method": "ping"}
    path = written(
        tmp_path / "talk.jsonl",
        *[("client", INIT), ("server", HELLO), ("client", READY), ("client", odd), ("client", CALL)],
        ("client", CANCEL),
    )
    with SyncClient(replay(path), revision="2025-06-18") as mcp, pytest.raises(RequestTimeout):
        mcp.call_tool("add", timeout=0.05)


def test_a_long_conversation_is_played_in_no_time(tmp_path):
    lines = [("client", INIT), ("server", HELLO), ("client", READY)]
    for n in range(3000):
        lines += [("client", {**LIST, "id": n + 2}), ("server", {"id": n + 2, "result": {"tools": []}})]
    again = replay(written(tmp_path / "talk.jsonl", *lines))

    async def play():
        ours, theirs = memory_pair()
        serving = asyncio.create_task(again.serve(theirs))
        for n in range(3000):
            await ours.send(json.dumps({**LIST, "id": n}).encode())
            await ours.receive()
        await ours.close()
        await serving

    asyncio.run(play())
    assert again.unplayed_requests == ["initialize"]


def test_unsolicited_messages_are_replayed_in_their_place(tmp_path):
    path = written(
        tmp_path / "talk.jsonl",
        ("server", {"text": "starting"}),
        ("server", CHANGED),
        ("client", INIT),
        ("server", HELLO),
        ("client", READY),
        ("server", {"jsonrpc": "2.0", "id": "q", "method": "ping"}),
        ("client", {"jsonrpc": "2.0", "id": "q", "result": {}}),
        ("client", {"jsonrpc": "2.0", "id": "nobody", "result": {}}),
        ("server", [CHANGED, {"jsonrpc": "2.0", "id": 77, "result": {}}]),
    )
    transcript = Transcript()
    with SyncClient(transcript.wrap(replay(path)), revision="2025-06-18") as mcp:
        mcp.ping()
        with pytest.raises(RPCError):
            mcp.list_tools()
    transcript.assert_like("""
        -> 1 initialize ...
        <- notifications/tools/list_changed
        ...
        -> notifications/initialized
        ...
        <- s1 ping
        ...
        -> s1 result {}
        ...
        <- notifications/tools/list_changed
        ...
    """)


def test_a_subscription_has_the_id_of_now(tmp_path):
    path = tmp_path / "talk.jsonl"
    server = calculator()

    async def listen(target, before):
        async with Client(target) as mcp:
            for n in range(before):  # so that ids are others
                await mcp.call_tool("add", {"a": n, "b": 0})
            async with mcp.listen(tools=True) as changes:
                if before:
                    server.tool(name="more")(lambda: None)
                return await anext(aiter(changes))

    recorded = asyncio.run(listen(record(server, path), 3))
    assert asyncio.run(listen(replay(path), 0)) == recorded


def test_a_server_may_take_back_a_question(tmp_path):
    cancelled = {"method": "notifications/cancelled", "params": {"requestId": "q", "reason": "never mind"}}
    path = written(
        tmp_path / "talk.jsonl",
        ("client", INIT),
        ("server", HELLO),
        ("client", READY),
        ("client", LIST),
        ("server", {"jsonrpc": "2.0", "id": "q", "method": "ping"}),
        ("server", {"jsonrpc": "2.0", **cancelled}),
        ("server", {"jsonrpc": "2.0", "id": 2, "result": {"tools": []}}),
    )
    transcript = Transcript()
    with SyncClient(transcript.wrap(replay(path)), revision="2025-06-18") as mcp:
        assert mcp.list_tools() == []
    assert '← notifications/cancelled {"requestId":"?","reason":"never mind"}' not in transcript.lines()


def test_unrequested_progress_is_left_out(tmp_path):
    asked = {**LIST, "params": {"_meta": {"progressToken": 5}}}
    path = written(
        tmp_path / "talk.jsonl",
        ("client", INIT),
        ("server", HELLO),
        ("client", READY),
        ("client", asked),
        ("server", {"method": "notifications/progress", "params": {"progressToken": 5, "progress": 1}}),
        ("server", {"jsonrpc": "2.0", "id": 2, "result": {"tools": []}}),
    )
    transcript = Transcript()
    with SyncClient(transcript.wrap(replay(path)), revision="2025-06-18", timeout=None) as mcp:
        assert mcp.list_tools() == []
    assert "progress" not in str(transcript)
