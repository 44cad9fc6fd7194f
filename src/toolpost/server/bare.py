"""Calls that want nothing but their arguments: begun before anything else is made for them.

Most tools compute something and return. Such a call has ended before anybody else has a turn: nobody can
cancel it or hear how far it has come, and it has no context to speak through. So its function runs first, and
what it gives is the result. If it waits, or raises, or gives a file, the ordinary path is walked, and goes on
with the call where it stands (`Context.begun`). Knows no channel.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from toolpost.begun import Begun, Settled
from toolpost.protocol.events import Incoming
from toolpost.server.work import FILELESS
from toolpost.types.tools import CallToolResult

if TYPE_CHECKING:
    from toolpost.server.tools import ServedTool

__all__ = ["Started", "call_bare"]

Started: TypeAlias = Begun[Any] | Settled[Any]
"""A call that has begun, to go on with or to be closed."""


def call_bare(
    tool: "ServedTool[..., Any]",
    incoming: Incoming,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> CallToolResult | Started:
    """The result of a call, if it is there at once; otherwise the call, to go on with.

    Args:
        tool: which `is_bare`.
        incoming: the request.
        run: runs a coroutine up to its first wait, and gives its value, or the rest of it.
    """
    value = None
    try:
        value = run(tool.begin(incoming.params.arguments))
        if isinstance(value, Begun):
            return value  # pyright: ignore[reportUnknownVariableType] - whatever a function gives
        if type(value) in FILELESS:
            return tool.result(value, wrap=incoming.peer.revision.structured != "any")
    except BaseException as error:  # noqa: BLE001 - whoever goes on with the call knows what it means
        return Settled(None, error)
    return Settled(value)
