"""Transcripts: the recorded messages of each transport, the readable form, and comparison."""

import asyncio
import json
from typing import Any, cast

import pytest

from calculator import calculator
from toolpost import Client
from toolpost.testing import ScriptedChannel, Tape, Transcript, in_process, memory_pair, read_tape
from toolpost.types import ElicitParams


async def ask(params: ElicitParams):
    return {"name": "Ann"}


WAYS = {
    "memory": calculator,
    "http": lambda: in_process(calculator()),
    "sse": lambda: in_process(calculator(), "sse"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_session_reads_the_same_over_every_way(way):
    transcript = Transcript()

    async def main():
        target = transcript.wrap(WAYS[way]())
        options: dict[str, Any] = {
            "on_elicitation": ask,
            "on_log": print,
            "on_progress": print,
            "version": "1",
        }
        async with Client(target, revision="2025-11-25", **options) as mcp:
            await mcp.call_tool("sign", {"text": "Hi"})

    asyncio.run(main())
    transcript.assert_like("""
        -> 1 initialize {"protocolVersion":"2025-11-25",...,"clientInfo":{"name":"toolpost","version":"1"}}
        <- 1 result {..."serverInfo":{"name":"calculator",...}}
        -> notifications/initialized
        -> 2 tools/call {"name":"sign","arguments":{"text":"Hi"}}
        <- notifications/message {"level":"info","data":"reading"}
        <- notifications/progress {"progressToken":"2","progress":1...,"total":2...}
        <- s1 elicitation/create {"message":"Who are you?",...}
        -> s1 result {"action":"accept","content":{"name":"Ann"}}
        <- notifications/message {"level":"info","data":"signing"}
        <- 2 result {...}
    """)


def test_the_stateless_era_reads_without_its_facts():
    transcript = Transcript()

    async def main():
        async with Client(transcript.wrap(calculator()), on_elicitation=ask) as mcp:
            await mcp.call_tool("sign", {"text": "Hi"})

    asyncio.run(main())
    transcript.assert_like("""
        → 1 server/discover
        ← 1 result …
        → 2 tools/call {"name":"sign","arguments":{"text":"Hi"}}
        ← notifications/progress {"progressToken":"2",…}
        ← 2 result {…"requestState":"…","resultType":"input_required"}
        → 3 tools/call {…"content":{"name":"Ann"}…"requestState":"…"}
        ← notifications/progress {"progressToken":"3",…}
        ← 3 result {…}
    """)
    assert "io.modelcontextprotocol" not in str(transcript)


def test_several_connections_are_distinguished():
    transcript = Transcript()

    async def main():
        target = transcript.wrap(calculator())
        async with Client(target) as one, Client(target) as two:
            await one.call_tool("add", {"a": 1, "b": 2})
            await two.call_tool("add", {"a": 1, "b": 2})

    asyncio.run(main())
    transcript.assert_like("""
        ...
        -> 3 tools/call {"name":"add",...}
        <- 3 result ...
        2-> 4 tools/call {"name":"add",...}
        2<- 4 result ...
    """)


def said(*messages: tuple[Any, Any]) -> Transcript:
    """Return the messages of a server that the test plays."""
    transcript = Transcript(secrets=["wolf"])
    for sender, message in messages:
        transcript.add(sender, message if isinstance(message, bytes) else json.dumps(message).encode())
    return transcript


@pytest.mark.parametrize(
    ("sender", "message", "line"),
    [
        ("server", b"Listening", '← not JSON-RPC: "Listening"'),
        ("server", 1, "← not JSON-RPC: 1"),
        ("server", {"id": 9, "result": {}}, "← ? result {}"),
        ("server", {"error": {"code": 1, "message": "no"}}, '← ? error {"code":1,"message":"no"}'),
        ("client", {"method": "x", "params": [1, "wolf"]}, '→ x [1,"<masked>"]'),
        (
            "client",
            {"method": "x", "params": {"_meta": {"a": 1, "progressToken": 2}}},
            '→ x {"_meta":{"a":1}}',
        ),
        ("client", {"method": "x", "params": {"requestId": 7}}, '→ x {"requestId":"?"}'),
        (
            "client",
            {"method": "x", "params": {"cursor": "abc", "password": "p"}},
            '→ x {"cursor":"…","password":"<masked>"}',
        ),
        ("client", {"id": {"odd": 1}, "method": "x"}, "→ 1 x"),
        ("client", {"method": "x", "params": {"data": "a" * 300}}, '→ x {"data":"' + "a" * 200 + '…"}'),
    ],
)
def test_lines(sender, message, line):
    assert said((sender, message)).lines() == [line]


def test_ids_are_stable():
    transcript = said(
        ("client", {"id": "zz", "method": "a", "params": {"_meta": {"progressToken": 88}}}),
        ("server", {"method": "notifications/progress", "params": {"progressToken": 88, "progress": 1}}),
        ("client", {"method": "notifications/cancelled", "params": {"requestId": "zz"}}),
        ("server", {"id": "zz", "method": "ask"}),
        ("client", [{"id": "zz", "result": {}}, {"id": 5, "method": "b"}]),
    )
    assert transcript.lines() == [
        "→ 1 a",
        '← notifications/progress {"progressToken":"1","progress":1}',
        '→ notifications/cancelled {"requestId":"1"}',
        "← s1 ask",
        "→ s1 result {}",
        "→ 2 b",
    ]
    assert transcript.messages("b") == [{"id": 5, "method": "b"}]
    assert len(transcript.messages(sender="client")) == 4
    assert len(transcript) == 6


def test_lines_with_times_and_a_width():
    transcript = said(("client", {"method": "notifications/initialized"}))
    assert transcript.lines(times=True) == ["   0.000 → notifications/initialized"]
    assert transcript.lines(width=10) == ["→ notific…"]


LINES = [("client", {"method": name}) for name in "abcab"]


@pytest.mark.parametrize(
    "pattern",
    [
        "-> a\n-> b\n\n   -> c\n-> a\n-> b",
        "...",
        "→ a\n…\n→ b",
        "…\n→ a\n→ b",
        "…\n→ c\n…\n→ b\n…",
        "→ …\n→ b\n→ …\n…",
    ],
)
def test_patterns_match_transcripts(pattern):
    said(*LINES).assert_like(pattern)


@pytest.mark.parametrize(
    ("pattern", "expected", "actual"),
    [
        ("", "end of transcript", "→ a"),
        ("→ a\n→ b\n→ d\n…", "→ d", "→ c"),
        ("…\n→ d", "→ d", "end of transcript"),
        ("→ a\n→ b\n→ c\n→ a\n→ b\n→ c", "→ c", "end of transcript"),
        ("…\n→ a\n→ …c\n…", "→ …c", "→ b"),
    ],
)
def test_a_mismatch_is_shown(pattern, expected, actual):
    with pytest.raises(AssertionError) as caught:
        said(*LINES).assert_like(pattern)
    assert str(caught.value).splitlines()[:2] == [f"expected: {expected}", f"actual:   {actual}"]
    assert str(caught.value).count("→ a") >= 2


def test_the_output_for_long_conversations_is_bounded():
    transcript = Transcript()
    transcript.add("server", b"x" * 100_000)
    for n in range(1000):
        transcript.add("client", b'{"method":"a","params":[%s]}' % b",".join([b"1"] * n))
    assert max(map(len, transcript.lines()[:1])) < 300
    wanted = "\n".join(["..."] + ["-> a ..."] * 499 + ["-> b"])
    with pytest.raises(AssertionError) as caught:
        transcript.assert_like(wanted)
    lines = str(caught.value).splitlines()
    assert len(lines) < 250
    assert lines[3] == "…" or lines[-1] == "…"
    assert max(map(len, lines[3:])) < 510


def test_both_ends_of_a_channel_can_be_overheard():
    transcript = Transcript()

    async def main():
        ours, theirs = memory_pair()
        client = transcript.wrap_channel(ours)
        server = transcript.wrap_channel(theirs, end="server")
        await client.send(b'{"method":"a"}')
        await server.receive()
        await server.send(b'{"method":"b"}')
        await client.receive()
        await client.close()

    asyncio.run(main())
    assert transcript.lines() == ["→ a", "2→ a", "2← b", "← b"]


def test_a_recording_is_a_transcript(tmp_path):
    with Tape(tmp_path / "talk.jsonl") as tape:
        tape.write("client", b'{"id":4,"method":"ping"}')
        tape.write("server", b"oops")
        tape.write_end("server", "gone")
    assert Transcript.from_lines(read_tape(tmp_path / "talk.jsonl")[1]).lines() == [
        "→ 1 ping",
        '← not JSON-RPC: "oops"',
    ]


# --------------------------------------------------------------------- what is in between


class Odd(ScriptedChannel):
    """A channel with optional hooks."""

    find_header_parameters: object = None
    stderr_hint = "elsewhere"

    def on_request_lost(self, tell):
        self.tell = tell


def test_a_wrapper_has_the_optional_features_of_its_channel():
    async def main():
        odd, plain = Odd(), ScriptedChannel()
        around: Any = Transcript().wrap_channel(odd)
        bare = Transcript().wrap_channel(plain)
        around.find_header_parameters = print
        around.on_request_lost(len)
        assert (odd.find_header_parameters, odd.tell, around.stderr_hint, around.local) == (
            print,
            len,
            "elsewhere",
            True,
        )
        assert not hasattr(bare, "find_header_parameters")
        assert not hasattr(bare, "on_request_lost")
        assert not hasattr(around, "offer")

    asyncio.run(main())


def test_an_invalid_target_is_refused_at_once():
    with pytest.raises(TypeError, match="cannot connect to int"):
        Transcript().wrap(cast("Any", 3))


def test_options_reach_the_target():
    with pytest.raises(TypeError, match="headers= requires an HTTP target"):
        Client(Transcript().wrap(calculator()), headers={"a": "b"})
    Client(Transcript().wrap("http://127.0.0.1/mcp"), headers={"a": "b"})


def test_a_configuration_is_found_and_overheard(tmp_path):
    """An `mcp.json` that leads to a program is looked up when the client connects."""
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"none": {"url": "http://127.0.0.1:9/mcp"}}}')
    transcript = Transcript()

    async def main():
        client = Client(transcript.wrap(path), connect_timeout=5)
        with pytest.raises(Exception, match="refused"):
            await client.connect()

    asyncio.run(main())
    assert transcript.lines() == ["→ 1 server/discover"]
