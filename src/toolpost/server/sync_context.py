"""`SyncContext`: a context for functions that are not async. The same names, without `await`.

Such functions run in a thread; each method here runs that of `Context` on the loop and waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from toolpost import types
from toolpost.errors import ChannelClosed, UrlElicitationRequired
from toolpost.principal import Principal
from toolpost.server.context import Context
from toolpost.server.request import ClientInfo, ContextRequest
from toolpost.server.state import SyncState
from toolpost.types.base import JSON, Meta, Number, RequestId, Result
from toolpost.types.content import Content, ResourceContents
from toolpost.types.initialize import LogLevel
from toolpost.types.tools import Tool

if TYPE_CHECKING:
    from toolpost.server.elicitation.forms import Accepted, Cancelled, Declined

P = ParamSpec("P")
T = TypeVar("T")


class SyncContextRequest:
    """As `ContextRequest`, for a thread."""

    __slots__ = ("_request", "_wait")

    def __init__(
        self, request: ContextRequest, wait: Callable[[Coroutine[Any, Any, Result]], Result]
    ) -> None:
        self._request = request
        self._wait = wait

    def __call__(
        self, method: str, params: Mapping[str, JSON] | None = None, *, timeout: float | None = None
    ) -> Result:
        """Send a request of a method of your own to the client."""
        return self._wait(self._request(method, params, timeout=timeout))

    @property
    def headers(self) -> Mapping[str, str]:
        """Its HTTP headers, by their names in lower case; none on other transports."""
        return self._request.headers

    @property
    def id(self) -> RequestId | None:
        """Its id; a notification has none."""
        return self._request.id

    @property
    def method(self) -> str:
        """Its method."""
        return self._request.method

    @property
    def meta(self) -> Meta:
        """Its `_meta`; that of a notification is in its parameters."""
        return self._request.meta


class SyncContext:
    """One request, as the function that serves it sees it from its thread.

    A thread cannot be stopped. When its request is cancelled, waiting and later calls raise
    `LocalProtocolError`; when the client has gone, `ChannelClosed`.

    Examples:
        >>> server = Server("shop")
        >>> @server.tool
        ... def count(ctx: SyncContext) -> int:
        ...     ctx.progress(1, 2)
        ...     return 0 if ctx.cancelled else 7
        >>> with SyncClient(server) as mcp:
        ...     mcp.call_tool("count").data
        7
    """

    __slots__ = ("_context", "_loop")

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except CancelledError as error:
            raise ChannelClosed("the server has ended in the meantime") from error
        except RuntimeError as error:
            if not self._loop.is_closed():
                raise
            work.close()
            raise ChannelClosed("the server has ended") from error

    @property
    def request(self) -> SyncContextRequest:
        """The request itself; call it to send one of a method of your own to the client."""
        return SyncContextRequest(self._context.request, self._wait)

    @property
    def client(self) -> ClientInfo:
        """The client that sent the request."""
        return self._context.client

    @property
    def revision(self) -> str:
        """The protocol revision that the client speaks."""
        return self._context.revision

    @property
    def principal(self) -> Principal | None:
        """The principal of the request, if it is known."""
        return self._context.principal

    def require(self, *scopes: str | Iterable[str]) -> None:
        """Raise unless the request has these scopes; see `Context.require`."""
        self._context.require(*scopes)

    @property
    def state(self) -> SyncState:
        """Values that outlast this request; see `Context.state`."""
        return SyncState(self._context.state, self._wait)

    @property
    def lifespan(self) -> Any:
        """The value of the server's lifespan."""
        return self._context.lifespan

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled, or has ended: check it now and then."""
        return self._context.cancelled

    def progress(self, progress: Number, total: Number | None = None, message: str | None = None) -> None:
        """Report progress; see `Context.progress`."""
        self._wait(self._context.progress(progress, total, message))

    def log(self, level: LogLevel, data: JSON, *, logger: str | None = None) -> None:
        """Send a log message, if the client wants this level."""
        self._wait(self._context.log(level, data, logger=logger))

    def debug(self, data: JSON) -> None:
        """Log at level "debug"."""
        self.log("debug", data)

    def info(self, data: JSON) -> None:
        """Log at level "info"."""
        self.log("info", data)

    def warning(self, data: JSON) -> None:
        """Log at level "warning"."""
        self.log("warning", data)

    def error(self, data: JSON) -> None:
        """Log at level "error"."""
        self.log("error", data)

    def notify(self, method: str, params: Mapping[str, JSON] | None = None) -> None:
        """Send a notification of a method of your own, on the stream of this request."""
        self._wait(self._context.notify(method, params))

    def notify_resource_updated(self, uri: str) -> None:
        """Notify all subscribers of a resource that it has changed."""
        self._wait(self._context.notify_resource_updated(uri))

    def close_stream(self) -> None:
        """Close the HTTP stream of this request; see `Context.close_stream`."""
        self._wait(self._context.close_stream())

    def read_resource(self, uri: str) -> list[ResourceContents]:
        """Read a resource of this server."""
        return self._wait(self._context.read_resource(uri))

    @overload
    def elicit(
        self, message: str, form: type[T], *, key: str | None = None, timeout: float | None = None
    ) -> "Accepted[T] | Declined | Cancelled": ...

    @overload
    def elicit(
        self, message: str, form: Any, *, key: str | None = None, timeout: float | None = None
    ) -> "Accepted[Any] | Declined | Cancelled": ...

    def elicit(
        self, message: str, form: Any, *, key: str | None = None, timeout: float | None = None
    ) -> "Accepted[Any] | Declined | Cancelled":
        """Ask the user, and return the answer."""
        return self._wait(self._context.elicit(message, form, key=key, timeout=timeout))

    def elicit_url(
        self,
        message: str,
        url: str,
        *,
        elicitation_id: str | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> "Accepted[None] | Declined | Cancelled":
        """Ask the user to visit a URL."""
        return self._wait(
            self._context.elicit_url(message, url, elicitation_id=elicitation_id, key=key, timeout=timeout)
        )

    def url_required(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> UrlElicitationRequired:
        """Return the error to raise if the user has to visit a URL before the request can be served."""

        async def make_error() -> UrlElicitationRequired:
            return self._context.url_required(message, url, elicitation_id=elicitation_id)

        return self._wait(make_error())

    def sample(
        self,
        messages: "str | Content | types.SamplingMessage | Sequence[types.SamplingMessage | str]",
        *,
        max_tokens: int = 1024,
        system: str | None = None,
        model: "types.ModelPreferences | str | None" = None,
        temperature: Number | None = None,
        stop: list[str] | None = None,
        tools: list[Tool] | None = None,
        tool_choice: Literal["auto", "required", "none"] | None = None,
        metadata: dict[str, JSON] | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> "types.CreateMessageResult":
        """Ask the client's model, and return what it says."""
        return self._wait(
            self._context.sample(
                messages,
                max_tokens=max_tokens,
                system=system,
                model=model,
                temperature=temperature,
                stop=stop,
                tools=tools,
                tool_choice=tool_choice,
                metadata=metadata,
                key=key,
                timeout=timeout,
            )
        )

    @overload
    def step(self, name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def step(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def step(self, name: str, fn: Callable[P, Awaitable[T] | T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function once for each call; see `Context.step`."""
        if iscoroutinefunction(fn):
            return self._wait(self._context.step(name, fn, *args, **kwargs))
        # In this thread: waiting for another one of the pool could be a deadlock.
        return self._context.replay.step_in_thread(self._wait, name, fn, lambda: fn(*args, **kwargs))

    def roots(self, *, key: str | None = None, timeout: float | None = None) -> "list[types.Root]":
        """Return the roots of the client."""
        return self._wait(self._context.roots(key=key, timeout=timeout))
