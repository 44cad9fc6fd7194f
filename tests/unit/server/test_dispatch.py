"""One request, through middleware to the bytes of its response."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pair import arrived, open_pair
from toolpost import MCPError
from toolpost.errors import CapabilityNotDeclared, InvalidParams, MethodNotFound
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import DATES
from toolpost.server.runtime.dispatch import Call, Outcome, run_middleware, serve_request, start_request
from toolpost.types import Result


def asked(method: str = "ping", revision: str = DATES[-2]) -> tuple[Any, InboundRequest]:
    """A server's connection, and a request that it has to answer."""
    pair = open_pair(revision)
    return pair.server, arrived(pair.server.receive(pair.client.request(method).data))


def make_handler(routes: Any, **members: Any) -> Any:
    """As much of a handler as a request needs."""
    plain = {"middleware": (), "observers": (), "fallback_route": None}
    return SimpleNamespace(routes=routes, **{**plain, **members})


def make_context(connection: Any, incoming: InboundRequest, route: Any, **members: Any) -> Any:
    handler = make_handler({incoming.row.name: route}, **members)
    return SimpleNamespace(server=handler, connection=connection, incoming=incoming)


CONTEXT: Any = object()
RESULT = Result()


def test_a_route_may_answer_at_once_or_later():
    _, incoming = asked()
    ready = Result()

    async def later(context: Any, params: Any) -> Result:
        return ready

    handler = make_handler({"ping": lambda context, params: ready})
    assert start_request(handler, CONTEXT, incoming) is ready
    begun: Any = start_request(make_handler({"ping": later}), CONTEXT, incoming)
    assert asyncio.run(begun) is ready


def test_a_method_without_a_route_is_not_found():
    _, incoming = asked()
    with pytest.raises(MethodNotFound, match="ping"):
        start_request(make_handler({}), CONTEXT, incoming)


def test_without_middleware_a_route_is_called_directly():
    """`start_request` returns the value of the route itself."""
    _, incoming = asked()
    given: list[Any] = []

    def route(*arguments: Any) -> Result:
        given.append(arguments)
        return Result()

    start_request(make_handler({"ping": route}), CONTEXT, incoming)
    assert given == [(CONTEXT, incoming.params)]


@pytest.mark.parametrize("ends", ["result", "error", "cancelled"])
def test_observers_are_called_with_the_outcome_the_last_one_first(ends):
    connection, incoming = asked()
    seen: list[Any] = []

    def observe(name: str) -> Any:
        def begin(context: Any) -> Any:
            seen.append(name)
            return None if name == "b" else lambda outcome: seen.append((name, outcome))

        return begin

    async def route(context: Any, params: Any) -> Result:
        if ends == "error":
            raise InvalidParams("no")
        if ends == "cancelled":
            raise asyncio.CancelledError
        return RESULT

    observers = [observe(name) for name in "abc"]
    asyncio.run(serve_request(make_context(connection, incoming, route, observers=observers)))
    assert seen[:3] == ["a", "b", "c"]
    assert [name for name, _ in seen[3:]] == ["c", "a"]
    outcome = seen[3][1]
    assert isinstance(outcome, Outcome)
    assert outcome.result is (RESULT if ends == "result" else None)
    assert isinstance(outcome.error, InvalidParams) == (ends == "error")


def test_middleware_may_change_the_params():
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
@pytest.mark.parametrize("waits", [False, True])
def test_an_exception_affects_only_its_request(error, code, text, level, waits, caplog):
    connection, incoming = asked()

    def broken(context: Any, params: Any) -> Any:
        if not waits:
            raise error

        async def later() -> Result:
            await asyncio.sleep(0)
            raise error

        return later()

    with caplog.at_level(logging.WARNING, "toolpost.server"):
        data, sent = asyncio.run(serve_request(make_context(connection, incoming, broken)))
    assert data is not None
    said: Any = jsonrpc.decode(data)
    assert sent is not None
    assert said.code == code == sent.code
    assert text in said.message
    assert "secret" not in said.message
    assert [record.levelname for record in caplog.records] == ([] if level is None else [level])


def test_a_cancelled_request_has_no_answer():
    connection, incoming = asked()

    async def forever(context: Any, params: Any) -> Result:
        await asyncio.Event().wait()
        return Result()

    async def main() -> None:
        task = asyncio.create_task(serve_request(make_context(connection, incoming, forever)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


@pytest.mark.parametrize("error", [None, ValueError("late"), asyncio.CancelledError()])
def test_a_handler_that_goes_on_after_a_cancellation_has_no_answer(error):
    connection, incoming = asked()

    async def goes_on(context: Any, params: Any) -> Result:
        del connection.incoming[incoming.id]  # its client has cancelled it
        if error is not None:
            raise error
        return Result()

    assert asyncio.run(serve_request(make_context(connection, incoming, goes_on))) == (None, None)


def test_an_answer_that_cannot_be_encoded_is_an_error(caplog):
    connection, incoming = asked()
    context = make_context(connection, incoming, lambda context, params: {"no": "result"})
    with caplog.at_level(logging.WARNING, "toolpost.server"):
        data, error = asyncio.run(serve_request(context))
    said: Any = jsonrpc.decode(data or b"")
    assert said.code == -32603
    assert error is not None
    assert "dict" in caplog.text
