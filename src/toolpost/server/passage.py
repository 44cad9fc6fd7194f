"""Notices on their way through middleware: those that a client sends, and those that we send to it.

The counterpart of `dispatch`, which takes requests that way. Knows no channel and no task: a `Speaker` says
what comes through.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from toolpost.principal import Principal
from toolpost.protocol.events import NoticeReceived
from toolpost.protocol.jsonrpc import Reader, Unfit
from toolpost.protocol.methods import Row
from toolpost.server.context import Context
from toolpost.server.dispatch import Call, through
from toolpost.server.questions import unwanted
from toolpost.server.request import Speaker
from toolpost.types.base import JSON, Result

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

__all__ = ["asked", "heard", "is_heard", "said"]

logger: Final = logging.getLogger("toolpost.server")

_OPENED: Final = "notifications/initialized"
"""The end of the handshake: a handler may hear it, but it is none of the business of middleware."""

_PARAMS: Final = Reader(dict[str, JSON])


def is_heard(handler: "Handler", event: NoticeReceived) -> bool:
    """Whether anybody hears what a client says."""
    return handler.offers("heard") or (bool(handler.middleware) and event.method != _OPENED)


async def heard(
    handler: "Handler",
    speaker: Speaker,
    lifespan: Any,
    event: NoticeReceived,
    sender: Principal | None = None,
) -> None:
    """Let middleware and the handler hear what a client says; `sender` as in `Context`."""
    method = event.method
    try:
        params = _PARAMS(event.raw) if event.row is None else event.params
    except Unfit as error:
        logger.debug("dropped: %s cannot be read: %s", method, error)
        return
    context = Context(handler, speaker, method, lifespan=lifespan, sender=sender)
    if not handler.middleware or method == _OPENED:
        await handler.heard(method, params, context)
        return
    call = Call(method, params, context, notice=True)
    await through(handler.middleware, call, lambda context, params: handler.heard(method, params, context))


async def asked(
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

    async def recall(context: Context, params: Any) -> Result:
        if context.cancelled:
            raise unwanted(context)
        return await context.recall_answer(str(method), params, key)

    stateless = context.incoming is not None and context.incoming.peer.revision.stateless
    inner = recall if stateless and isinstance(method, str) else ask
    if not context.server.middleware:
        return await inner(context, params)
    name = method if isinstance(method, str) else method.name
    return await through(context.server.middleware, Call(name, params, context, incoming=False), inner)


async def said(
    speaker: Speaker, context: Context, method: str, params: Any, build: Callable[[Any], bytes | None]
) -> None:
    """Say something to the peer, once all middleware has seen it.

    What middleware raises is logged, and nothing is said; who wanted to say it goes on.

    Raises:
        LocalProtocolError: it may not be said.
        ChannelClosed: the peer has gone.
    """
    unsaid: list[Exception] = []

    async def say(context: Context, params: Any) -> None:
        try:
            data = build(params)
            if data is not None:
                await speaker.send(data, context.related)
        except Exception as error:  # not the fault of middleware, and told to who wanted to say it
            unsaid.append(error)
            raise

    call = Call(method, params, context, incoming=False, notice=True)
    try:
        await through(context.server.middleware, call, say)
    except Exception as error:  # middleware may raise anything
        if error in unsaid:
            raise
        logger.exception("middleware failed; %s was not sent", method)
