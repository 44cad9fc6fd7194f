"""Fast path for tools without a context: call the function first, and build a `Context` only if it awaits.

A call that has returned cannot be cancelled and sends nothing before its result. If it waits, raises, or
returns a file, the ordinary path goes on with it (`Context.started_call`). Knows no channel.
"""

from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import ERAS
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.local_peer import LocalPeer
from toolpost.server.context import Context
from toolpost.server.runtime.eager import CompletedAwaitable, StartedCoroutine, is_pending
from toolpost.server.runtime.request import RouteResult, start_route
from toolpost.server.runtime.worker_threads import FILE_FREE_TYPES
from toolpost.server.signature.compiled_types import ENCODER
from toolpost.types.base import JSON, RequestId, Struct
from toolpost.types.content import TextContent
from toolpost.types.tools import CallToolResult

if TYPE_CHECKING:
    from toolpost.server.registry.tools import RegisteredTool

_TEXT: Final = "\0text"
_VALUE: Final[JSON] = {"\0value": 0}
_BEFORE: Final = b'{"jsonrpc":"2.0","id":'


class ResultTemplate:
    """The bytes that all structured results of a tool have in common, for clients of one revision."""

    __slots__ = ("_head", "_middle", "_tail", "party")

    def __init__(self, result: CallToolResult, party: LocalPeer, incoming: InboundRequest) -> None:
        self.party = party
        whole = jsonrpc.encode_response(
            0, ERAS[incoming.peer.revision.era].stamp_result(party, incoming, result)
        )
        head, _, rest = whole.partition(jsonrpc.encode(_TEXT))
        middle, structured, tail = rest.partition(jsonrpc.encode(_VALUE))
        self._head = head.removeprefix(_BEFORE + b"0")
        self._middle = middle if structured else None
        self._tail = tail if structured else rest

    def fill(self, request_id: RequestId, text: bytes) -> bytes:
        """Return the response to a call with this value, as JSON."""
        asked = b"%d" % request_id if type(request_id) is int else ENCODER.encode(request_id)
        said, middle = ENCODER.encode(text.decode()), self._middle
        if middle is None:
            return b"".join((_BEFORE, asked, self._head, said, self._tail))
        return b"".join((_BEFORE, asked, self._head, said, middle, text, self._tail))


def _make_template(
    tool: "RegisteredTool[..., Any]", party: LocalPeer, incoming: InboundRequest
) -> ResultTemplate:
    """Make and keep the template for the results of a tool."""
    revision = incoming.peer.revision
    sample = tool.result_converter.build_structured_result(
        [TextContent(_TEXT)], _VALUE, wrap=revision.structured != "any"
    )
    form = tool.result_templates[revision.date] = ResultTemplate(sample, party, incoming)
    return form


class StartedCall(Struct, eq=False):
    """A call that was started, to be continued by the same tool, even if that was replaced since."""

    tool: "RegisteredTool[..., Any]"
    rest: Awaitable[Any]

    def go_on(self, context: Context) -> RouteResult | Awaitable[RouteResult]:
        """Return what to await for the result."""
        incoming = context.incoming
        assert incoming is not None, "only a request calls a tool"
        context.started_call = self.rest
        return start_route(self.tool.call, context, incoming)


def call_bare(
    tool: "RegisteredTool[..., Any]",
    party: LocalPeer,
    incoming: InboundRequest,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> bytes | StartedCall:
    """Return the response to a call, or the started call; `run` starts a coroutine."""
    try:
        bound: Any = tool.bound
        returns = tool.result_converter
        value: Any = bound.call_json(incoming.params.arguments)
        if type(value) is CoroutineType:
            value = run(value)  # pyright: ignore[reportUnknownArgumentType] - whatever a function returns
            if isinstance(value, StartedCoroutine):
                return StartedCall(tool, value)  # pyright: ignore[reportUnknownArgumentType] - as above
        elif is_pending(value):  # some functions only look like coroutine functions
            return StartedCall(tool, value)
        text = returns.encode_structured(value)
        if text is not None:
            form = tool.result_templates.get(incoming.peer.revision.date)
            if form is None or form.party is not party:
                form = _make_template(tool, party, incoming)
            return form.fill(incoming.id, text)
        if type(value) in FILE_FREE_TYPES:
            revision = incoming.peer.revision
            result = returns.convert(value, wrap=revision.structured != "any")
            stamped = ERAS[revision.era].stamp_result(party, incoming, result)
            return jsonrpc.encode_response(incoming.id, stamped)
        return StartedCall(tool, CompletedAwaitable(value))
    except BaseException as error:  # noqa: BLE001 - the ordinary path handles it
        return StartedCall(tool, CompletedAwaitable(None, error))
