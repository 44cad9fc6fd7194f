"""Whether a value is there, or has to be waited for.

Functions, routes and middleware may be async or not, and wrappers hide which. Knows no function, only values.
"""

from collections.abc import Awaitable
from inspect import isawaitable
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, Final

from toolpost.types.base import Raw
from toolpost.types.tools import CallToolResult

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # what type checkers bring; Python has it from 3.13 on

__all__ = ["is_pending"]

_THERE: Final[frozenset[type[Any]]] = frozenset(
    {NoneType, bool, int, float, str, bytes, dict, list, tuple, Raw, CallToolResult}
)


def is_pending(value: object) -> "TypeIs[Awaitable[Any]]":
    """Whether a value has to be awaited: as `isawaitable` says, in 0.1 us instead of 0.6 for most."""
    kind = type(value)
    return kind is CoroutineType or (kind not in _THERE and isawaitable(value))
