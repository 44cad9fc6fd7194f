"""What the core costs: `tools/call` from request bytes to response bytes, beside json and bare msgspec.

All contenders run interleaved, round by round, in one process on the same bytes; a row is the best round of
each, and the ratios are what counts. Bare msgspec reads the whole request into one struct that knows the
tool's arguments beforehand and checks nothing of the protocol: the floor for any library that stands on it.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import ERAS
from toolpost.protocol.events import Incoming
from toolpost.protocol.methods import ROWS
from toolpost.protocol.party import Party
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, Revision
from toolpost.types import (
    CallToolParams,
    CallToolResult,
    ClientCapabilities,
    ElicitationCapability,
    Implementation,
    ListCapability,
    Raw,
    RequestMeta,
    ServerCapabilities,
    TextContent,
)

COVERS = {
    "bare msgspec": "whole request and answer as one struct each, nothing of the protocol checked",
    "json module": "json.loads and json.dumps, nothing typed and nothing checked",
    "toolpost codec": "envelope checked, params and arguments typed, answer written; no conversation",
    "toolpost connection": "the same and the conversation: state, ids, capabilities, `_meta`, stamps",
}
"""What each row does between the bytes of the request and the bytes of the answer."""

GOALS = (
    ("toolpost codec", "bare msgspec", 2.5),
    ("toolpost codec", "json module", 1.0),
    ("toolpost connection", "json module", 1.0),
)
"""Who may take at most how many times as long as whom."""

ROUNDS = 9
CALLS = 4000


class Add(msgspec.Struct):
    """The arguments of the tool."""

    a: int
    b: int


class BareParams(msgspec.Struct, rename={"meta": "_meta"}):
    """The parameters, arguments included."""

    name: str
    arguments: Add
    meta: RequestMeta | None = None


class BareRequest(msgspec.Struct):
    """The whole request."""

    jsonrpc: str
    id: int | str
    method: str
    params: BareParams


class BareReply(msgspec.Struct):
    """The whole answer."""

    jsonrpc: str
    id: int | str
    result: CallToolResult


def answer(total: int) -> CallToolResult:
    """What the tool says."""
    return CallToolResult(content=[TextContent(str(total))], structured_content={"result": total})


def conversation(revision: Revision) -> tuple[Connection, bytes]:
    """A server that is ready, and the bytes of a call."""
    client = Connection(
        Party(Implementation("bench", "1.0"), ClientCapabilities(elicitation=ElicitationCapability())),
        revision=revision,
    )
    server = Connection(Party(Implementation("adder", "1.0"), ServerCapabilities(tools=ListCapability())))
    [hello] = server.receive(ERAS[revision.era].open(client).data)
    assert isinstance(hello, Incoming)
    client.receive(server.reply(hello.id, server.party.introduce(hello.peer.revision)) or b"")
    if not revision.stateless:
        server.receive(client.notify("notifications/initialized"))
    params = CallToolParams(name="add", arguments=Raw(b'{"a":1,"b":2}'))
    return server, client.request("tools/call", params).data


def contenders(revision: Revision) -> dict[str, Callable[[], Any]]:
    """Four ways from the same request to the same answer."""
    server, data = conversation(revision)
    read_params = next(row for row in ROWS if row.name == "tools/call").read_params
    read_arguments = msgspec.json.Decoder(Add).decode
    read_bare = msgspec.json.Decoder(BareRequest).decode
    write_bare = msgspec.json.Encoder().encode

    def by_json() -> bytes:
        request = json.loads(data)
        arguments = request["params"]["arguments"]
        total = arguments["a"] + arguments["b"]
        content = [{"type": "text", "text": str(total)}]
        result = {"content": content, "structuredContent": {"result": total}}
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()

    def by_msgspec() -> bytes:
        request = read_bare(data)
        arguments = request.params.arguments
        return write_bare(BareReply("2.0", request.id, answer(arguments.a + arguments.b)))

    def by_codec() -> bytes:
        request = jsonrpc.decode(data)
        assert isinstance(request, jsonrpc.Request)
        params: Any = read_params(request.params)
        arguments = read_arguments(params.arguments)
        return jsonrpc.encode_reply(request.id, answer(arguments.a + arguments.b))

    def by_connection() -> bytes | None:
        incoming: Any = server.receive(data)[0]
        arguments = read_arguments(incoming.params.arguments)
        return server.reply(incoming.id, answer(arguments.a + arguments.b))

    return {
        "bare msgspec": by_msgspec,
        "json module": by_json,
        "toolpost codec": by_codec,
        "toolpost connection": by_connection,
    }


def measure(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of CPU per call, the best of all rounds, contenders taking turns."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            for _ in range(CALLS):
                way()
            best[name] = min(best[name], (time.process_time() - start) / CALLS)
    return best


def main() -> int:
    """Print the table; 1 if a goal was missed."""
    missed = 0
    print("tools/call: request bytes → typed params → result → response bytes, without any transport\n")
    for name, what in COVERS.items():
        print(f"  {name:22}{what}")
    print(f"\n{'':24}{'µs':>8}{'× bare':>9}{'× json':>9}")
    for revision in (LATEST_SESSION, LATEST):
        best = measure(contenders(revision))
        bare, plain = best["bare msgspec"], best["json module"]
        print(f"{revision.date} ({revision.era})")
        for name, seconds in best.items():
            print(f"  {name:22}{seconds * 1e6:8.2f}{seconds / bare:9.2f}{seconds / plain:9.2f}")
        for name, peer, times in GOALS:
            reached = best[name] <= times * best[peer]
            missed += not reached
            print(f"  {'reached' if reached else 'MISSED '}  {name}: at most {times:g} × {peer}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
