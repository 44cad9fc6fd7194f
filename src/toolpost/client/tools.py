"""What a client can do with the tools of its server: list them, call them, and call them with a pause.

Owns these public methods, and what a call comes to for its caller. How a request goes through its rounds is
told in `rounds`, what a paused one is in `paused`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from copy import copy
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, overload

from toolpost.client.answer import Answer
from toolpost.client.call import Limits, Tried
from toolpost.client.conversation import Conversation
from toolpost.client.door import named, written
from toolpost.client.outputs import Check, Outcome
from toolpost.client.pages import TOOLS, whole
from toolpost.client.patience import ProgressCallback
from toolpost.client.paused import Paused, questions_of
from toolpost.client.results import ToolResult, joined_text, tool_result
from toolpost.client.rounds import Trip
from toolpost.errors import HeaderMismatch, LocalProtocolError, RateLimited, ToolError, TransportError
from toolpost.protocol.methods import Plain
from toolpost.protocol.party import Party, declares
from toolpost.types.base import JSON, Result
from toolpost.types.inputs import InputRequiredResult
from toolpost.types.lifecycle import ClientCapabilities, ElicitationCapability
from toolpost.types.tools import CallToolParams, CallToolResult, ListToolsResult, Tool

__all__ = ["InputCallback", "ToolMethods"]

InputCallback: TypeAlias = Callable[[Paused], Mapping[str, Answer] | Awaitable[Mapping[str, Answer]]]
"""Is given what a call waits for, and returns the answers by key."""

T = TypeVar("T")


class _Known(NamedTuple):
    """What the list of tools says about the results of one."""

    wraps: bool = False
    check: Check | None = None


_NOTHING: Final = _Known()


class ToolMethods:
    """What a client can do with tools."""

    _talk: Conversation
    _party: Party
    _limits: Callable[..., Limits]

    async def list_tools(self, *, timeout: float | None = None) -> list[Tool]:
        """The tools, all pages of them. From then on results are validated against their output schemas."""
        pages = await whole(lambda: self.list_tools_pages(timeout=timeout))
        return [tool for page in pages for tool in page.tools]

    async def list_tools_pages(self, *, timeout: float | None = None) -> AsyncIterator[ListToolsResult]:
        """The tools, page by page."""
        async for page in self._talk.reading.pages(TOOLS, self._limits(timeout)):
            yield page

    # ----------------------------------------------------------------- calling

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
            on_input: answers the questions of this call, all of a round at once: is given the `Paused` call
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
        said = written(name, arguments)
        limits = self._limits(timeout, progress, extendable=True)
        talk = self._talk
        tried: Tried[Result] | None = None
        # What goes over it as it is needs nothing in `_meta`; if it fails, it is looked at closely.
        straight = on_input is None and meta is None and talk.log_level is None
        link = talk.attempts.steady() if straight else None
        if link is None and not talk.ready:
            limits = await talk.wait(limits)
        known = self._known(name, validate=validate) if talk.reading.outputs.schemas else _NOTHING
        if link is not None:
            # Nearly every call needs one try and no more: to be ready for that only takes 2 µs less.
            began, headers = link.loop.time(), talk.reading.mirrors.of(name) if link.mirrors else None
            try:
                result = await link.call(name, said, limits, began)
            except (HeaderMismatch, RateLimited, TransportError) as error:
                tried = Tried(began, error, headers)
            else:
                if type(result) is Plain or type(result) is CallToolResult:
                    talk.attempts.answered()
                    if known is _NOTHING and not result.is_error:
                        return tool_result(name, result, result_type)
                    return self._told(name, result, result_type, known, raise_on_error=raise_on_error)
                tried = Tried(began, result)
        rounds = talk.rounds
        party = None if on_input is None else self._declaring(capabilities)
        params = CallToolParams(name=name, arguments=said)
        trip = Trip("tools/call", params, limits, meta, party=party, retry=retry, tried=tried)
        tried = None  # else an error would hold the frame that holds it
        while isinstance(result := await rounds.go(trip), InputRequiredResult):
            if on_input is None:
                questions, given = questions_of(result.input_requests or {}), {}
            else:
                paused = self._pause(trip, result, raise_on_error=raise_on_error, validate=validate)
                questions, given = paused.questions, await rounds.consult(on_input, paused)
            await rounds.answer(trip, result.request_state, questions, given)
        return self._told(name, result, result_type, known, raise_on_error=raise_on_error)

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
    ) -> ToolResult[T] | Paused: ...

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
    ) -> ToolResult[JSON] | Paused: ...

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
    ) -> ToolResult[Any] | Paused:
        """What a tool says, or the call itself, `Paused`, if the server wants to know something first.

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
        params = CallToolParams(name=name, arguments=written(name, arguments))
        limits = await self._talk.wait(self._limits(timeout, progress, extendable=True))
        known = self._known(name, validate=validate)
        trip = Trip("tools/call", params, limits, meta, party=self._declaring(capabilities), retry=retry)
        result = await self._talk.rounds.go(trip)
        if isinstance(result, InputRequiredResult):
            return self._pause(trip, result, raise_on_error=raise_on_error, validate=validate)
        return self._told(name, result, result_type, known, raise_on_error=raise_on_error)

    @overload
    async def resume(
        self,
        paused: Paused,
        answers: Mapping[str, Answer],
        *,
        result_type: type[T],
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> ToolResult[T] | Paused: ...

    @overload
    async def resume(
        self,
        paused: Paused,
        answers: Mapping[str, Answer],
        *,
        result_type: None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> ToolResult[JSON] | Paused: ...

    async def resume(
        self,
        paused: Paused,
        answers: Mapping[str, Answer],
        *,
        result_type: type[Any] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> ToolResult[Any] | Paused:
        """What a tool says once it has its answers, or the call, paused again.

        Any client of the same server may resume a call, in any process.

        Args:
            paused: what `begin_call` or `resume` returned, or `Paused.from_json` read.
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
        if not isinstance(paused, Paused):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise TypeError(f"paused: a Paused call, not a {type(paused).__name__}")
        options = {"raise_on_error": paused.raise_on_error, "validate": paused.validate}
        limits = await self._talk.wait(self._limits(timeout, progress, extendable=True))
        known = self._known(paused.name, validate=paused.validate)
        if not self._talk.opened.revision.stateless:
            raise LocalProtocolError(
                "a paused call cannot be resumed in a session",
                hint="connect as the client that was paused did",
            )
        trip = Trip(
            "tools/call",
            CallToolParams(name=paused.name, arguments=paused.written),
            limits,
            paused.meta,
            party=self._declaring(paused.capabilities),
            rounds=paused.rounds,
            spent=paused.spent,
        )
        rounds = self._talk.rounds
        await rounds.answer(trip, paused.state, paused.questions, named("answers", answers))
        result = await rounds.go(trip)
        if isinstance(result, InputRequiredResult):
            return self._pause(trip, result, **options)
        return self._told(paused.name, result, result_type, known, raise_on_error=paused.raise_on_error)

    # ----------------------------------------------------------------- what it comes to

    def _declaring(self, capabilities: ClientCapabilities | None) -> Party:
        """Who makes a call that can be asked although there may be no callback."""
        if capabilities is None:
            ours = self._party.capabilities
            assert isinstance(ours, ClientCapabilities), "we are a client"
            capabilities = copy(ours)
            if ours.elicitation is None:
                capabilities.elicitation = ElicitationCapability()
            elif declares(ours, "elicitation.url"):
                capabilities.elicitation = ElicitationCapability(form={}, url=ours.elicitation.url)
        return Party(self._party.info, capabilities, supported=self._party.supported)

    def _pause(
        self, trip: Trip, result: InputRequiredResult, *, raise_on_error: bool, validate: bool
    ) -> Paused:
        """A call that waits for answers.

        Raises:
            RemoteProtocolError: the server asks what it may not ask.
        """
        params = trip.params
        assert isinstance(params, CallToolParams), "it is a call"
        paused = Paused(
            name=params.name,
            written=params.arguments or written(params.name, None),
            asked=result.input_requests or {},
            state=result.request_state,
            rounds=trip.rounds,
            spent=trip.spent,
            meta=named("meta", trip.meta) or None,
            capabilities=self._talk.rounds.declared(trip),
            raise_on_error=raise_on_error,
            validate=validate,
        )
        self._talk.rounds.check(trip, paused.questions)
        return paused

    def _known(self, name: str, *, validate: bool) -> "_Known":
        """What is known of a tool now, before it is called: its list may be forgotten in the meantime."""
        outputs = self._talk.reading.outputs
        if not outputs.schemas:
            return _NOTHING
        structured = self._talk.opened.revision.structured is not None
        return _Known(outputs.wraps(name), outputs.check(name) if validate and structured else None)

    def _told(
        self, name: str, result: Result, kind: type[Any] | None, known: "_Known", *, raise_on_error: bool
    ) -> ToolResult[Any]:
        """What the caller wants to see of a result."""
        assert type(result) is Plain or isinstance(result, CallToolResult), "the row says so"
        if result.is_error and raise_on_error:
            raise self._failed(name, result)
        if known.check is not None:
            known.check(result)
        return tool_result(name, result, kind, wrapped=known.wraps)

    def _failed(self, name: str, result: Outcome) -> ToolError:
        """The error for a tool that says that it failed. A note is for people: models read the text."""
        error = ToolError(joined_text(result.content) or f"tool {name!r} failed and did not say why")
        note = self._talk.opened.link.unheard
        if note is not None:
            error.add_note(note)
        return error
