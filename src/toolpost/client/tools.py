"""Tools of a server: list them, call them, pause and resume calls.

Owns these public methods and converts results for the caller: text, data, data of a type. Rounds of input are
left to `multi_round`, output schemas to `output_schemas`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec

from toolpost import types
from toolpost.client.callbacks import Answer
from toolpost.client.connection.session import ClientSession
from toolpost.client.listing import TOOLS
from toolpost.client.multi_round import InputCallback, MultiRoundCall, PausedCall
from toolpost.client.options import ProgressCallback, check_mapping, encode_arguments
from toolpost.client.output_schemas import ResultCheck
from toolpost.errors import (
    HeaderMismatch,
    LocalProtocolError,
    MCPError,
    MethodNotFound,
    MissingCapability,
    RemoteProtocolError,
    RPCError,
    ToolError,
)
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.local_peer import LocalPeer, has_capability
from toolpost.protocol.methods import TOOLS_CALL
from toolpost.types.base import JSON, UNSET, Meta, OpenUnion, Raw, Result, Struct, Unset, dec_hook

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _DefaultTypeVar  # part of every type checker

    from toolpost.client.tasks import TaskHandle

    # The type that `result_type` names, and the default without it.
    R = _DefaultTypeVar("R", default=JSON)
    RequestResult = _DefaultTypeVar("RequestResult", default=Result)
else:
    R = TypeVar("R")
    RequestResult = TypeVar("RequestResult")

_WRAPPER_FIELD: Final = "result"  # the only member of an object that wraps another value


class ToolResult(Struct, Generic[T], frozen=True):
    """The result of a tool.

    Attributes:
        data: the value that the tool returned. Servers wrap a list or a scalar as `{"result": …}`; `data` is
            unwrapped. Without structured content it is `text`, or None if there is no text. With
            `result_type=` it has that type; if there is only text, it is parsed as JSON.
        content: the blocks: text, images, audio, resources.
        structured_content: the structured result as received; `UNSET` if there is none.
        is_error: whether the tool reported a failure; only with `raise_on_error=False`.
        meta: its `_meta`; None if there is none.
        raw: the bytes as received, with all unknown members.
        text: the text blocks, joined by line breaks; empty if there is none.

    Examples:
        >>> server = Server("shop")
        >>> @server.tool
        ... def stock() -> list[str]:
        ...     return ["pen", "ink"]
        >>> with SyncClient(server) as mcp:
        ...     result = mcp.call_tool("stock")
        >>> result.data, result.is_error
        (['pen', 'ink'], False)
    """

    data: T
    content: list[types.Content]
    structured_content: JSON | Unset
    is_error: bool
    meta: Meta | None
    raw: bytes | None

    @property
    def text(self) -> str:
        """The text blocks, joined by line breaks."""
        return join_text(self.content)


def join_text(content: list[types.Content]) -> str:
    """Join the text blocks by line breaks."""
    if len(content) == 1 and type(content[0]) is types.TextContent:  # the usual case
        return content[0].text
    return "\n".join([block.text for block in content if isinstance(block, types.TextContent)])


def make_tool_result(
    name: str, result: types.CallToolResult, kind: type[T] | None, *, wrapped: bool = False
) -> ToolResult[Any]:
    """Build the result of a tool, with its data converted to `kind` if one is given.

    Data that does not fit is unwrapped: the JSON in a string, the value in an object with only a `result`.
    `wrapped` is whether the output schema describes such an object.
    """
    structured, failed = result.structured_content, bool(result.is_error)
    data: JSON = structured
    if structured is UNSET:
        data = other = inner = None if failed else join_text(result.content) or None
    else:
        other = inner = _unwrap(structured)
        if inner is not data and (
            wrapped or _is_text_of(result.content, inner) or _has_wrapped_mark(result.meta)
        ):
            data, other = inner, data
    if kind is not None and not failed:
        label = f"the result of tool {name!r}"
        parsed = inner if inner is structured else _parse_json(inner)
        for value in (data, other):
            with suppress(RemoteProtocolError):
                data = convert_value(value, kind, label)
                break
        else:
            data = convert_value(parsed, kind, label)
    return ToolResult(data, result.content, structured, failed, result.meta, result.raw)


def _has_wrapped_mark(meta: Meta | None) -> bool:
    """Return whether `_meta` marks the value as wrapped, as FastMCP does."""
    theirs = (meta or {}).get("fastmcp")
    return isinstance(theirs, dict) and cast("dict[str, JSON]", theirs).get("wrap_result") is True


def _is_text_of(content: list[types.Content], value: JSON) -> bool:
    """Return whether the text is a value, as a whole or item by item: servers do not wrap the text."""
    is_plain = value.__class__ is str or value.__class__ is int
    if is_plain and len(content) == 1 and getattr(content[0], "text", None) == str(value):
        return True  # the usual case
    texts: list[JSON] = [block.text for block in content if isinstance(block, types.TextContent)]
    items = cast("list[JSON]", value) if isinstance(value, list) else [value]
    expected: list[list[JSON]] = [[value], items if value is not None else []]
    return any(
        len(texts) == len(values)
        and all(text == item or _parse_json(text) == item for text, item in zip(texts, values, strict=True))
        for values in expected
    )


def _unwrap(value: JSON) -> JSON:
    """Return the value in an object that holds nothing but a `result`; else the value itself."""
    is_wrapper = value.__class__ is dict and len(value) == 1 and _WRAPPER_FIELD in value
    return value[_WRAPPER_FIELD] if is_wrapper else value


_ANY_JSON: JSONReader[JSON] = JSONReader(cast("type[JSON]", Any))


def _parse_json(text: JSON) -> JSON:
    """Parse the JSON in a string; else return the value itself."""
    try:
        return _ANY_JSON(text.encode()) if isinstance(text, str) else text
    except InvalidJSONValue:
        return text


def convert_value(value: JSON, kind: type[T], label: str) -> T:
    """Convert JSON to a type. Raises `RemoteProtocolError` if it does not fit."""
    try:
        return msgspec.convert(value, kind, dec_hook=_decode_foreign_type)
    except ValueError as error:
        name = getattr(kind, "__name__", str(kind))
        raise RemoteProtocolError(f"{label} is not of type {name}: {error}") from error


def decode_value(raw: bytes, kind: type[T], label: str) -> T:
    """Decode JSON and convert it to a type. Raises `RemoteProtocolError` if it does not fit."""
    try:
        value = _ANY_JSON(raw)
    except InvalidJSONValue as error:
        raise RemoteProtocolError(f"{label} cannot be read: {error}") from error
    return convert_value(value, kind, label)


def _decode_foreign_type(kind: type[Any], value: JSON) -> Any:
    """Convert a value to a type that msgspec does not know."""
    validate = getattr(kind, "model_validate", None)  # pydantic's models have it; pydantic is not imported
    if callable(validate):
        return validate(value)
    if issubclass(kind, OpenUnion):
        return dec_hook(kind, value)
    raise MCPError(f"result_type: cannot convert JSON to {kind.__name__}")


# --------------------------------------------------------------------- tools


class _ToolCall(MultiRoundCall, Generic[T]):
    """A call of a tool: pauses for questions, and converts the result."""

    result_type: type[T] | None = None
    raise_on_error: bool = True
    validate: bool = True
    is_prepared: bool = False
    is_wrapped: bool = False
    check: ResultCheck | None = None

    async def run(self) -> "ToolResult[T] | PausedCall | TaskHandle[Any]":
        """Send the call; return its result, its task, or the call itself if the server asks something."""
        params: Any = self.params
        reader, name = self.session.reader, params.name
        if self.retry is None and name in reader.retry_safe_tools:
            self.retry = True
        if reader.output_schemas.schemas and not self.is_prepared:
            if not self.session.reconnector.is_connected:  # a new connection forgets the schemas
                self.limits = await self.session.wait_connected(self.limits)
            self._prepare(name)
        header_parameters = reader.header_parameters.get(name)
        try:
            result = await self.send()
            if type(result) is not types.CallToolResult or self.session.result_resolvers:
                result = await self.settle(result)
        except HeaderMismatch:
            # A tool whose headers have changed is called once more (HDR-28).
            if not await reader.refresh_header_parameters(name, header_parameters, self.limits):
                raise
            result = await self.settle(await self.send())
        if isinstance(result, types.InputRequiredResult):
            return self._pause(params, result)
        if not isinstance(result, types.CallToolResult):
            return self._make_handle(result)
        return self.convert(result)

    def convert(self, result: types.CallToolResult) -> ToolResult[Any]:
        """Return the result for the caller. Raises ToolError, and RemoteProtocolError if it is invalid."""
        params: Any = self.params
        name = params.name
        if result.is_error and self.raise_on_error:
            raise self._make_tool_error(name, result)
        if self.check is not None:
            self.check(result)
        return make_tool_result(name, result, self.result_type, wrapped=self.is_wrapped)

    def _make_handle(self, created: Result) -> "TaskHandle[Any]":
        """Return the handle of the task that the call has become."""
        from toolpost.client.tasks import TaskHandle, make_task_party  # noqa: PLC0415 - start-up time
        from toolpost.tasks.wire import CreatedTask  # noqa: PLC0415 - as above

        party = make_task_party(self.party or self.session.local_peer)
        if isinstance(created, CreatedTask):
            handle = TaskHandle[Any](self.session, party, created.task_id, self.convert)
            handle.take_extension_state(created)
        else:
            assert isinstance(created, types.CreateTaskResult), "the row allows no other result"
            handle = TaskHandle[Any](self.session, party, created.task.task_id, self.convert)
            handle.take_session_state(created.task)
        return handle

    def make_ended_handle(self, outcome: ToolResult[Any]) -> "TaskHandle[Any]":
        """Return the handle of a call that has ended without becoming a task."""
        from toolpost.client.tasks import TaskHandle  # noqa: PLC0415 - start-up time

        handle = TaskHandle[Any](self.session, self.session.local_peer, "", lambda _: outcome)
        handle.take_end()
        return handle

    def _prepare(self, name: str) -> None:
        """Look up the output schema before the call: the list may be forgotten in the meantime."""
        self.is_prepared = True
        outputs = self.session.reader.output_schemas
        self.is_wrapped = outputs.is_wrapped(name)
        if self.validate and self.session.last_connection.revision.structured is not None:
            self.check = outputs.get_check(name)

    def _pause(self, params: types.CallToolParams, result: types.InputRequiredResult) -> PausedCall:
        """Build the paused call. Raises `RemoteProtocolError` if the server must not ask this."""
        paused = PausedCall(
            name=params.name,
            encoded_arguments=params.arguments or Raw(b"{}"),
            input_requests=result.input_requests or {},
            state=result.request_state,
            rounds=self.rounds,
            spent=self.elapsed,
            meta=check_mapping("meta", self.meta) or None,
            capabilities=self.capabilities,
            raise_on_error=self.raise_on_error,
            validate=self.validate,
        )
        self.session.request_callbacks.check_questions(paused.questions, self.capabilities)
        return paused

    def _make_tool_error(self, name: str, result: types.CallToolResult) -> ToolError:
        """Build the error of a failed tool. A note is for people: models read the text."""
        error = ToolError(join_text(result.content) or f"tool {name!r} failed without a message")
        note = self.session.last_connection.dispatcher.stderr_hint
        if note is not None:
            error.add_note(note)
        return error


def is_for_model(tool: types.Tool) -> bool:
    """Return whether a model may call a tool; the pages of apps have tools of their own."""
    ui: Any = (tool.meta or {}).get("ui")
    audience: Any = cast("Meta", ui).get("visibility") if isinstance(ui, dict) else None
    return not isinstance(audience, list) or "model" in audience


class ToolMethods:
    """The methods of a client about tools."""

    _session: ClientSession
    _local_peer: LocalPeer

    async def list_tools(self, *, for_model: bool = False, timeout: float | None = None) -> list[types.Tool]:
        """Return all tools. From then on results are validated against their output schemas.

        `for_model` leaves out the tools that only the page of an app may call.
        """
        tools = await self._session.reader.read_list(TOOLS, self._session.make_limits(timeout))
        return [tool for tool in tools if is_for_model(tool)] if for_model else tools

    def list_tools_pages(self, *, timeout: float | None = None) -> AsyncIterator[types.ListToolsResult]:
        """Iterate over the pages of the list of tools."""
        return self._session.reader.iter_pages(TOOLS, self._session.make_limits(timeout))

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[R] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        raise_on_error: bool = True,
        validate: bool = True,
        on_input: InputCallback | None = None,
        capabilities: types.ClientCapabilities | None = None,
        retry: bool | None = None,
    ) -> ToolResult[R]:
        """Call a tool and return its result.

        Args:
            name: the name of the tool.
            arguments: its arguments.
            result_type: the type of its data: one that msgspec supports, or a pydantic model. From a server
                without structured content the data is parsed from the JSON in its text.
            timeout: seconds to wait, instead of the client's; `math.inf` waits without limit. The time that a
                callback takes to answer the server is not counted.
            progress: receives the progress of the call, all of it before the method returns.
            meta: members of `_meta`.
            raise_on_error: whether to raise `ToolError` if the tool reports a failure.
            validate: whether to validate the data against the tool's output schema. This needs the extra
                `toolpost[schema]`, and tools that were listed on this connection.
            on_input: a callback for the questions of this call: receives the `PausedCall` of each round and
                returns answers by key. The client's callbacks answer the rest, and all questions in a
                session.
            capabilities: the capabilities that this call declares, with `on_input`; by default those of the
                client and elicitation by form.
            retry: whether to retry the call even if the server may have received it; by default only for
                listed tools with a read-only or idempotent hint.

        Raises:
            TypeError: the arguments are not a mapping.
            LocalProtocolError: an argument cannot be encoded as JSON, or an answer does not match the
                server's form; nothing was sent.
            ToolError: the tool reported a failure; the message is the tool's.
            RPCError: the server rejected the call; `InvalidParams` if it has no such tool.
            RemoteProtocolError: the data violates the output schema, or is not of `result_type`.
            RequestTimeout: no response arrived in time. The request was cancelled.

        If the server runs the call as a task, this waits for the end of the task: for `timeout` seconds if
        that is given, and else without limit. A caller that gives up cancels the task.
        """
        if on_input is None and capabilities is not None:
            raise ValueError("capabilities= requires on_input=; callbacks use the client's capabilities")
        params = types.CallToolParams(name=name, arguments=encode_arguments(name, arguments))
        limits = self._session.make_limits(timeout, progress, extendable=True)
        party = None if on_input is None else self._build_local_peer(capabilities)
        call: _ToolCall[R] = _ToolCall(self._session, TOOLS_CALL, params, limits, meta, party, retry)
        call.result_type, call.raise_on_error, call.validate = result_type, raise_on_error, validate
        try:
            outcome = await self._finish_call(call, on_input)
        except (MissingCapability, MethodNotFound) as error:
            if not await self._demands_task(name, error):
                raise
            handle: TaskHandle[R] = await self.start_task(
                name,
                arguments,
                result_type=result_type,
                meta=meta,
                raise_on_error=raise_on_error,
                validate=validate,
            )
            return await handle.drive(timeout)
        return outcome if isinstance(outcome, ToolResult) else await outcome.drive(timeout)

    async def _finish_call(
        self, call: _ToolCall[R], on_input: InputCallback | None = None
    ) -> "ToolResult[R] | TaskHandle[R]":
        """Run a call until it has a result or is a task, and answer its questions."""
        while isinstance(outcome := await call.run(), PausedCall):
            given: dict[str, Answer] = {}
            if on_input is not None:
                answers = await self._session.request_callbacks.run_callback(on_input, outcome)
                given = check_mapping("on_input", answers)
            await call.answer(outcome.state, outcome.questions, given)
        return outcome

    async def _demands_task(self, name: str, error: RPCError) -> bool:
        """Return whether the server refused a call because the tool has to be called as a task."""
        from toolpost.client.tasks import find_task_support, is_task_demand  # noqa: PLC0415 - start-up time

        if isinstance(error, MissingCapability):
            return is_task_demand(error)
        return await find_task_support(self._session, name) == "required"

    async def start_task(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[R] | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        meta: Mapping[str, JSON] | None = None,
        raise_on_error: bool = True,
        validate: bool = True,
    ) -> "TaskHandle[R]":
        """Call a tool as a task; return its handle at once, while the server works on it.

        A server of 2026-07-28 decides whether the call becomes a task; if not, this waits for its result, and
        the handle has ended. Questions that the server asks before are answered by the client's callbacks.

        Args:
            name: the name of the tool.
            arguments: its arguments.
            result_type: the type of the data of the result.
            ttl: seconds for which the server should keep the task (2025-11-25 only).
            timeout: seconds to wait for the handle.
            meta: members of `_meta`.
            raise_on_error: whether `result` raises `ToolError` if the tool reports a failure.
            validate: whether to validate the data against the tool's output schema.

        Raises:
            CapabilityNotDeclared: the server has no tasks, or the tool cannot be called as one.
            MCPError: as `call_tool` does.
        """
        from toolpost.client import tasks  # noqa: PLC0415 - start-up time

        limits = await self._session.wait_connected(self._session.make_limits(timeout, extendable=True))
        tasks.check_task_support(self._session)
        params = types.CallToolParams(name=name, arguments=encode_arguments(name, arguments))
        party = None
        if self._session.last_connection.revision.stateless:
            party = tasks.make_task_party(self._local_peer)
        else:
            await tasks.check_tool_support(self._session, name)
            params.task = types.TaskMetadata(None if ttl is None else round(ttl * 1000))
        call: _ToolCall[R] = _ToolCall(self._session, TOOLS_CALL, params, limits, meta, party)
        if party is not None:
            call.method = tasks.CALL_ROW
        call.result_type, call.raise_on_error, call.validate = result_type, raise_on_error, validate
        outcome = await self._finish_call(call)
        return call.make_ended_handle(outcome) if isinstance(outcome, ToolResult) else outcome

    def task(self, task_id: str, *, result_type: type[R] | None = None) -> "TaskHandle[R]":
        """Return the handle of a task by its id, such as one that an earlier process has started.

        Nothing is sent: a task that is gone is noticed at the first look. The data of its result is not
        validated against the output schema of the tool.
        """
        from toolpost.client.tasks import TaskHandle, make_task_party  # noqa: PLC0415 - start-up time

        call: _ToolCall[R] = _ToolCall(
            self._session, TOOLS_CALL, types.CallToolParams(name=task_id), self._session.make_limits(None)
        )
        call.result_type = result_type
        return TaskHandle(self._session, make_task_party(self._local_peer), task_id, call.convert)

    async def begin_call(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[R] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        raise_on_error: bool = True,
        validate: bool = True,
        capabilities: types.ClientCapabilities | None = None,
        retry: bool | None = None,
    ) -> ToolResult[R] | PausedCall:
        """Call a tool; return its result, or a `PausedCall` if the server asks for input first.

        A paused call needs no resources on either side, and can wait as long as the server's state is valid.
        In a session the server asks while the call runs, so the client's callbacks answer, as for
        `call_tool`.

        Args:
            name: the name of the tool.
            arguments: its arguments.
            result_type: the type of its data. Pass this, `timeout` and `progress` to `resume` again.
            timeout: seconds to wait, instead of the client's.
            progress: receives the progress of the call.
            meta: members of `_meta`.
            raise_on_error: whether to raise `ToolError` if the tool reports a failure.
            validate: whether to validate the data against the tool's output schema.
            capabilities: the capabilities that the call declares; by default those of the client and
                elicitation by form, even without a callback for it.
            retry: as for `call_tool`.

        Raises:
            MCPError: as `call_tool` does.
        """
        params = types.CallToolParams(name=name, arguments=encode_arguments(name, arguments))
        limits = self._session.make_limits(timeout, progress, extendable=True)
        party = self._build_local_peer(capabilities)
        call: _ToolCall[R] = _ToolCall(self._session, TOOLS_CALL, params, limits, meta, party, retry)
        call.result_type, call.raise_on_error, call.validate = result_type, raise_on_error, validate
        outcome = await call.run()
        return outcome if isinstance(outcome, ToolResult | PausedCall) else await outcome.drive(timeout)

    async def resume(
        self,
        paused: PausedCall,
        answers: Mapping[str, Answer],
        *,
        result_type: type[R] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> ToolResult[R] | PausedCall:
        """Answer the questions of a paused call; return the result, or the call if it is paused again.

        Any client of the same server can resume a call, in any process.

        Args:
            paused: a call from `begin_call`, `resume` or `PausedCall.from_json`.
            answers: an answer for each of `paused.questions`, as its callback could return it. The client's
                callbacks answer those that you leave out.
            result_type: the type of the data.
            timeout: seconds to wait, instead of the client's.
            progress: receives the progress of the call.

        Raises:
            ValueError: an answer is missing, or answers a question that was not asked.
            LocalProtocolError: an answer does not match the form, or this is a session.
            MCPError: as `call_tool` does.
        """
        if not isinstance(paused, PausedCall):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise TypeError(f"paused must be a PausedCall, not {type(paused).__name__}")
        limits = await self._session.wait_connected(
            self._session.make_limits(timeout, progress, extendable=True)
        )
        if not self._session.last_connection.revision.stateless:
            raise LocalProtocolError(
                "a paused call cannot be resumed in a session",
                hint="resume it with a client of the stateless era",
            )
        params = types.CallToolParams(name=paused.name, arguments=paused.encoded_arguments)
        party = self._build_local_peer(paused.capabilities)
        call: _ToolCall[R] = _ToolCall(self._session, TOOLS_CALL, params, limits, paused.meta, party)
        call.result_type = result_type
        call.raise_on_error, call.validate = paused.raise_on_error, paused.validate
        call.rounds, call.elapsed = paused.rounds, paused.spent
        await call.answer(paused.state, paused.questions, check_mapping("answers", answers))
        outcome = await call.run()
        return outcome if isinstance(outcome, ToolResult | PausedCall) else await outcome.drive(timeout)

    def _build_local_peer(self, capabilities: types.ClientCapabilities | None) -> LocalPeer:
        """Return the identity for a call that accepts questions although there may be no callback."""
        if capabilities is None:
            ours = self._local_peer.capabilities
            assert isinstance(ours, types.ClientCapabilities), "we are a client"
            capabilities = copy(ours)
            if ours.elicitation is None:
                capabilities.elicitation = types.ElicitationCapability()
            elif has_capability(ours, "elicitation.url"):
                capabilities.elicitation = types.ElicitationCapability(form={}, url=ours.elicitation.url)
        return self._local_peer.with_capabilities(capabilities)
