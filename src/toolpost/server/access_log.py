"""`AccessLog`: an observer that writes one line for each request.

The line is for people; the same facts are fields of the log record, for loggers that write JSON. Neither has
arguments, results, tokens or session ids.
"""

import logging
import re
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, Final

from toolpost.errors import InternalError, RPCError
from toolpost.protocol.events import InboundRequest
from toolpost.server.context import Context
from toolpost.server.context_request import ClientConnection
from toolpost.server.runtime.dispatch import Outcome
from toolpost.types.base import UNSET, InputRequiredResult

MAX_TEXT: Final = 200
"""Characters of a text of the client: a name, a URI, an id."""

MAX_CACHED: Final = 1024
"""Texts whose form in the line is kept: most requests have the same."""

_FAILURES: Final = frozenset({"failed", "error"})
_PLAIN: Final = re.compile(r"[\w.,:;/@+~%#?&!*()$-]+")
"""A text that needs no quotes in the line."""

_TRACE_ID: Final = re.compile(rb'"traceparent"\s*:\s*"00-([0-9a-f]{32})-')


class AccessLog:
    """Writes one line for each request of a client: `Server(observers=[AccessLog()])`.

    Fields of the record: `method`, `target` (the tool, prompt or URI), `outcome`, `is_error`, `error_code`,
    `duration_ms`, `client`, `principal`, `request_id`, `session`, `trace_id`, `revision`; None if not known.
    The outcome is "ok", "failed" (a tool returned an error), "error" (the response is one),
    "cancelled" or "input_required". `session` is a digest of the session id.

    Args:
        logger: where to write; by default the logger `toolpost.access`.
        level: the level of the lines.

    Examples:
        >>> server = Server("shop", observers=[AccessLog()])
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._logger = logger or logging.getLogger("toolpost.access")
        self._level = level

    def __call__(self, ctx: Context) -> Callable[[Outcome], None] | None:
        """Observe a request, unless the level is off."""
        if not self._logger.isEnabledFor(self._level):
            return None
        # A call that becomes a task leaves its context to that.
        return partial(self._write, ctx, ctx.incoming, ctx.client_connection, perf_counter())

    def _write(
        self,
        ctx: Context,
        incoming: InboundRequest | None,
        client: ClientConnection,
        started: float,
        outcome: Outcome,
    ) -> None:
        duration = (perf_counter() - started) * 1000
        assert incoming is not None, "only requests are observed"
        info, principal, target = incoming.peer.info, ctx.principal, _clean(ctx.request.target or "")
        method, word = _clean(ctx.method), _describe(outcome)
        fields: dict[str, Any] = {
            "error_code": _find_code(incoming, outcome),
            "client": info and _clean(f"{info.name}/{info.version}"),
            "principal": principal and _clean(str(principal)),
            "request_id": _clean(incoming.id) if isinstance(incoming.id, str) else incoming.id,
            "session": client.session_key,
            "trace_id": _find_trace_id(incoming),
        }
        rest = ""
        for name, value in fields.items():
            if value is not None:
                rest += f" {name}={_quote(value) if isinstance(value, str) else value}"
        about = f"{_quote(method)} {_quote(target)}" if target else _quote(method)
        line = f"{about} {word} in {duration:.1f} ms{rest}"
        logger = self._logger
        # Not by `log`, which looks for its caller; that takes as long as the rest.
        record = logger.makeRecord(logger.name, self._level, __file__, 0, line, (), None)
        vars(record).update(
            fields,
            method=method,
            target=target or None,
            outcome=word,
            is_error=word in _FAILURES,
            duration_ms=round(duration, 3),
            revision=incoming.peer.revision.date,
        )
        logger.handle(record)


def _describe(outcome: Outcome) -> str:
    """Return how a request has ended, in a word."""
    if outcome.error is not None:
        return "error"
    if outcome.result is None:
        return "cancelled"
    if isinstance(outcome.result, InputRequiredResult):
        return "input_required"
    return "failed" if outcome.is_error else "ok"


def _find_code(incoming: InboundRequest, outcome: Outcome) -> int | None:
    """Return the code of the error that is sent."""
    if outcome.error is None:
        return None
    known = outcome.error if isinstance(outcome.error, RPCError) else InternalError
    return incoming.peer.revision.translate_code(known.code)


@lru_cache(MAX_CACHED)
def _clean(text: str) -> str:
    """Return a text of a client, short and on one line."""
    short = text[:MAX_TEXT]
    return short if short.isprintable() else repr(short)[1:-1]


@lru_cache(MAX_CACHED)
def _quote(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else repr(text)


def _find_trace_id(incoming: InboundRequest) -> str | None:
    """Return the trace id of the current span, or of the request's `_meta`."""
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is not None:
        span = opentelemetry.get_current_span().get_span_context()
        if span.is_valid:
            return format(span.trace_id, "032x")
    found = None if incoming.raw is UNSET else _TRACE_ID.search(incoming.raw)
    return None if found is None else found[1].decode()
