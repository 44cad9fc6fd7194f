"""Tools of a server: list them, call them, pause and resume calls.

Owns these public methods and converts results for the caller: text, data, data of a type. Rounds of input are
left to `multi_round`, output schemas to `output_schemas`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from copy import copy
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast, overload

import msgspec

from toolpost.client.callbacks import Answer, parse_questions
from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.session import ClientSession
from toolpost.client.listing import TOOLS, read_all_pages
from toolpost.client.multi_round import InputCallback, MultiRoundCall, PausedCall
from toolpost.client.options import ProgressCallback, check_mapping, encode_arguments
from toolpost.client.output_schemas import ResultCheck
from toolpost.errors import LocalProtocolError, MCPError, RemoteProtocolError, ToolError
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.local_peer import LocalPeer, has_capability
from toolpost.protocol.methods import TOOLS_CALL
from toolpost.types.base import (
    JSON,
    UNSET,
    InputRequiredResult,
    Meta,
    OpenUnion,
    Struct,
    Unset,
    dec_hook,
)
from toolpost.types.content import Content, TextContent
from toolpost.types.initialize import ClientCapabilities, ElicitationCapability
from toolpost.types.tools import CallToolParams, CallToolResult, ListToolsResult, Tool

T = TypeVar("T")


_WRAPPED_META_KEY: Final = "toolpost/wrapped"
"""In `_meta`: the value is no object, and stands in one only because this revision allows nothing else."""
_WRAPPER_FIELD: Final = "result"
"""Where it stands there."""


class ToolResult(Struct, Generic[T], frozen=True):
    """What a tool said.

    Attributes:
        data: what the tool returned, the same in every revision that has structured content: a value that is
            no object, such as a list, is taken out of the object that older ones of these revisions demand.
            Without structured content it is `text`, or None if there is no text either. With `result_type=`
            it is of that type, and read from the JSON in the text where nothing else is there.
        content: the blocks: text, images, audio, resources.
        structured_content: the structured result as it came; `UNSET` if there is none.
        is_error: whether the tool says that it failed; only with `raise_on_error=False`.
        meta: its `_meta`; None if there is none.
        raw: the bytes as they came, with all that nobody here knows.
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
    content: list[Content]
    structured_content: JSON | Unset
    is_error: bool
    meta: Meta | None
    raw: bytes | None

    @property
    def text(self) -> str:
        """The text blocks, joined by line breaks."""
        return join_text(self.content)


def join_text(content: list[Content]) -> str:
    """Join the text blocks by line breaks."""
    if len(content) == 1 and type(content[0]) is TextContent:  # the usual case
        return content[0].text
    return "\n".join([block.text for block in content if isinstance(block, TextContent)])


def make_tool_result(
    name: str, result: CallToolResult, kind: type[T] | None, *, wrapped: bool = False
) -> ToolResult[Any]:
    """Build the result of a tool, with its data converted to `kind` if one is given.

    What does not fit is unwrapped: the JSON in a text, the value in an object with nothing but a `result`.
    `wrapped` says that the output schema describes such an object.
    """
    structured, failed = result.structured_content, bool(result.is_error)
    look_into = _unwrap
    data: JSON = structured
    if structured is UNSET:
        data = None if failed else _text_or_none(result.content)
        look_into = _parse_json
    elif wrapped or (result.meta is not None and _has_wrapped_mark(result.meta)):
        data = _unwrap(structured)
    if kind is not None and not failed:
        what = f"the result of tool {name!r}"
        try:
            data = convert_value(data, kind, what)
        except RemoteProtocolError:
            inner = look_into(data)
            if inner is data:
                raise
            data = convert_value(inner, kind, what)
    return ToolResult(data, result.content, structured, failed, result.meta, result.raw)


def _text_or_none(content: list[Content]) -> str | None:
    """Return the text; None if there is no text block."""
    return join_text(content) if any(isinstance(block, TextContent) for block in content) else None


def _has_wrapped_mark(meta: Meta) -> bool:
    """Return whether `_meta` marks the value as wrapped, in our way or in that of FastMCP."""
    theirs = meta.get("fastmcp")
    return meta.get(_WRAPPED_META_KEY) is True or (
        isinstance(theirs, dict) and cast("dict[str, JSON]", theirs).get("wrap_result") is True
    )


def _unwrap(value: JSON) -> JSON:
    """Return the value in an object that holds nothing but a `result`; else the value itself."""
    if isinstance(value, dict):
        fields = cast("dict[str, JSON]", value)
        return fields[_WRAPPER_FIELD] if fields.keys() == {_WRAPPER_FIELD} else fields
    return value


