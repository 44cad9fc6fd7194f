"""One request → observers → middleware → the route that serves it → the bytes of the response.

Every request takes this path, on any transport and in any era. Converts exceptions of handlers to errors.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from toolpost.errors import InternalError, MCPError, MethodNotFound, RPCError, UrlElicitationRequired
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.forward import ForwardedResult
from toolpost.protocol.local_peer import has_capability
from toolpost.protocol.methods import INITIALIZE
from toolpost.server.runtime.eager_tasks import is_pending, is_unanswered
from toolpost.types.base import InputResponseParams, Raw, Result, Struct

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.handler import Handler

logger: Final = logging.getLogger("toolpost.server")

T = TypeVar("T")
R = TypeVar("R")

HANDSHAKE_TIMEOUT: Final = 30.0
"""Seconds that `initialize` may take, with its middleware."""

RouteResult: TypeAlias = Result | ForwardedResult | Raw
"""A result, a result that another server has sent, or an encoded result."""

Route: TypeAlias = Callable[["Context", Any], RouteResult | Awaitable[RouteResult]]
"""The function that serves a method: returns a result, or an awaitable of one."""

Routes: TypeAlias = Mapping[str, Route]


class Call(Struct):
    """A request or notification on its way through middleware, incoming or outgoing."""

    method: str
    params: Any
    context: "Context"
    incoming: bool = True
    is_notification: bool = False


Next: TypeAlias = Callable[[Call], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Call, Next], Awaitable[Any]]


class Outcome(Struct):
    """How a request ended: with a result, with an error, or cancelled, which has neither."""

    result: RouteResult | None = None
    error: BaseException | None = None


Observer: TypeAlias = Callable[["Context"], "Callable[[Outcome], object] | None"]
"""Called when a request begins, in its task; may return a function to call with its outcome."""


async def serve_request(context: "Context") -> tuple[bytes | None, RPCError | None]:
    """Serve the request of a context; return the encoded response, and the error in it, if any.

    The response is None if the request was cancelled and the handler did not stop.
    """
    incoming, connection = context.incoming, context.connection
    assert incoming is not None, "a notification has no response"
    try:
        result: Any = start_request(context.server, context, incoming)
        if result.__class__ is CoroutineType or is_pending(result):
            result = await result
        return connection.answer(incoming, result), None
    except asyncio.CancelledError as cancelled:
        if is_being_cancelled():
            raise
        error = to_rpc_error(incoming, cancelled)  # the handler itself raised it
    except BaseException as raised:  # noqa: BLE001 - an error of a handler stays with its request
        error = to_rpc_error(incoming, raised)
    if connection.incoming.get(incoming.id) is not incoming:
        return None, None
    return connection.fail(incoming.id, error), error


def start_request(
    handler: "Handler", context: "Context", incoming: InboundRequest, *, observed: bool = False
) -> RouteResult | Awaitable[RouteResult]:
    """Start to serve a request: return its result, or an awaitable of it. Raises MethodNotFound."""
    if handler.observers and not observed:
        start = partial(start_request, handler, context, incoming, observed=True)
        return _observe_request(handler.observers, context, start)
    row = incoming.row
    route = handler.routes.get(row.name)
    if route is None:
        route = handler.fallback_route
        if route is None:
            raise MethodNotFound(f"Method not found: {row.name}")
    elif row.can_require_input and incoming.peer.revision.stateless:
        route = partial(serve_or_request_input, route)
    if handler.middleware:
        result = run_middleware(handler.middleware, Call(row.name, incoming.params, context), route)
    else:
        result = route(context, incoming.params)
    return _limit_handshake(result) if row.name == INITIALIZE else result


async def _limit_handshake(result: RouteResult | Awaitable[RouteResult]) -> RouteResult:
    limit = asyncio.timeout(HANDSHAKE_TIMEOUT)
    try:
        async with limit:
            return await result if is_pending(result) else result
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise InternalError(f"the handshake timed out after {HANDSHAKE_TIMEOUT:g} s") from error


async def serve_forwarded(server: "Handler", context: "Context") -> RouteResult:
    """Return the result of a server to which another one forwards a request."""
    assert context.incoming is not None, "only requests have routes"
    result = start_request(server, context, context.incoming)
    return await result if is_pending(result) else result


def serve_mounted(
    server: "Handler", around: Sequence[Middleware], context: "Context", params: Any, serve: Route
) -> RouteResult | Awaitable[RouteResult]:
    """Serve a part of a request by an entry of a mounted server, through its observers and middleware."""
    layers = (*around, *server.middleware)

    def start() -> RouteResult | Awaitable[RouteResult]:
        if not layers:
            return serve(context, params)
        return run_middleware(layers, Call(context.method, params, context), serve)

    return _observe_request(server.observers, context, start) if server.observers else start()


async def _observe_request(
    observers: Sequence[Observer],
    context: "Context",
    start: Callable[[], RouteResult | Awaitable[RouteResult]],
) -> RouteResult:
    """Serve a request between the two calls of each observer. Their exceptions are logged."""
    endings = [_call_observer(observer, context) for observer in observers]
    outcome = Outcome()
    try:
        result = start()
        outcome.result = await result if is_pending(result) else result
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        outcome.error = error
        raise
    else:
        return outcome.result
    finally:
        for ending in reversed(endings):
            if ending is not None:
                _call_observer(ending, outcome)


def _call_observer(observe: Callable[[T], R], seen: T) -> R | None:
    try:
        return observe(seen)
    except Exception:  # the request, and the other observers, go on
        logger.exception("the observer %r failed", observe)
        return None


async def serve_or_request_input(
    route: Route, context: "Context", params: InputResponseParams
) -> RouteResult:
    """Return the result of a route, or the questions that it needs answered first."""
    if params.request_state is not None or params.input_responses:
        await context.replay.load_journal()  # check it, whether the route needs it or not
    wanted = None
    try:
        value: Any = route(context, params)
        if value.__class__ is CoroutineType or is_pending(value):
            value = await value
        if context.loaded_replay is None or not context.loaded_replay.has_open_questions:
            return value
        logger.warning(
            "%s (id %.100r) returned although a question has no answer yet; the result is discarded, and the "
            "question is sent",
            context.method,
            context.related,
        )
    except BaseException as error:
        if isinstance(error, UrlElicitationRequired) and (error.is_forwarded or not error.is_foreign):
            wanted = error
        elif not is_unanswered(error):
            context.replay.give_up()
            raise
    recall = context.replay
    try:
        if wanted is not None:
            from toolpost.server.elicitation.input_required import request_url_visits  # noqa: PLC0415 - with what questions need

            await request_url_visits(context, wanted)
        return await recall.build_input_required(context.method)
    except BaseException:  # the request was cancelled
        recall.give_up()
        raise


async def run_middleware(
    middleware: Sequence[Middleware], call: Call, route: "Callable[[Context, Any], Any]"
) -> Any:
    """Pass a call through all middleware, the first one outermost, to the route."""

    async def innermost(call: Call) -> Any:
        value = route(call.context, call.params)
        return await value if is_pending(value) else value

    step: Next = innermost
    for layer in reversed(middleware):
        step = partial(_call_layer, layer, step)
    return await step(call)


async def _call_layer(layer: Middleware, step: Next, call: Call) -> Any:
    return await layer(call, step)


def is_being_cancelled() -> bool:
    """Return whether the current task is being cancelled; if not, a `CancelledError` is the handler's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def to_rpc_error(incoming: InboundRequest, error: BaseException) -> RPCError:
    """Return the error to send for an exception. Details that are not for the peer are logged.

    A refusal by another peer is an internal error of ours, unless a gateway forwards it.
    """
    if isinstance(error, RPCError) and error.is_foreign:
        return error if error.is_forwarded else InternalError(f"Internal error: {error}")
    if isinstance(error, UrlElicitationRequired) and not _can_open_url(incoming, error):
        urls = "".join(f" ({each['url']})" for each in error.elicitations)
        return InternalError(f"Internal error: the user must visit a URL first: {error.message}{urls}")
    if isinstance(error, RPCError):
        return error
    method = incoming.row.name
    if isinstance(error, MCPError):
        logger.warning("%.100s (id %.100r) failed: %.1000s", method, incoming.id, error)
        return InternalError(f"Internal error: {error.message}")
    logger.error("%.100s (id %.100r) failed", method, incoming.id, exc_info=error)
    return InternalError("Internal error: the request could not be served")


def _can_open_url(incoming: InboundRequest, wanted: UrlElicitationRequired) -> bool:
    """Return whether an error names URLs, and the client can open them (ELIC-9, ELIC-20)."""
    capabilities, visits = incoming.peer.capabilities, wanted.elicitations
    has_urls = bool(visits) and all("elicitationId" in each for each in visits)
    is_known = incoming.peer.revision.translate_code(wanted.code) == wanted.code
    can_open = capabilities is not None and has_capability(capabilities, "elicitation.url")
    return has_urls and is_known and can_open
