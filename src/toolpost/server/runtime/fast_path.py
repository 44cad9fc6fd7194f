"""Calls that want nothing but their arguments: begun before anything else is made for them.

Most tools compute something and return. Such a call has ended before anybody else has a turn: nobody can
cancel it or hear how far it has come, and it has no context to speak through. So its function runs first, and
what it gives is the result. If it waits, or raises, or gives a file, the ordinary path is walked, and goes on
with the call where it stands (`Context.started_call`). Knows no channel.
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
    """What all results of a tool have in common that are structured content, for clients of one revision.

    What the function gives is written once, and stands in the result as it is. The ordinary path reads it and
    writes it again, which takes 1 us more for a number, and as long as all the rest for a large table.

    Args:
        result: one of them, with a text and a value that give way to those of a call.
        party: the server.
        incoming: the request of such a client.
    """

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
        """The answer to a call whose value this is, as JSON."""
        asked = b"%d" % request_id if type(request_id) is int else ENCODER.encode(request_id)
        said, middle = ENCODER.encode(text.decode()), self._middle
        if middle is None:
            return b"".join((_BEFORE, asked, self._head, said, self._tail))
        return b"".join((_BEFORE, asked, self._head, said, middle, text, self._tail))


def _make_template(
    tool: "RegisteredTool[..., Any]", party: LocalPeer, incoming: InboundRequest
) -> ResultTemplate:
    """The form for the results of a tool, which is kept."""
    revision = incoming.peer.revision
    sample = tool.result_converter.build_structured_result(
        [TextContent(_TEXT)], _VALUE, wrap=revision.structured != "any"
    )
    form = tool.result_templates[revision.date] = ResultTemplate(sample, party, incoming)
    return form


class StartedCall(Struct, eq=False):
    """A call that has begun, and is gone on with: by the very tool that has begun it, whatever it is now.

    Args:
        tool: which has begun it.
        rest: what comes of its function.
    """

    tool: "RegisteredTool[..., Any]"
    rest: Awaitable[Any]

    def go_on(self, context: Context) -> RouteResult | Awaitable[RouteResult]:
        """What to await for the answer."""
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
    """The answer to a call if it is there at once; else the call, to go on with.

    Args:
        tool: which `is_fast_path`.
        party: the server.
        incoming: the request.
        run: runs a coroutine up to its first wait, and gives its value, or the rest of it.
    """
    try:
        bound: Any = tool.bound
        returns = tool.result_converter
        value: Any = bound.call_json(incoming.params.arguments)
        if type(value) is CoroutineType:
            value = run(value)  # pyright: ignore[reportUnknownArgumentType] - whatever a function gives
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
    except BaseException as error:  # noqa: BLE001 - whoever goes on with the call knows what it means
        return StartedCall(tool, CompletedAwaitable(None, error))