_ANY_JSON: JSONReader[JSON] = JSONReader(cast("type[JSON]", Any))


def _parse_json(text: JSON) -> JSON:
    """Parse the JSON in a string; else return the string itself."""
    try:
        return text if text is None else _ANY_JSON(text.encode())
    except InvalidJSONValue:
        return text


def convert_value(value: JSON, kind: type[T], what: str) -> T:
    """Convert JSON to a type. Raises `RemoteProtocolError` if it does not fit."""
    try:
        return msgspec.convert(value, kind, dec_hook=_decode_foreign_type)
    except ValueError as error:
        name = getattr(kind, "__name__", str(kind))
        raise RemoteProtocolError(f"{what} is not a {name}: {error}") from error


def decode_value(raw: bytes, kind: type[T], what: str) -> T:
    """Decode JSON and convert it to a type. Raises `RemoteProtocolError` if it does not fit."""
    try:
        value = _ANY_JSON(raw)
    except InvalidJSONValue as error:
        raise RemoteProtocolError(f"{what} cannot be read: {error}") from error
    return convert_value(value, kind, what)


def _decode_foreign_type(kind: type[Any], value: JSON) -> Any:
    """Convert a value to a type that msgspec does not know."""
    validate = getattr(kind, "model_validate", None)  # pydantic's models have it; pydantic is not imported
    if callable(validate):
        return validate(value)
    if issubclass(kind, OpenUnion):
        return dec_hook(kind, value)
    raise MCPError(f"result_type: a {kind.__name__} cannot be made from JSON")


# --------------------------------------------------------------------- tools


class _OutputInfo(NamedTuple):
    """What the list of tools tells about the results of one tool."""

    is_wrapped: bool = False
    check: ResultCheck | None = None


_NO_OUTPUT_INFO: Final = _OutputInfo()


