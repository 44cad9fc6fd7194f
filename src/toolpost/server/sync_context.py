"""`SyncContext`: a context for functions that are not async. The same names, without `await`.

Such functions run in a thread. Each method runs that of `Context` on the loop and waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import CancelledError
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from toolpost.errors import ChannelClosed, UrlElicitationRequired
from toolpost.principal import Principal
from toolpost.server.context import Context
from toolpost.server.context_request import ClientInfo, ContextRequest
from toolpost.server.state import SyncState
from toolpost.types.base import Result

P = ParamSpec("P")
T = TypeVar("T")


def _wait_for(
    method: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncContext", P], T]:
    """Return the synchronous twin of a method, with the same signature."""

    @wraps(method)
    def wait(self: "SyncContext", /, *args: P.args, **kwargs: P.kwargs) -> T:
        run = getattr(self._context, method.__name__)  # pyright: ignore[reportPrivateUsage] - a method of it
        return self._wait(run(*args, **kwargs))  # pyright: ignore[reportPrivateUsage] - as above

    return wait


class SyncContext:
    """The context of one request, for a function that is not async.

    A thread cannot be stopped. When its request is cancelled, its current and later calls raise
    `LocalProtocolError`; after a disconnect, they raise `ChannelClosed`.

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
            raise ChannelClosed("the server stopped during the call") from error
        except RuntimeError as error:
            if not self._loop.is_closed():
                raise
            work.close()
            raise ChannelClosed("the server has stopped") from error

    @property
    def request(self) -> ContextRequest[Result]:
        """The request itself; call it to send a request with a custom method to the client."""
        return ContextRequest(self._context, self._wait)

    @property
    def client(self) -> ClientInfo:
        """The client that sent the request."""
        return self._context.client

    @property
    def revision(self) -> str:
        """The protocol revision of the client."""
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
        """Whether the request was cancelled, or has ended: check it in long loops."""
        return self._context.cancelled

    def url_required(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> UrlElicitationRequired:
        """Return the error to raise if the user must visit a URL first."""

        async def make_error() -> UrlElicitationRequired:
            return self._context.url_required(message, url, elicitation_id=elicitation_id)

        return self._wait(make_error())

    progress = _wait_for(Context.progress)
    """Report progress; see `Context.progress`."""
    log = _wait_for(Context.log)
    """Send a log message, if the client wants this level."""
    debug = _wait_for(Context.debug)
    """Log at level "debug"."""
    info = _wait_for(Context.info)
    """Log at level "info"."""
    warning = _wait_for(Context.warning)
    """Log at level "warning"."""
    error = _wait_for(Context.error)
    """Log at level "error"."""
    notify = _wait_for(Context.notify)
    """Send a notification with a custom method, on the stream of this request."""
    notify_resource_updated = _wait_for(Context.notify_resource_updated)
    """Notify all subscribers of a resource that it has changed."""
    close_stream = _wait_for(Context.close_stream)
    """Close the HTTP stream of this request; see `Context.close_stream`."""
    read_resource = _wait_for(Context.read_resource)
    """Read a resource of this server."""
    background = _wait_for(Context.background)
    """Let this call go on as a task; see `Context.background`."""
    detach = _wait_for(Context.detach)
    """Let another program finish this task; see `Context.detach`."""
    elicit = _wait_for(Context.elicit)
    """Ask the user, and return the answer."""
    elicit_url = _wait_for(Context.elicit_url)
    """Ask the user to visit a URL."""
    sample = _wait_for(Context.sample)
    """Ask the client's model, and return its response."""
    roots = _wait_for(Context.roots)
    """Return the roots of the client."""

    @overload
    def step(self, name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def step(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def step(self, name: str, fn: Callable[P, Awaitable[T] | T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function once per call; see `Context.step`."""
        if iscoroutinefunction(fn):
            return self._wait(self._context.step(name, fn, *args, **kwargs))
        # Not in another thread of the pool: waiting for one could be a deadlock.
        return self._context.replay.step_in_thread(self._wait, name, fn, lambda: fn(*args, **kwargs))
