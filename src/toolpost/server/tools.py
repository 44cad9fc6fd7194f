"""A function as a tool: what the list shows of it, and how it is called.

Whatever the function raises becomes an answer that a model can read; only an `RPCError` is a protocol error.
How arguments and results are bound is told in `bind` and `returns`; who calls is not known here.
"""

import asyncio
import inspect
import logging
from copy import copy
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from toolpost.errors import ChannelClosed, LocalProtocolError, NotDeclared, RPCError, ToolError
from toolpost.protocol.icons import check_icons
from toolpost.server.bare import Form
from toolpost.server.bind import Bound
from toolpost.server.catalogue import Catalogue, Handle
from toolpost.server.context import Context
from toolpost.server.dispatch import being_cancelled
from toolpost.server.options import check_texts, check_times
from toolpost.server.pending import is_pending, is_unanswered
from toolpost.server.returns import Returns
from toolpost.server.work import FILELESS, Work
from toolpost.types.base import Icon, Meta
from toolpost.types.content import TextContent
from toolpost.types.tools import CallToolParams, CallToolResult, Tool, ToolAnnotations

if TYPE_CHECKING:
    from toolpost.server.verbatim import Verbatim

__all__ = ["ServedTool", "tool_error"]

logger: Final = logging.getLogger("toolpost.server")

MAX_NAME: Final = 128
"""Letters in a name, by the specification (TOOL-7)."""

_NAME: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")

P = ParamSpec("P")
R = TypeVar("R")


class ServedTool(Handle[P, R]):
    """A tool of a server.

    Args:
        tool: what the list shows.
        bound: the function with its signature.
        returns: what it returns.
        home: the catalogue it stands in.
        work: the threads for functions that are not async.
        timeout: seconds that a call may take.
        debug: tell the model what went wrong inside; otherwise that is only logged.

    Raises:
        TypeError: an argument is of another type than it should be; the text names it.
        ValueError: clients may refuse such a name (TOOL-7, TOOL-8), or such an icon; or the time is none.
    """

    def __init__(
        self,
        tool: Tool,
        bound: "Bound | Verbatim",
        returns: Returns,
        home: Catalogue[Any],
        work: Work,
        *,
        timeout: float | None = None,
        debug: bool = False,
    ) -> None:
        check_texts(name=tool.name, title=tool.title, description=tool.description)
        check_times(timeout=timeout)
        if not 0 < len(tool.name) <= MAX_NAME or not _NAME.issuperset(tool.name):
            raise ValueError(
                f"{tool.name!r} cannot be the name of a tool: "
                f"it takes 1 to {MAX_NAME} of the letters A-Z and a-z, digits, '_', '-' and '.'"
            )
        check_icons(tool.icons)
        super().__init__(tool.name, bound.fn, home)
        self.tool = tool
        self.annotated = bound.annotated
        """Its parameters that HTTP headers mirror: header in lower case → path of property names."""
        self.timeout = timeout
        self.bound = bound
        self.returns = returns
        self._work = work
        self._debug = debug
        self.is_bare = (
            timeout is None
            and isinstance(bound, Bound)
            and bound.context is None
            and bound.asked is None
            and not bound.annotated
            and inspect.iscoroutinefunction(bound.fn)
        )
        """Whether a call wants nothing but its arguments, and they come in the body alone."""
        self.forms: dict[str, Form] = {}
        """What the results of such calls have in common, by revision."""

    def shown(self, structured: str | None) -> Tool:
        """The tool, its output schema in the shape that the peer takes."""
        if structured == "any" or self.tool.output_schema is None:
            return self.tool
        if structured is not None and not self.returns.wrapped:
            return self.tool
        tool = copy(self.tool)
        tool.output_schema = self.returns.wrapped_schema if structured else None
        return tool

    def update(
        self,
        *,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        icons: list[Icon] | None = None,
        meta: Meta | None = None,
    ) -> None:
        """Change what the list shows; what is not given stays.

        Raises:
            ValueError: clients would refuse an icon.
        """
        check_icons(icons)
        changes = {
            "title": title,
            "description": description,
            "annotations": annotations,
            "icons": icons,
            "meta": meta,
        }
        tool = copy(self.tool)
        for name, value in changes.items():
            if value is not None:
                setattr(tool, name, value)
        self.tool = tool
        self._home.touch()

    async def call(self, context: Context, params: CallToolParams) -> CallToolResult:
        """The result of a call. An `RPCError` is the only exception of the function's that comes through."""
        bound, limit = self.bound, None
        try:
            if context.begun is not None:
                value = await self._work.loaded(await context.begun)
                return self.returns.convert(value, wrap=context.wraps)
            arguments: Any = bound.read(params.arguments)
            if self.timeout is not None:
                limit = asyncio.timeout(self.timeout)
                async with limit:
                    value = await self._work.run(bound, arguments, context)
            elif bound.is_async and bound.asked is None:  # as `run` does it: a coroutine less for most calls
                value = bound.call(arguments, context)
                if value.__class__ is CoroutineType or is_pending(value):
                    value = await value
                if type(value) not in FILELESS:
                    value = await self._work.loaded(value)
            else:
                value = await self._work.run(bound, arguments, context)
            return self.returns.convert(value, wrap=context.wraps)
        except BaseException as error:
            result = self._failed(error, context, limit)
            if result is None:
                raise
            return result

    def _failed(
        self, error: BaseException, context: Context, limit: asyncio.Timeout | None
    ) -> CallToolResult | None:
        """The result of a call that has raised something; None if it is for others to hear."""
        if isinstance(error, ToolError):
            return tool_error(_text_of(error))
        if isinstance(error, RPCError) or is_unanswered(error):
            return None
        if isinstance(error, asyncio.CancelledError):
            if context.cancelled or being_cancelled():
                return None
            return self._broken(RuntimeError("the function raised CancelledError"))
        late = isinstance(error, TimeoutError) and limit is not None and limit.expired()
        return self._late() if late else self._broken(error)

    def _late(self) -> CallToolResult:
        logger.warning("tool %s took longer than %s s and was given up", self.name, self.timeout)
        return tool_error(f"The tool {self.name} took longer than {self.timeout} seconds and was given up.")

    def _broken(self, error: BaseException) -> CallToolResult:
        if isinstance(error, NotDeclared):  # the client's lack, and no fault of the function's
            logger.warning("tool %s failed: %s", self.name, error)
        elif isinstance(error, ChannelClosed):
            logger.info("tool %s was given up: %s", self.name, error)
        else:
            logger.error("tool %s failed", self.name, exc_info=error)
        if self._debug or isinstance(error, LocalProtocolError):
            return tool_error(f"{type(error).__name__}: {_text_of(error)}")
        return tool_error(f"The tool {self.name} failed; its log tells why.")


def tool_error(text: str) -> CallToolResult:
    """A result by which a tool says no. What of the text cannot be sent becomes question marks."""
    text = text.encode(errors="replace").decode()
    return CallToolResult(content=[TextContent(text)], is_error=True)


def _text_of(error: BaseException) -> str:
    """What an exception says, as far as it can: its `__str__` is the author's, too."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - whatever it is, it stays with the call
        return f"(its text could not be made: {type(another).__name__})"
