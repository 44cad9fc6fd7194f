"""A function as a tool: its list item, and how it is called. `Server.tool` registers it.

An exception of the function becomes a result that a model can read; only an `RPCError` of its
own is a protocol error. `signature` converts arguments and results.
"""

import asyncio
import logging
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from msgspec.structs import replace

from toolpost.errors import CapabilityNotDeclared, ChannelClosed, LocalProtocolError, RPCError, ToolError
from toolpost.server.context import Context
from toolpost.server.options import check_timeouts
from toolpost.server.registry.registry import FunctionEntry, Registry
from toolpost.server.runtime.dispatch import is_being_cancelled
from toolpost.server.runtime.eager_tasks import is_pending, is_unanswered
from toolpost.server.runtime.worker_threads import FILE_FREE_TYPES, WorkerThreads
from toolpost.server.signature.results import ResultConverter
from toolpost.types.base import Icon, Meta
from toolpost.types.content import Content, TextContent
from toolpost.types.tools import CallToolParams, CallToolResult, Tool, ToolAnnotations

if TYPE_CHECKING:
    from toolpost.server.signature.function_schema import BoundFunction

logger: Final = logging.getLogger("toolpost.server")

MAX_TOOL_NAME_LENGTH: Final = 128
"""Characters of a name, by the specification (TOOL-7)."""

_NAME_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")

P = ParamSpec("P")
R = TypeVar("R")


class RegisteredTool(FunctionEntry[P, R, Tool]):
    """A tool of a server."""

    hint_type = ToolAnnotations

    def __init__(
        self,
        tool: Tool,
        bound: "BoundFunction",
        home: Registry[Any],
        threads: WorkerThreads,
        scopes: frozenset[str],
        *,
        returns: ResultConverter,
        timeout: float | None,
        debug: bool,
    ) -> None:
        super().__init__(tool, bound, home, threads, scopes)
        check_timeouts(timeout=timeout)
        if not 0 < len(tool.name) <= MAX_TOOL_NAME_LENGTH or not _NAME_CHARACTERS.issuperset(tool.name):
            raise ValueError(
                f"invalid tool name {tool.name!r}: "
                f"use 1 to {MAX_TOOL_NAME_LENGTH} letters (A-Z, a-z), digits, '_', '-' and '.'"
            )
        self.header_parameters = bound.header_parameters
        """The parameters that HTTP headers mirror: header in lower case → path of property names."""
        home.has_header_parameters = home.has_header_parameters or bool(bound.header_parameters)
        self.timeout = timeout
        self._is_direct = bound.is_async and bound.ask_plan is None
        self.result_converter = returns
        self._debug = debug

    @property
    def tool(self) -> Tool:
        """The list item."""
        return self._item

    def to_list_item(self, structured: str | None) -> Tool:
        """Return the tool, with an output schema that the peer understands."""
        if structured == "object" and self.result_converter.is_bare:
            return replace(self.tool, output_schema=self.result_converter.wrapped_schema)
        return self.tool  # `downgrade` removes what peers without structured output do not know

    @property
    def _is_destructive(self) -> bool:
        return self.tool.annotations is not None and self.tool.annotations.destructive_hint is True

    def update(
        self,
        *,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        icons: list[Icon] | None = None,
        meta: Meta | None = None,
    ) -> None:
        """Change the list item; None leaves a field as it is. Raises ValueError for an invalid icon."""
        self._change_item(
            title=title, description=description, annotations=annotations, icons=icons, meta=meta
        )

    async def serve(self, context: Context, params: CallToolParams) -> CallToolResult:
        """Return the result of a call. Of the exceptions of the function, it raises only `RPCError`."""
        bound, limit, incoming = self.bound, None, context.incoming
        assert incoming is not None, "only a request calls a tool"
        try:
            arguments: Any = bound.read(params.arguments)
            if params.request_state is not None and self._is_destructive:
                await context.replay.claim_state()
            if self._is_direct and self.timeout is None:  # as in `run`: one coroutine less for most calls
                value = bound.call(arguments, context)
                if value.__class__ is CoroutineType or is_pending(value):
                    value = await value
                if type(value) not in FILE_FREE_TYPES:
                    value = await self._threads.load_files(value)
            else:
                limit = asyncio.timeout(self.timeout)
                async with limit:
                    value = await self._threads.run(bound, arguments, context)
            revision = incoming.peer.revision
            result = self.result_converter.convert(value, wrap=revision.structured != "any")
            return result if result.content or revision.stateless else replace(result, content=_NO_CONTENT)
        except BaseException as error:
            result = self._convert_error(error, context, limit)
            if result is None:
                raise
            return result

    def _convert_error(
        self, error: BaseException, context: Context, limit: asyncio.Timeout | None
    ) -> CallToolResult | None:
        """Return the result for an exception of the function; None if it has to be raised."""
        if isinstance(error, ToolError) or (isinstance(error, RPCError) and error.is_foreign):
            return make_error_result(_format_exception(error))
        if isinstance(error, RPCError) or is_unanswered(error):
            return None
        if isinstance(error, asyncio.CancelledError):
            if context.cancelled or is_being_cancelled():
                return None
            return self._report_failure(RuntimeError("the function raised CancelledError"))
        if isinstance(error, TimeoutError) and limit is not None and limit.expired():
            logger.warning("tool %s timed out after %s s", self.name, self.timeout)
            return make_error_result(f"Tool {self.name!r} timed out after {self.timeout} seconds.")
        return self._report_failure(error)

    def _report_failure(self, error: BaseException) -> CallToolResult:
        if isinstance(error, CapabilityNotDeclared):  # not a fault of the function
            logger.warning("tool %s failed: %.1000s", self.name, error)
        elif isinstance(error, ChannelClosed):
            logger.info("tool %s was aborted: %s", self.name, error)
        else:
            logger.error("tool %s failed", self.name, exc_info=error)
        if self._debug or isinstance(error, LocalProtocolError):
            return make_error_result(f"{type(error).__name__}: {_format_exception(error)}")
        return make_error_result(f"Tool {self.name!r} failed unexpectedly; see the server log.")


_NO_CONTENT: Final[list[Content]] = [TextContent("")]  # in a session some clients demand a block


def make_error_result(text: str) -> CallToolResult:
    """Return an error result. Characters that cannot be sent become question marks."""
    text = text.encode(errors="replace").decode()
    return CallToolResult(content=[TextContent(text)], is_error=True)


def _format_exception(error: BaseException) -> str:
    """Return the text of an exception, whose `__str__` may fail."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - it may raise anything
        return f"(no message: its __str__ raised {type(another).__name__})"
