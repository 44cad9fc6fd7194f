"""One request through middleware to the bytes of its answer, with nothing around it."""

import asyncio
import logging
from typing import Any

import pytest

from pair import arrived, open_pair
from toolpost import MCPError
from toolpost.errors import CapabilityNotDeclared, InvalidParams, MethodNotFound
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import DATES
from toolpost.server.runtime.request import (
    Call,
    build_error_response,
    build_response,
    run_middleware,
    start_request,
)
from toolpost.types import Result


def asked(method: str = "ping", revision: str = DATES[-2]) -> tuple[Any, InboundRequest]:
    """A server's connection, and a request that it has to answer."""
    pair = open_pair(revision)
    return pair.server, arrived(pair.server.receive(pair.client.request(method).data))


CONTEXT: Any = object()


def test_a_route_may_answer_at_once_or_later():
    _, incoming = asked()
    ready = Result()

    async def later(context: Any, params: Any) -> Result:
        return ready

    assert start_request({"ping": lambda context, params: ready}, (), CONTEXT, incoming) is ready
    begun: Any = start_request({"ping": later}, (), CONTEXT, incoming)
    assert asyncio.run(begun) is ready


def test_a_method_without_a_route_is_not_found():
    _, incoming = asked()
    with pytest.raises(MethodNotFound, match="ping"):
        start_request({}, (), CONTEXT, incoming)


def test_without_middleware_a_route_is_called_directly():
    """Nothing stands between: what the route returns is what `start_request` returns."""
    _, incoming = asked()
    given: list[Any] = []

    def route(*arguments: Any) -> Result:
        given.append(arguments)
        return Result()

    start_request({"ping": route}, [], CONTEXT, incoming)
    assert given == [(CONTEXT, incoming.params)]


def test_layers_may_change_what_is_passed_on():
    async def add(call: Call, next: Any) -> Any:  # noqa: A002 - the word for it
        return f"<{await next(Call(call.method, call.params + 1, call.context))}>"

    async def main() -> Any:
        return await run_middleware([add, add], Call("x", 1, CONTEXT), lambda context, params: str(params))

    assert asyncio.run(main()) == "<<3>>"


@pytest.mark.parametrize(
    ("error", "code", "text", "level"),
    [
        (InvalidParams("bad"), -32602, "bad", None),
        (CapabilityNotDeclared("roots", "no roots"), -32603, "no roots", "WARNING"),
        (MCPError("odd"), -32603, "odd", "WARNING"),
        (ValueError("secret"), -32603, "could not be served", "ERROR"),
        (SystemExit(3), -32603, "could not be served", "ERROR"),
        (KeyboardInterrupt(), -32603, "could not be served", "ERROR"),
        (asyncio.CancelledError(), -32603, "could not be served", "ERROR"),
    ],
)
def test_whatever_is_raised_stays_with_its_request(error, code, text, level, caplog):
    connection, incoming = asked()

    async def broken() -> Result:
        raise error

    async def main() -> bytes | None:
        return await build_response(connection, incoming, broken())

    with caplog.at_level(logging.WARNING, "toolpost.server"):
        data = asyncio.run(main())
    assert data is not None
    said: Any = jsonrpc.decode(data)
    assert said.code == code
    assert text in said.message
    assert "secret" not in said.message
    assert [record.levelname for record in caplog.records] == ([] if level is None else [level])


def test_a_cancelled_request_is_answered_by_nobody():
    connection, incoming = asked()

    async def main() -> None:
        async def forever() -> Result:
            await asyncio.Event().wait()
            return Result()

        task = asyncio.create_task(build_response(connection, incoming, forever()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del connection.incoming[incoming.id]

        async def raises() -> Result:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await build_response(connection, incoming, raises())
        assert build_error_response(connection, incoming, ValueError("late")) is None

    asyncio.run(main())


def test_an_answer_that_cannot_be_said_is_an_error(caplog):
    connection, incoming = asked()

    async def nonsense() -> Any:
        return {"no": "result"}

    async def main() -> Any:
        return jsonrpc.decode(await build_response(connection, incoming, nonsense()) or b"")

    with caplog.at_level(logging.WARNING, "toolpost.server"):
        assert asyncio.run(main()).code == -32603
    assert "dict" in caplog.text
