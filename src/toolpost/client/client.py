"""`Client`: one method for each thing that a server can be asked, on every revision.

Owns the public face and nothing behind it: what is asked goes to `conversation`, how a channel is opened is
told in `toolpost.connect`. It is long because it is flat.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from toolpost.client.answer import (
    Answers,
    AskCallback,
    ElicitationCallback,
    Place,
    RootsCallback,
    SamplingCallback,
)
from toolpost.client.conversation import (
    Callbacks,
    Conversation,
    LogCallback,
    NoticeCallback,
    Patience,
    ProgressCallback,
)
from toolpost.client.door import named, reference, written
from toolpost.client.pages import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from toolpost.client.results import ToolResult, joined_text, tool_result, typed_json
from toolpost.client.stats import Stats
from toolpost.errors import NotDeclared, ToolError
from toolpost.protocol.methods import DATES, ROWS, Row
from toolpost.protocol.outbox import LEVELS
from toolpost.protocol.party import Party, declares
from toolpost.types.asks import AskParams
from toolpost.types.base import JSON, UNSET, RequestId, Result, Unset, Wire
from toolpost.types.lifecycle import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializeResult,
    LogLevel,
    ServerCapabilities,
    SetLevelParams,
)
from toolpost.types.notices import NoticeParams
from toolpost.types.prompts import (
    CompleteParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptParams,
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    Reference,
)
from toolpost.types.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from toolpost.types.tools import CallToolParams, CallToolResult, ListToolsResult, Tool
from toolpost.version import __version__

if TYPE_CHECKING:
    from toolpost.connect import Target

__all__ = ["Client"]

T = TypeVar("T")

_KNOWN: Final = frozenset(row.name for row in ROWS)


class Client:
    """A client of one server.

    Use it as `async with Client(target) as client:`, or call `connect` and `close`. Every method may be
    called from any task. After `close` it may be connected again, if its target can be opened again.

    Args:
        target: a command as a list, a `Stdio`, a server object, a path to an `mcp.json` or an entry of one, a
            URL, or a `Channel`. A string is a URL if it starts like one, a path if it ends in `.json`, and
            else a command line, split into words as a shell would.
        server: which server of an `mcp.json` with several.
        name: what to call this client.
        version: its version.
        title: its name for people.
        revision: the protocol revision to speak. By default it is found out.
        timeout: seconds to wait for an answer, None for ever; progress starts it anew.
        max_timeout: seconds to wait in all, whatever the progress; 300 if there is a time-out.
        connect_timeout: seconds to reach the server and agree with it.
        probe_timeout: seconds to wait for the answer to the first question, which old servers may not give.
        on_sampling: asks the model when the server wants it asked. Declares `sampling`.
        on_elicitation: asks the user when the server wants them asked. Declares `elicitation`, for forms.
        on_roots: the places that the user has opened, or a function that tells them. Declares `roots`.
        on_log: hears the server's log: what it chooses to tell in a session, from "info" on in the stateless
            era. `set_log_level` changes that, until the client connects again.
        on_progress: hears of the progress of requests that have no callback of their own.
        on_notification: hears all other notices: method and params. In the stateless era it is also what
            makes the client ask to hear of lists that change.
        request_handlers: answers to methods of the server's own, by name.
        capabilities: more about what is declared: elicitation by URL, sampling with tools, extensions.
        strict: raise where a list has an item that cannot be read, instead of leaving it out.

    A callback is sync or async. A sync one runs in a thread; all of them may call the client.
    """

    def __init__(
        self,
        target: "Target",
        *,
        server: str | None = None,
        name: str = "toolpost",
        version: str = __version__,
        title: str | None = None,
        revision: str | None = None,
        timeout: float | None = 60.0,
        max_timeout: float | Unset | None = UNSET,
        connect_timeout: float | None = 30.0,
        probe_timeout: float = 5.0,
        on_sampling: SamplingCallback | None = None,
        on_elicitation: ElicitationCallback | None = None,
        on_roots: Iterable[Place] | RootsCallback | None = None,
        on_log: LogCallback | None = None,
        on_progress: ProgressCallback | None = None,
        on_notification: NoticeCallback | None = None,
        request_handlers: Mapping[str, AskCallback] | None = None,
        capabilities: ClientCapabilities | None = None,
        strict: bool = False,
    ) -> None:
        from toolpost.connect import way_to  # noqa: PLC0415 - it knows the transports, which this ring may not

        if revision is not None and revision not in DATES:
            raise ValueError(
                f"revision: {revision!r} is not a protocol revision; there are {', '.join(DATES)}"
            )
        answers = Answers(
            sampling=on_sampling,
            elicitation=on_elicitation,
            roots=on_roots,
            others=request_handlers,
            declared=capabilities,
        )
        self._party = Party(
            Implementation(name=name, version=version, title=title),
            answers.capabilities,
            supported=DATES if revision is None else (revision,),
        )
        self._talk = Conversation(
            way_to(target, server),
            self._party,
            answers,
            Callbacks(on_log, on_progress, on_notification),
            Patience(timeout, max_timeout, connect_timeout, probe_timeout),
            strict=strict,
        )
        self._limits = self._talk.limits

    def __repr__(self) -> str:
        state = f"connected, {self.revision}" if self.connected else "not connected"
        return f"<Client of {self._talk.name}: {state}>"

    # ----------------------------------------------------------------- the connection

    async def connect(self) -> Self:
        """Connect to the server, unless that was done; the client itself.

        Raises:
            ConnectFailed: the server cannot be reached, or there is no revision that both speak.
        """
        await self._talk.open()
        return self

    async def close(self) -> None:
        """Leave the server. Whoever waits for an answer gets `ChannelClosed`. Closing twice is fine.

        `on_log` and `on_notification` hear first what has arrived, if that does not take too long.
        """
        await self._talk.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ----------------------------------------------------------------- what is known about the server

    @property
    def connected(self) -> bool:
        """Whether there is a conversation."""
        return self._talk.ready

    @property
    def revision(self) -> str:
        """The protocol revision that is spoken, or was spoken last."""
        return self._talk.opened.revision.date

    @property
    def era(self) -> Literal["session", "stateless"]:
        """How the conversation is held."""
        return self._talk.opened.revision.era

    @property
    def capabilities(self) -> ServerCapabilities:
        """What the server can do."""
        return self._talk.opened.result.capabilities

    @property
    def server_info(self) -> Implementation | None:
        """The name tag of the server. Nothing may depend on it (META-17)."""
        opened = self._talk.opened
        if isinstance(opened.result, InitializeResult):
            return opened.result.server_info
        peer = opened.link.connection.peer
        return None if peer is None else peer.info

    @property
    def instructions(self) -> str | None:
        """How the server wants to be used."""
        return self._talk.opened.result.instructions

    @property
    def discovered(self) -> DiscoverResult | None:
        """What the server said of itself in the stateless era; None in a session."""
        result = self._talk.opened.result
        return result if isinstance(result, DiscoverResult) else None

    @property
    def pending(self) -> Mapping[RequestId, str]:
        """The requests in flight: id → method. `cancel` takes an id."""
        return self._talk.link.pending

    @property
    def stats(self) -> Stats:
        """What was seen so far, as numbers: requests, time-outs, notices, discarded messages and more."""
        return self._talk.stats

    # ----------------------------------------------------------------- tools

    async def list_tools(self, *, timeout: float | None = None) -> list[Tool]:
        """The tools, all pages of them. From then on results are validated against their output schemas."""
        return [tool async for page in self.list_tools_pages(timeout=timeout) for tool in page.tools]

    async def list_tools_pages(self, *, timeout: float | None = None) -> AsyncIterator[ListToolsResult]:
        """The tools, page by page."""
        names: set[str] = set()
        async for page in self._talk.pages(TOOLS, self._limits(timeout)):
            self._talk.outputs.learn(page.tools)
            names.update(tool.name for tool in page.tools)
            yield page
        self._talk.outputs.complete(names)

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
    ) -> ToolResult[Any]:
        """What a tool says.

        Args:
            name: the tool.
            arguments: what to call it with.
            result_type: what to make of its data: a type that msgspec knows, or a pydantic model. A server of
                a revision without structured content has its data read from the JSON in its text.
            timeout: seconds to wait, instead of the client's; `math.inf` waits for ever.
            progress: hears how far the tool has come; all of it before this returns.
            meta: what to put into `_meta`.
            raise_on_error: whether a tool that says that it failed is an exception.
            validate: whether to hold the data against the tool's output schema. That needs the extra
                `toolpost[schema]`, and that the tools have been listed on this connection.

        Raises:
            TypeError: the arguments are no mapping.
            LocalProtocolError: one of them cannot be written as JSON; nothing was sent.
            ToolError: the tool says that it failed; the text is what it said.
            RPCError: the server refused the call; `InvalidParams` if there is no such tool.
            RemoteProtocolError: the data breaks the output schema, or is not of `result_type`.
            RequestTimeout: no answer came in time. The server was told.
        """
        wrapped = self._talk.outputs.wraps(name)
        check = None
        if validate and self._talk.link.connection.revision.structured is not None:
            check = self._talk.outputs.check(name)
        params = CallToolParams(name=name, arguments=written(name, arguments))
        result = await self._talk.ask(
            CallToolResult, "tools/call", params, self._limits(timeout, progress, extendable=True), meta
        )
        if result.is_error and raise_on_error:
            raise self._failed(name, result)
        if check is not None:
            check(result)
        return tool_result(name, result, result_type, wrapped=wrapped)

    def _failed(self, name: str, result: CallToolResult) -> ToolError:
        """The error for a tool that says that it failed. A note is for people: models read the text."""
        error = ToolError(joined_text(result.content) or f"tool {name!r} failed and did not say why")
        note = self._talk.opened.link.unheard
        if note is not None:
            error.add_note(note)
        return error

    # ----------------------------------------------------------------- resources

    async def list_resources(self, *, timeout: float | None = None) -> list[Resource]:
        """The resources, all pages of them."""
        return [item async for page in self.list_resources_pages(timeout=timeout) for item in page.resources]

    async def list_resources_pages(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[ListResourcesResult]:
        """The resources, page by page."""
        async for page in self._talk.pages(RESOURCES, self._limits(timeout)):
            yield page

    async def list_resource_templates(self, *, timeout: float | None = None) -> list[ResourceTemplate]:
        """The resource templates, all pages of them."""
        pages = self.list_resource_templates_pages(timeout=timeout)
        return [item async for page in pages for item in page.resource_templates]

    async def list_resource_templates_pages(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[ListResourceTemplatesResult]:
        """The resource templates, page by page."""
        async for page in self._talk.pages(TEMPLATES, self._limits(timeout)):
            yield page

    async def read_resource(
        self,
        uri: str,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> ReadResourceResult:
        """What a resource holds.

        Raises:
            ResourceNotFound: there is none of this URI (`InvalidParams` from a server of the stateless era).
        """
        limits = self._limits(timeout, progress)
        return await self._talk.ask(
            ReadResourceResult, "resources/read", ReadResourceParams(uri=uri), limits, meta
        )

    async def subscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Ask to hear when a resource changes; `on_notification` does.

        Raises:
            NotDeclared: the server does not offer it.
        """
        self._talk.link.check_open()
        await self._talk.listener.watch(uri, self._limits(timeout))

    async def unsubscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Ask to hear no more of a resource."""
        self._talk.link.check_open()
        await self._talk.listener.unwatch(uri, self._limits(timeout))

    # ----------------------------------------------------------------- prompts

    async def list_prompts(self, *, timeout: float | None = None) -> list[Prompt]:
        """The prompts, all pages of them."""
        return [item async for page in self.list_prompts_pages(timeout=timeout) for item in page.prompts]

    async def list_prompts_pages(self, *, timeout: float | None = None) -> AsyncIterator[ListPromptsResult]:
        """The prompts, page by page."""
        async for page in self._talk.pages(PROMPTS, self._limits(timeout)):
            yield page

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> GetPromptResult:
        """A prompt, filled in."""
        params = GetPromptParams(name=name, arguments=named("arguments", arguments) or None)
        return await self._talk.ask(
            GetPromptResult, "prompts/get", params, self._limits(timeout, progress), meta
        )

    async def complete(
        self,
        ref: Reference | Prompt | ResourceTemplate | str,
        argument: str,
        value: str = "",
        *,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """How an argument might go on.

        Args:
            ref: the prompt or the template that it belongs to. A string with `://` or `{` is the URI of a
                template, one without a colon the name of a prompt.
            argument: its name.
            value: what has been typed.
            context: the arguments that are known already.
            timeout: seconds to wait.

        Raises:
            ValueError: `ref` is a string that may be either.
        """
        known = named("context", context)
        params = CompleteParams(
            ref=reference(ref),
            argument=CompletionArgument(name=argument, value=value),
            context=CompletionContext(known) if known else None,
        )
        return (
            await self._talk.ask(CompleteResult, "completion/complete", params, self._limits(timeout))
        ).completion

    # ----------------------------------------------------------------- the rest

    async def set_log_level(self, level: LogLevel, *, timeout: float | None = None) -> None:
        """Ask for log messages of this level and graver ones; `on_log` hears them.

        Raises:
            NotDeclared: the server does not offer a log.
        """
        if level not in LEVELS:
            raise ValueError(f"level: {level!r} is not a log level; there are {', '.join(LEVELS)}")
        link = self._talk.link
        if not link.connection.revision.stateless:
            await self._talk.ask(
                Result, "logging/setLevel", SetLevelParams(level=level), self._limits(timeout)
            )
            return
        if not declares(self.capabilities, "logging"):
            raise NotDeclared("logging", "the server does not offer 'logging'", peer=link.peer_name)
        self._talk.log_level = level  # every request carries it from here on

    async def ping(self, *, timeout: float | None = None) -> None:
        """Return if the server answers. In the stateless era it is asked what it is.

        Raises:
            RequestTimeout: it did not answer in time.
        """
        stateless = self._talk.link.connection.revision.stateless
        await self._talk.ask(Result, "server/discover" if stateless else "ping", None, self._limits(timeout))

    async def cancel(self, request_id: RequestId, reason: str | None = None) -> bool:
        """Give up a request of ours; False if there is none of this id. Whoever waits for it gets `MCPError`.

        Args:
            request_id: one of `pending`.
            reason: what the server is told.
        """
        return self._talk.link.cancel(request_id, reason)

    async def notify_roots_changed(self) -> None:
        """Tell the server that the roots have changed. In the stateless era it asks each time it needs them.

        Raises:
            NotDeclared: this client has no roots.
        """
        link = self._talk.link
        if not link.connection.revision.stateless:
            await link.notify("notifications/roots/list_changed")
        elif not self._party.declares("roots"):
            raise NotDeclared("roots", "this client does not declare 'roots'")

    # ----------------------------------------------------------------- raw

    @overload
    async def request(
        self,
        method: str,
        params: Wire | Mapping[str, JSON] | None = None,
        *,
        result_type: type[T],
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> T: ...

    @overload
    async def request(
        self,
        method: str,
        params: Wire | Mapping[str, JSON] | None = None,
        *,
        result_type: None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> Result: ...

    async def request(
        self,
        method: str,
        params: Wire | Mapping[str, JSON] | None = None,
        *,
        result_type: type[Any] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> Any:
        """The answer to any request, be it one of the protocol or not.

        Args:
            method: its name.
            params: its parameters.
            result_type: what to make of the result, such as `dict`; by default a `Result`, `raw` included.
            timeout: seconds to wait.
            progress: hears how far it has come.
            meta: what to put into `_meta`.

        Raises:
            LocalProtocolError: the method is one of the protocol, and may not be sent in this revision.
        """
        row = method if method in _KNOWN else Row(method, AskParams, Result)
        result = await self._talk.request(row, params, self._limits(timeout, progress), meta)
        if result_type is None or type(result) is result_type:
            return result
        return typed_json(result.raw or b"{}", result_type, f"the result of {method}")

    async def notify(self, method: str, params: NoticeParams | Mapping[str, JSON] | None = None) -> None:
        """Say anything to the server, be it a notice of the protocol or not."""
        row = method if method in _KNOWN else Row(method, NoticeParams)
        await self._talk.link.notify(row, params)
