"""Notices on their way through middleware: those that a client sends, and those that we send to it.

The counterpart of `dispatch`, which takes requests that way. Knows no channel and no task: a
`ClientConnection` says what comes through.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from toolpost.principal import Principal
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import Row
from toolpost.server.context import Context
from toolpost.server.dispatch import Call, run_middleware
from toolpost.server.questions import make_abandoned_error
from toolpost.server.request import ClientConnection
from toolpost.types.base import JSON, Result

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

__all__ = ["dispatch_notification", "is_notification_handled", "send_client_request", "send_notification"]

logger: Final = logging.getLogger("toolpost.server")

_INITIALIZED: Final = "notifications/initialized"
"""The end of the handshake: a handler may hear it, but it is none of the business of middleware."""

_PARAMS_READER: Final = JSONReader(dict[str, JSON])


def is_notification_handled(handler: "Handler", event: NotificationReceived) -> bool:
    """Whether anybody hears what a client says."""
    return handler.is_overridden("handle_notification") or (
        bool(handler.middleware) and event.method != _INITIALIZED
    )


async def dispatch_notification(
    handler: "Handler",
    speaker: ClientConnection,
    lifespan: Any,
    event: NotificationReceived,
    sender: Principal | None = None,
) -> None:
    """Let middleware and the handler hear what a client says; `sender` as in `Context`."""
    method = event.method
    try:
        params = _PARAMS_READER(event.raw) if event.row is None else event.params
    except InvalidJSONValue as error:
        logger.debug("dropped: %s cannot be read: %s", method, error)
        return
    context = Context(handler, speaker, method, lifespan=lifespan, sender=sender)
    if not handler.middleware or method == _INITIALIZED:
        await handler.handle_notification(method, params, context)
        return
    call = Call(method, params, context, is_notification=True)
    await run_middleware(
        handler.middleware, call, lambda context, params: handler.handle_notification(method, params, context)
    )


async def send_client_request(
    context: Context,
    method: str | Row,
    params: Any,
    ask: Callable[[Context, Any], Awaitable[Result]],
    key: str | None = None,
) -> Result:
    """Ask the client, once all middleware has seen it.

    Args:
        context: of the request that asks.
        method: what is asked.
        params: the question.
        ask: sends the question and waits, in a session. Where there is none, answers are recalled.
        key: what a client without a session is to call the question.
    """

    async def replay_answer(context: Context, params: Any) -> Result:
        if context.cancelled:
            raise make_abandoned_error(context)
        return await context.replay_answer(str(method), params, key)

    stateless = context.incoming is not None and context.incoming.peer.revision.stateless
    inner = replay_answer if stateless and isinstance(method, str) else ask
    if not context.server.middleware:
        return await inner(context, params)
    name = method if isinstance(method, str) else method.name
    return await run_middleware(context.server.middleware, Call(name, params, context, incoming=False), inner)


async def send_notification(
    speaker: ClientConnection,
    context: Context,
    method: str,
    params: Any,
    build: Callable[[Any], bytes | None],
) -> None:
    """Say something to the peer, once all middleware has seen it.

    What middleware raises is logged, and nothing is said; who wanted to say it goes on.

    Raises:
        LocalProtocolError: it may not be said.
        ChannelClosed: the peer has gone.
    """
    unsaid: list[Exception] = []

    async def send(context: Context, params: Any) -> None:
        try:
            data = build(params)
            if data is not None:
                await speaker.send(data, context.related)
        except Exception as error:  # not the fault of middleware, and told to who wanted to say it
            unsaid.append(error)
            raise

    call = Call(method, params, context, incoming=False, is_notification=True)
    try:
        await run_middleware(context.server.middleware, call, send)
    except Exception as error:  # middleware may raise anything
        if error in unsaid:
            raise
        logger.exception("middleware failed; %s was not sent", method)
