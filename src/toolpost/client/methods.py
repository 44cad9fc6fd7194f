"""One method for each thing that a server can be asked, on every revision.

Owns the public methods of a client, except those about tools, and nothing behind them: what is asked goes to
`conversation`. It is long because it is flat.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, TypeVar, overload

from toolpost.client.call import NO_LIMITS
from toolpost.client.changes import ChangeFilter, ChangeStream
from toolpost.client.door import check_mapping, make_reference
from toolpost.client.pages import PROMPTS, RESOURCES, TEMPLATES, read_all_pages
from toolpost.client.patience import ProgressCallback
from toolpost.client.results import decode_value
from toolpost.client.tools import ToolMethods
from toolpost.errors import CapabilityNotDeclared
from toolpost.protocol.methods import ROWS, Row
from toolpost.protocol.outbox import LOG_LEVEL_RANKS
from toolpost.types.asks import ClientRequestParams
from toolpost.types.base import JSON, RequestId, Result, WireStruct
from toolpost.types.lifecycle import LogLevel
from toolpost.types.notices import NotificationParams
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

__all__ = ["ClientMethods"]

T = TypeVar("T")

_PROTOCOL_METHODS: Final = frozenset(row.name for row in ROWS)


class ClientMethods(ToolMethods):
    """What a client can ask of its server. `Client` adds where the server is."""

    # ----------------------------------------------------------------- resources

    async def list_resources(self, *, timeout: float | None = None) -> list[Resource]:
        """The resources, all pages of them."""
        pages = await read_all_pages(lambda: self.list_resources_pages(timeout=timeout))
        return [item for page in pages for item in page.resources]

    async def list_resources_pages(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[ListResourcesResult]:
        """The resources, page by page."""
        async for page in self._session.reader.iter_pages(RESOURCES, self._make_limits(timeout)):
            yield page

    async def list_resource_templates(self, *, timeout: float | None = None) -> list[ResourceTemplate]:
        """The resource templates, all pages of them."""
        pages = await read_all_pages(lambda: self.list_resource_templates_pages(timeout=timeout))
        return [item for page in pages for item in page.resource_templates]

    async def list_resource_templates_pages(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[ListResourceTemplatesResult]:
        """The resource templates, page by page."""
        async for page in self._session.reader.iter_pages(TEMPLATES, self._make_limits(timeout)):
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
        limits = self._make_limits(timeout, progress)
        if progress is None and meta is None:
            return await self._session.reader.read_resource(uri, limits)
        params = ReadResourceParams(uri=uri)
        return await self._session.multi_round.request(
            ReadResourceResult, "resources/read", params, limits, meta
        )

    async def subscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Ask to hear when a resource changes; `on_notification` does.

        Raises:
            CapabilityNotDeclared: the server does not offer it.
        """
        await self._session.watch(uri, self._make_limits(timeout))

    async def unsubscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Ask to hear no more of a resource."""
        await self._session.unwatch(uri, self._make_limits(timeout))

    # ----------------------------------------------------------------- prompts

    async def list_prompts(self, *, timeout: float | None = None) -> list[Prompt]:
        """The prompts, all pages of them."""
        pages = await read_all_pages(lambda: self.list_prompts_pages(timeout=timeout))
        return [item for page in pages for item in page.prompts]

    async def list_prompts_pages(self, *, timeout: float | None = None) -> AsyncIterator[ListPromptsResult]:
        """The prompts, page by page."""
        async for page in self._session.reader.iter_pages(PROMPTS, self._make_limits(timeout)):
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
        params = GetPromptParams(name=name, arguments=check_mapping("arguments", arguments) or None)
        limits = self._make_limits(timeout, progress)
        return await self._session.multi_round.request(GetPromptResult, "prompts/get", params, limits, meta)

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
        known = check_mapping("context", context)
        params = CompleteParams(
            ref=make_reference(ref),
            argument=CompletionArgument(name=argument, value=value),
            context=CompletionContext(known) if known else None,
        )
        limits = self._make_limits(timeout)
        return (
            await self._session.multi_round.request(CompleteResult, "completion/complete", params, limits)
        ).completion

    # ----------------------------------------------------------------- changes

    def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Iterable[str] = (),
        timeout: float | None = None,
    ) -> ChangeStream:
        """The changes on the server as they happen: `async for change in client.listen(tools=True):`.

        It ends when the client is closed; leaving the loop ends it as well. A connection or a stream that is
        lost is opened again, and then all that is listened to counts as changed (`change.missed`). As
        `async with client.listen(…) as changes:` it begins to listen before the block does, so that a list
        that is read first is followed without a gap.

        Args:
            tools: hear when the list of tools changes.
            prompts: hear when the list of prompts changes.
            resources: hear when the list of resources or of templates changes.
            uris: the resources to watch. Without any of these every list that the server tells of.
            timeout: seconds that the server may take to agree.
        """
        wanted = ChangeFilter.create(uris, tools=tools, prompts=prompts, resources=resources)
        return ChangeStream(self._session, wanted, self._make_limits(timeout))

    # ----------------------------------------------------------------- the rest

    async def set_log_level(self, level: LogLevel, *, timeout: float | None = None) -> None:
        """Ask for log messages of this level and graver ones; `on_log` hears them.

        Raises:
            CapabilityNotDeclared: the server does not offer a log.
        """
        if level not in LOG_LEVEL_RANKS:
            raise ValueError(f"level: {level!r} is not a log level; there are {', '.join(LOG_LEVEL_RANKS)}")
        await self._session.set_log_level(level, self._make_limits(timeout))

    async def ping(self, *, timeout: float | None = None) -> None:
        """Return if the server answers. In the stateless era it is asked what it is.

        Raises:
            RequestTimeout: it did not answer in time.
        """
        await self._session.ping(self._make_limits(timeout))

    async def cancel(self, request_id: RequestId, reason: str | None = None) -> bool:
        """Give up a request of ours; False if there is none of this id. Whoever waits for it gets `MCPError`.

        Args:
            request_id: one of `pending`.
            reason: what the server is told.
        """
        return self._session.dispatcher.cancel(request_id, reason)

    async def notify_roots_changed(self) -> None:
        """Tell the server that the roots have changed. In the stateless era it asks each time it needs them.

        Raises:
            CapabilityNotDeclared: this client has no roots.
        """
        if not self._local_peer.has_capability("roots"):
            raise CapabilityNotDeclared("roots", "this client does not declare 'roots'")
        await self._session.notify_if_session("notifications/roots/list_changed")

    # ----------------------------------------------------------------- raw

    @overload
    async def request(
        self,
        method: str,
        params: WireStruct | Mapping[str, JSON] | None = None,
        *,
        result_type: type[T],
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        retry: bool | None = None,
    ) -> T: ...

    @overload
    async def request(
        self,
        method: str,
        params: WireStruct | Mapping[str, JSON] | None = None,
        *,
        result_type: None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        retry: bool | None = None,
    ) -> Result: ...

    async def request(
        self,
        method: str,
        params: WireStruct | Mapping[str, JSON] | None = None,
        *,
        result_type: type[Any] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        retry: bool | None = None,
    ) -> Any:
        """The answer to any request, be it one of the protocol or not.

        Args:
            method: its name.
            params: its parameters.
            result_type: what to make of the result, such as `dict`; by default a `Result`, `raw` included.
            timeout: seconds to wait.
            progress: hears how far it has come.
            meta: what to put into `_meta`.
            retry: whether it may be sent once more although the server may have got it; by default if it is a
                method of the protocol that only reads.

        Raises:
            LocalProtocolError: the method is one of the protocol, and may not be sent in this revision.
        """
        row = method if method in _PROTOCOL_METHODS else Row(method, ClientRequestParams, Result)
        limits = self._make_limits(timeout, progress)
        result = await self._session.request(row, params, limits, meta, safe=retry)
        if result_type is None or type(result) is result_type:
            return result
        return decode_value(result.raw or b"{}", result_type, f"the result of {method}")

    async def notify(
        self, method: str, params: NotificationParams | Mapping[str, JSON] | None = None
    ) -> None:
        """Say anything to the server, be it a notice of the protocol or not."""
        row = method if method in _PROTOCOL_METHODS else Row(method, NotificationParams)
        await self._session.run_with_retry(lambda link, _: link.notify(row, params), NO_LIMITS)
