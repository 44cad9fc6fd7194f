"""The steps of a `tools/call`, one by one and all together, each as a function that runs it many times.

A table of factories, which prepare what a step needs before it is measured. The rows for bare msgspec and the
json module show the minimum cost of any library that uses them, without the protocol.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bench.targets import wire
from toolpost import Server
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.http_routing import classify
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import ROWS
from toolpost.server.signature.function_schema import BoundFunction
from toolpost.server.signature.results import ResultConverter
from toolpost.types import (
    CallToolParams,
    CallToolResult,
    Implementation,
    ListCapability,
    RequestMeta,
    ServerCapabilities,
    TextContent,
)

__all__ = ["STEPS", "Many", "bare_msgspec"]

Many = Callable[[int], None]
"""Runs a step this number of times."""

DATA: Final = wire.body("add", 1, stateless=True)
HEADERS: Final = {"host": "127.0.0.1:8000", **wire.headers("add", stateless=True)}


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _many(step: Callable[[], Any]) -> Many:
    def many(count: int) -> None:
        for _ in range(count):
            step()

    return many


def _run(coroutine: Any) -> None:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("it waits")


def _connection() -> Connection:
    return Connection(LocalPeer(Implementation("adder", "1"), ServerCapabilities(tools=ListCapability())))


def _request() -> jsonrpc.JSONRPCRequest:
    request = jsonrpc.decode(DATA)
    assert isinstance(request, jsonrpc.JSONRPCRequest)
    return request


def _answer() -> CallToolResult:
    return CallToolResult(content=[TextContent("3")], structured_content=3)


def _reader() -> Any:
    return next(row for row in ROWS if row.name == "tools/call").read_params


def _params() -> CallToolParams:
    return _reader()(_request().params)


# --------------------------------------------------------------------- single steps


def decode_envelope() -> Many:
    """Decode the envelope, with raw params."""
    return _many(lambda: jsonrpc.decode(DATA))


def decode_params() -> Many:
    """Decode the params, with raw arguments."""
    read, params = _reader(), _request().params
    return _many(lambda: read(params))


def classify_request() -> Many:
    """Classify a POST by its headers and `_meta`."""
    request, party = _request(), _connection().local_peer
    raw = {name.encode(): value.encode() for name, value in HEADERS.items()}
    return _many(lambda: classify(raw, request, party))


def bind_arguments() -> Many:
    """Convert the arguments to the types of the signature."""
    bound, arguments = BoundFunction(add), _params().arguments
    return _many(lambda: bound.read(arguments))


def call_function() -> Many:
    """Call and await the function itself."""
    bound = BoundFunction(add)
    arguments = bound.read(_params().arguments)
    return _many(lambda: _run(bound.call(arguments)))


def convert_value() -> Many:
    """Convert and check the return value."""
    returns = ResultConverter.for_function(add)
    return _many(lambda: returns.convert(3))


def encode_result() -> Many:
    """Encode the result."""
    result: Any = _answer()
    return _many(lambda: jsonrpc.encode(jsonrpc.JSONRPCResponse(1, result)))


# --------------------------------------------------------------------- the whole way


def whole_connection() -> Many:
    """Go from bytes to bytes through a connection, with all checks, without calling the function."""
    connection, result = _connection(), _answer()

    def step() -> None:
        [incoming] = connection.receive(DATA)
        assert isinstance(incoming, InboundRequest)
        connection.reply(incoming.id, result)

    return _many(step)


def whole_application() -> Many:
    """Go from scope to response through the ASGI application, with the function."""
    server = Server("adder", version="1")
    server.tool(add)
    raw = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": raw}
    body = {"type": "http.request", "body": DATA, "more_body": False}
    sent: list[Any] = []

    async def receive() -> Any:
        return body

    async def send(message: Any) -> None:
        sent.append(message)

    async def calls(count: int) -> None:
        app = server.asgi()
        async with app.lifespan():
            for _ in range(count):
                sent.clear()
                await app(dict(scope), receive, send)
        assert sent[0]["status"] == 200, sent

    return lambda count: asyncio.run(calls(count))


# --------------------------------------------------------------------- the floor


class _Add(msgspec.Struct):
    a: int
    b: int


class _Params(msgspec.Struct, rename={"meta": "_meta"}):
    name: str
    arguments: _Add
    meta: RequestMeta | None = None


class _Call(msgspec.Struct):
    jsonrpc: str
    id: int | str
    method: str
    params: _Params


class _Reply(msgspec.Struct):
    jsonrpc: str
    id: int | str
    result: CallToolResult


def bare_msgspec() -> Many:
    """Decode and encode one struct each, without any check of the protocol."""
    read, write = msgspec.json.Decoder(_Call).decode, msgspec.json.Encoder().encode

    def step() -> None:
        call = read(DATA)
        total = call.params.arguments.a + call.params.arguments.b
        result = CallToolResult(content=[TextContent(str(total))], structured_content=total)
        write(_Reply("2.0", call.id, result))

    return _many(step)


def json_module() -> Many:
    """Use `json.loads` and `json.dumps`, without types and checks."""

    def step() -> None:
        call = json.loads(DATA)
        arguments = call["params"]["arguments"]
        total = arguments["a"] + arguments["b"]
        result = {"content": [{"type": "text", "text": str(total)}], "structuredContent": total}
        json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}).encode()

    return _many(step)


STEPS: Final = (
    decode_envelope,
    decode_params,
    classify_request,
    bind_arguments,
    call_function,
    convert_value,
    encode_result,
    whole_connection,
    whole_application,
    bare_msgspec,
    json_module,
)
