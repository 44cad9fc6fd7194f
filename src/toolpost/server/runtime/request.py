"""One request → middleware → the route that serves it → the bytes of the response.

Every request takes this path, whatever its transport. What a handler raises becomes an error response here.
Knows no tool, no channel and no task.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from toolpost.errors import InternalError, MCPError, MethodNotFound, RPCError, UrlElicitationRequired
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.local_peer import has_capability
from toolpost.server.runtime.eager import is_pending, is_unanswered
from toolpost.types.base import InputResponseParams, Raw, Result, Struct

if TYPE_CHECKING:
    from toolpost.server.context import Context

logger: Final = logging.getLogger("toolpost.server")

RouteResult: TypeAlias = Result | Raw
"""A result, or the bytes of a finished one."""

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


def start_request(
    routes: Routes, middleware: Sequence[Middleware], context: "Context", incoming: InboundRequest
) -> RouteResult | Awaitable[RouteResult]:
    """Start to serve a request: return its result, or an awaitable of it. Raises MethodNotFound."""
    method = incoming.row.name
    route = routes.get(method)
    if route is None:
        raise MethodNotFound(f"Method not found: {method}")
    if middleware:
        route = partial(serve_or_request_input, route) if _can_request_input(context, incoming) else route
        return run_middleware(middleware, Call(method, incoming.params, context), route)
    return start_route(route, context, incoming)


def start_route(
    route: Route, context: "Context", incoming: InboundRequest
) -> RouteResult | Awaitable[RouteResult]:
    """Start to serve a request by a route: return its result, or an awaitable of it."""
    if _can_request_input(context, incoming):
        return serve_or_request_input(route, context, incoming.params)
    return route(context, incoming.params)


def _can_request_input(context: "Context", incoming: InboundRequest) -> bool:
    """Return whether questions of the route go out as a result that requires input."""
    row, revision = incoming.row, incoming.peer.revision
    return row.can_require_input and revision.stateless and not context.server.is_forwarding


async def serve_or_request_input(
    route: Route, context: "Context", params: InputResponseParams
) -> RouteResult:
    """Return the result of a route, or the questions that it needs answered first."""
    if params.request_state is not None or params.input_responses:
        await context.replay.load_journal()  # checked, whether the route needs it or not
    wanted = None
    try:
        value: Any = route(context, params)
        if value.__class__ is CoroutineType or is_pending(value):
            value = await value
        if not context.has_asked:
            return value
        logger.warning(
            "%s (id %r) went on after a question that has no answer yet; the question is asked, and what it "
            "returned is dropped",
            context.method,
            context.related,
        )
    except UrlElicitationRequired as error:
        wanted = error
    except BaseException as error:
        if not is_unanswered(error):
            context.replay.give_up()
            raise
    recall = context.replay
    try:
        if wanted is not None:
            from toolpost.server.elicitation.journal import request_url_visits  # noqa: PLC0415 - with what questions need

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
        step = _wrap_layer(layer, step)
    return await step(call)


def _wrap_layer(layer: Middleware, step: Next) -> Next:
    async def call_layer(call: Call) -> Any:
        return await layer(call, step)

    return call_layer


async def build_response(
    connection: Connection, incoming: InboundRequest, pending: Awaitable[RouteResult]
) -> bytes | None:
    """Return the response to a request, once its result is there; None if it was cancelled."""
    try:
        result = await pending
        return connection.reply(incoming.id, result) if _is_in_flight(connection, incoming) else None
    except asyncio.CancelledError as error:
        if not _is_in_flight(connection, incoming) or is_being_cancelled():
            raise
        return build_error_response(connection, incoming, error)  # the handler itself raised it
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises stays with its request
        return build_error_response(connection, incoming, error)


def _is_in_flight(connection: Connection, incoming: InboundRequest) -> bool:
    """Return whether this request is in flight. The id is not enough: the client may have reused it."""
    return connection.incoming.get(incoming.id) is incoming


def is_being_cancelled() -> bool:
    """Return whether the current task is cancelled, so that a `CancelledError` is not the handler's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def build_error_response(
    connection: Connection, incoming: InboundRequest, error: BaseException
) -> bytes | None:
    """Return the error response for an exception; None if the request was cancelled."""
    if not _is_in_flight(connection, incoming):
        return None
    return connection.fail(incoming.id, to_rpc_error(incoming, error))


def to_rpc_error(incoming: InboundRequest, error: BaseException) -> RPCError:
    """Return the error to send for an exception. What is not meant for the peer is logged."""
    if isinstance(error, UrlElicitationRequired) and not _can_open_url(incoming, error):
        urls = "".join(f" ({each['url']})" for each in error.elicitations)
        return InternalError(f"Internal error: the user has to visit a URL first: {error.message}{urls}")
    if isinstance(error, RPCError):
        return error
    method = incoming.row.name
    if isinstance(error, MCPError):
        logger.warning("%s (id %r) failed: %s", method, incoming.id, error)
        return InternalError(f"Internal error: {error.message}")
    logger.error("%s (id %r) failed", method, incoming.id, exc_info=error)
    return InternalError("Internal error: the request could not be served")


def _can_open_url(incoming: InboundRequest, wanted: UrlElicitationRequired) -> bool:
    """Return whether an error names URLs, and the client can open them (ELIC-9, ELIC-20)."""
    capabilities, told = incoming.peer.capabilities, wanted.elicitations
    named = bool(told) and all("elicitationId" in each for each in told)
    known = incoming.peer.revision.translate_code(wanted.code) == wanted.code
    return named and known and capabilities is not None and has_capability(capabilities, "elicitation.url")
