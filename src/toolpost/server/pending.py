"""Whether a value is there, has to be waited for, or has to be asked for first.

Functions, routes and middleware may be async or not, and wrappers hide which; one that leaves by `Unanswered`
has asked. Knows no function, only what comes out of it.
"""

from asyncio import CancelledError
from collections.abc import Awaitable, Iterator
from inspect import isawaitable
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, Final, cast

from toolpost.types.base import Raw
from toolpost.types.tools import CallToolResult

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # what type checkers bring; Python has it from 3.13 on

__all__ = ["Unanswered", "is_pending", "is_unanswered"]

_PLAIN_TYPES: Final[frozenset[type[Any]]] = frozenset(
    {NoneType, bool, int, float, str, bytes, dict, list, tuple, Raw, CallToolResult}
)


def is_pending(value: object) -> "TypeIs[Awaitable[Any]]":
    """Whether a value has to be awaited: as `isawaitable` says, in 0.1 us instead of 0.6 for most."""
    kind = type(value)
    return kind is CoroutineType or (kind not in _PLAIN_TYPES and isawaitable(value))


class Unanswered(BaseException):
    """A question has no answer yet. The function ends here, and runs again with the answer.

    No `Exception`, so that a function that catches those does not catch this one.
    """


def is_unanswered(error: BaseException) -> bool:
    """Whether a function ends because of a question, alone or beside others of its kind and what they ended.

    An error of its own counts more, as it would in a session.
    """
    leaves = list(_iter_leaves(error))
    asked = any(isinstance(leaf, Unanswered) for leaf in leaves)
    return asked and all(isinstance(leaf, Unanswered | CancelledError) for leaf in leaves)


def _iter_leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _iter_leaves(each)
    else:
        yield error