class ToolMethods:
    """What a client can do with tools."""

    _session: ClientSession
    _local_peer: LocalPeer
    _make_limits: Callable[..., CallLimits]

    async def list_tools(self, *, timeout: float | None = None) -> list[Tool]:
        """The tools, all pages of them. From then on results are validated against their output schemas."""
        pages = await read_all_pages(lambda: self.list_tools_pages(timeout=timeout))
        return [tool for page in pages for tool in page.tools]

    async def list_tools_pages(self, *, timeout: float | None = None) -> AsyncIterator[ListToolsResult]:
        """The tools, page by page."""
        async for page in self._session.reader.iter_pages(TOOLS, self._make_limits(timeout)):
            yield page

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[T],
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        raise_on_error: bool = True,
        validate: bool = True,
        on_input: InputCallback | None = None,
        capabilities: ClientCapabilities | None = None,
        retry: bool | None = None,
    ) -> ToolResult[T]: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        raise_on_error: bool = True,
        validate: bool = True,
        on_input: InputCallback | None = None,
        capabilities: ClientCapabilities | None = None,
        retry: bool | None = None,
    ) -> ToolResult[JSON]: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[Any] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        raise_on_error: bool = True,
        validate: bool = True,
        on_input: InputCallback | None = None,
        capabilities: ClientCapabilities | None = None,
        retry: bool | None = None,
    ) -> ToolResult[Any]:
        """What a tool says.

        Args:
            name: the tool.
            arguments: what to call it with.
            result_type: what to make of its data: a type that msgspec knows, or a pydantic model. A server of
                a revision without structured content has its data read from the JSON in its text.
            timeout: seconds to wait, instead of the client's; `math.inf` waits for ever. The time that a
                callback takes to answer the server is not counted.
            progress: hears how far the tool has come; all of it before this returns.
            meta: what to put into `_meta`.
            raise_on_error: whether a tool that says that it failed is an exception.
            validate: whether to hold the data against the tool's output schema. That needs the extra
                `toolpost[schema]`, and that the tools have been listed on this connection.
            on_input: answers the questions of this call, all of a round at once: is given the `PausedCall`
                and returns the answers by key. The client's callbacks answer what it leaves out. In a session
                a server asks otherwise, and only the client's callbacks answer.
            capabilities: what this call declares, with `on_input`: by default what the client declares, and
                elicitation by form.
            retry: whether it may be sent once more although the server may have got it; by default if the
                list of tools, which must have been read, says that the tool only reads or is idempotent.

        Raises:
            TypeError: the arguments are no mapping.
            LocalProtocolError: one of them cannot be written as JSON, or an answer is not what the server's
                form allows; that was not sent.
            ToolError: the tool says that it failed; the text is what it said.
            RPCError: the server refused the call; `InvalidParams` if there is no such tool.
            RemoteProtocolError: the data breaks the output schema, or is not of `result_type`.
            RequestTimeout: no answer came in time. The server was told.
        """
        if on_input is None and capabilities is not None:
            raise ValueError("capabilities: goes with on_input; those of the callbacks are the client's")
        party = None if on_input is None else self._build_local_peer(capabilities)
        params = CallToolParams(name=name, arguments=encode_arguments(name, arguments))
        limits = self._make_limits(timeout, progress, extendable=True)
        call = MultiRoundCall(TOOLS_CALL, params, limits, meta, party=party, retry=retry)
        known = _NO_OUTPUT_INFO
        if self._session.reader.output_schemas.schemas:
            known = await self._find_output_info(call, name, validate=validate)
        rounds = self._session.multi_round
        while isinstance(result := await rounds.advance(call), InputRequiredResult):
            if on_input is None:
                questions, given = parse_questions(result.input_requests or {}), {}
            else:
                paused = self._pause(call, result, raise_on_error=raise_on_error, validate=validate)
                questions, given = paused.questions, await rounds.call_input_callback(on_input, paused)
            await rounds.answer_questions(call, result.request_state, questions, given)
        assert isinstance(result, CallToolResult), "the row says so"
        if result.is_error or known is not _NO_OUTPUT_INFO:
            self._check_result(name, result, known, raise_on_error=raise_on_error)
        return make_tool_result(name, result, result_type, wrapped=known.is_wrapped)

    @overload
    async def begin_call(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[T],
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        raise_on_error: bool = True,
        validate: bool = True,
        capabilities: ClientCapabilities | None = None,
        retry: bool | None = None,
    ) -> ToolResult[T] | PausedCall: ...

    @overload
    async def begin_call(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        raise_on_error: bool = True,
        validate: bool = True,
        capabilities: ClientCapabilities | None = None,
        retry: bool | None = None,
    ) -> ToolResult[JSON] | PausedCall: ...

    async def begin_call(
        self,
        name: str,
        arguments: Mapping[str, JSON] | None = None,
        *,
        result_type: type[Any] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        raise_on_error: bool = True,
        validate: bool = True,
        capabilities: ClientCapabilities | None = None,
        retry: bool | None = None,
    ) -> ToolResult[Any] | PausedCall:
        """What a tool says, or the call itself, `PausedCall`, if the server wants to know something first.

        A paused call costs nothing on either side, and may wait as long as the server's state is good. In a
        session a server asks while the call runs: the client's callbacks answer, and this is `call_tool`.

        Args:
            name: the tool.
            arguments: what to call it with.
            result_type: what to make of its data; a call that is paused has to be told again.
            timeout: seconds to wait, instead of the client's; likewise.
            progress: hears how far the tool has come; likewise.
            meta: what to put into `_meta`.
            raise_on_error: whether a tool that says that it failed is an exception.
            validate: whether to hold the data against the tool's output schema.
            capabilities: what the call declares: by default what the client declares, and elicitation by
                form, whether there is a callback for it or not.
            retry: as for `call_tool`.

        Raises:
            MCPError: as `call_tool` does.
        """
        params = CallToolParams(name=name, arguments=encode_arguments(name, arguments))
        limits, party = (
            self._make_limits(timeout, progress, extendable=True),
            self._build_local_peer(capabilities),
        )
        call = MultiRoundCall(TOOLS_CALL, params, limits, meta, party=party, retry=retry)
        known = await self._find_output_info(call, name, validate=validate)
        return await self._advance(call, result_type, known, raise_on_error=raise_on_error, validate=validate)

    @overload
    async def resume(
        self,
        paused: PausedCall,
        answers: Mapping[str, Answer],
        *,
        result_type: type[T],
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> ToolResult[T] | PausedCall: ...

    @overload
    async def resume(
        self,
        paused: PausedCall,
        answers: Mapping[str, Answer],
        *,
        result_type: None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> ToolResult[JSON] | PausedCall: ...

    async def resume(
        self,
        paused: PausedCall,
        answers: Mapping[str, Answer],
        *,
        result_type: type[Any] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> ToolResult[Any] | PausedCall:
        """What a tool says once it has its answers, or the call, paused again.

        Any client of the same server may resume a call, in any process.

        Args:
            paused: what `begin_call` or `resume` returned, or `PausedCall.from_json` read.
            answers: an answer for each of `paused.questions`, as the callback for it might return it. What is
                left out is asked of the client's callback.
            result_type: what to make of the data.
            timeout: seconds to wait, instead of the client's.
            progress: hears how far the tool has come.

        Raises:
            ValueError: an answer is missing, or one is to a question that was not asked.
            LocalProtocolError: an answer is not what the form allows, or this is a session.
            MCPError: as `call_tool` does.
        """
        if not isinstance(paused, PausedCall):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise TypeError(f"paused: a PausedCall, not a {type(paused).__name__}")
        options = {"raise_on_error": paused.raise_on_error, "validate": paused.validate}
        limits = await self._session.wait_connected(self._make_limits(timeout, progress, extendable=True))
        if not self._session.last_connection.revision.stateless:
            raise LocalProtocolError(
                "a paused call cannot be resumed in a session",
                hint="connect as the client that was paused did",
            )
        call = MultiRoundCall(
            TOOLS_CALL,
            CallToolParams(name=paused.name, arguments=paused.encoded_arguments),
            limits,
            paused.meta,
            party=self._build_local_peer(paused.capabilities),
            rounds=paused.rounds,
            elapsed=paused.spent,
        )
        known = await self._find_output_info(call, paused.name, validate=paused.validate)
        rounds = self._session.multi_round
        await rounds.answer_questions(call, paused.state, paused.questions, check_mapping("answers", answers))
        return await self._advance(call, result_type, known, **options)

    # ----------------------------------------------------------------- results

    def _build_local_peer(self, capabilities: ClientCapabilities | None) -> LocalPeer:
        """Return the identity for a call that accepts questions although there may be no callback."""
        if capabilities is None:
            ours = self._local_peer.capabilities
            assert isinstance(ours, ClientCapabilities), "we are a client"
            capabilities = copy(ours)
            if ours.elicitation is None:
                capabilities.elicitation = ElicitationCapability()
            elif has_capability(ours, "elicitation.url"):
                capabilities.elicitation = ElicitationCapability(form={}, url=ours.elicitation.url)
        return LocalPeer(self._local_peer.info, capabilities, supported=self._local_peer.supported)

    async def _advance(
        self,
        call: MultiRoundCall,
        result_type: type[Any] | None,
        known: _OutputInfo,
        *,
        raise_on_error: bool,
        validate: bool,
    ) -> ToolResult[Any] | PausedCall:
        """Send a call; return its result, or the call itself if the server asks something."""
        result = await self._session.multi_round.advance(call)
        if isinstance(result, InputRequiredResult):
            return self._pause(call, result, raise_on_error=raise_on_error, validate=validate)
        assert isinstance(result, CallToolResult), "the row says so"
        name = cast("CallToolParams", call.params).name
        self._check_result(name, result, known, raise_on_error=raise_on_error)
        return make_tool_result(name, result, result_type, wrapped=known.is_wrapped)

    def _pause(
        self, call: MultiRoundCall, result: InputRequiredResult, *, raise_on_error: bool, validate: bool
    ) -> PausedCall:
        """Build the paused call. Raises `RemoteProtocolError` if the server may not ask this."""
        params = cast("CallToolParams", call.params)
        paused = PausedCall(
            name=params.name,
            encoded_arguments=params.arguments or encode_arguments(params.name, None),
            input_requests=result.input_requests or {},
            state=result.request_state,
            rounds=call.rounds,
            spent=call.elapsed,
            meta=check_mapping("meta", call.meta) or None,
            capabilities=self._session.multi_round.declared_capabilities(call),
            raise_on_error=raise_on_error,
            validate=validate,
        )
        self._session.multi_round.check_questions(call, paused.questions)
        return paused

    async def _find_output_info(self, call: MultiRoundCall, name: str, *, validate: bool) -> "_OutputInfo":
        """Look up a tool before the call: its list may be forgotten in the meantime."""
        outputs = self._session.reader.output_schemas
        if not outputs.schemas:
            return _NO_OUTPUT_INFO
        call.limits = await self._session.wait_connected(call.limits)  # a new connection forgets the schemas
        structured = self._session.last_connection.revision.structured is not None
        return _OutputInfo(
            outputs.is_wrapped(name), outputs.get_check(name) if validate and structured else None
        )

    def _check_result(
        self, name: str, result: CallToolResult, known: "_OutputInfo", *, raise_on_error: bool
    ) -> None:
        """Raise `ToolError` for a tool that failed, `RemoteProtocolError` if the data breaks the schema."""
        if result.is_error and raise_on_error:
            raise self._make_tool_error(name, result)
        if known.check is not None:
            known.check(result)

    def _make_tool_error(self, name: str, result: CallToolResult) -> ToolError:
        """Build the error of a failed tool. A note is for people: models read the text."""
        error = ToolError(join_text(result.content) or f"tool {name!r} failed and did not say why")
        note = self._session.last_connection.dispatcher.stderr_hint
        if note is not None:
            error.add_note(note)
        return error
