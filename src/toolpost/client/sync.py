"""`SyncClient`: the methods of a client without `await`, for scripts and notebooks.

Owns an ordinary `Client` and the thread with an event loop that it runs in; each method submits its work
there and waits. Threads that were not closed are closed when the interpreter exits.
"""

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
)
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeAlias, TypeVar

from toolpost.client.changes import Change, ChangeStream
from toolpost.client.client import Client, ServerFacts
from toolpost.client.connection.status import Transition
from toolpost.errors import ChannelClosed, LocalProtocolError
from toolpost.types.base import RequestId

if TYPE_CHECKING:
    from toolpost.client.tasks import TaskHandle, TaskState
    from toolpost.client.tools import ToolResult

CANCEL_TIMEOUT: Final = 5.0  # seconds for cancelled tasks to end: ending a child process takes a while
EXIT_TIMEOUT: Final = 5.0  # seconds for all clients to close when the interpreter exits

T = TypeVar("T")
CoroutineFactory: TypeAlias = Callable[[], Coroutine[Any, Any, T]]

logger: Final = logging.getLogger("toolpost.client")

_LOOP_THREADS: Final[set["LoopThread"]] = set()  # those that run: a script may not have closed its client


class LoopThread:
    """A thread with an event loop. `cleanup` runs last."""

    def __init__(self, cleanup: CoroutineFactory[None]) -> None:
        self._cleanup = cleanup
        self._lock = threading.Lock()
        self.is_closing = False
        self._is_closed = False
        self._stop_requested = asyncio.Event()
        self._futures: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run_loop, name="toolpost client", daemon=True)
        _LOOP_THREADS.add(self)
        self.thread.start()

    def submit(self, work: CoroutineFactory[T]) -> "Future[T] | None":
        """Start some work; None if the thread is closing. Cancelling the future cancels the work."""
        self._check_thread()
        with self._lock:
            return None if self.is_closing else self._submit_to_loop(work)

    def run(self, work: CoroutineFactory[T]) -> tuple[T] | None:
        """Run some work and wait for it; None if the thread is closing."""
        future = self.submit(work)
        if future is None:
            return None
        try:
            return (future.result(),)
        except CancelledError:
            raise ChannelClosed("the client was closed") from None
        except BaseException:  # an interrupt, or an error of the work
            future.cancel()  # also cancels the request at the server
            raise

    def close(self) -> None:
        """Run the clean-up and end the thread. Several threads may close it at once."""
        if self.is_forked:
            return  # the connection belongs to the other process
        self._check_thread()
        cleanup = self.start_closing()
        try:
            if cleanup is not None:
                cleanup.result()
        except CancelledError:
            pass  # another thread has closed it first
        finally:
            self.stop()
            self.thread.join()

    def start_closing(self) -> "Future[None] | None":
        """Refuse further work and start the clean-up; None if that is done."""
        with self._lock:
            self.is_closing = True
            return None if self._is_closed else self._submit_to_loop(self._cleanup)

    def stop(self) -> None:
        """Cancel all tasks, and let the thread end."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop_requested.set)

    def _check_thread(self) -> None:
        if threading.current_thread() is self.thread:
            raise LocalProtocolError("a SyncClient would deadlock in an async callback; use a Client there")
        if self.is_forked:
            raise LocalProtocolError("a SyncClient cannot be used after a fork; make one in each process")

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in another process: the thread stayed behind."""
        return not (self.is_closing or self.thread.is_alive())

    def _submit_to_loop(self, work: CoroutineFactory[T]) -> "Future[T]":
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def _run_loop(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        main = loop.create_task(self._main())
        try:
            while not main.done():
                try:
                    loop.run_until_complete(main)
                except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                    # A task has ended with it, or a callback stopped the loop. The others go on.
                    logger.debug("the client thread continues after %r", error)
        finally:
            with self._lock:
                self.is_closing = self._is_closed = True
            for future in list(self._futures):
                future.cancel()
            loop.close()
            _LOOP_THREADS.discard(self)

    async def _main(self) -> None:
        with suppress(asyncio.CancelledError):
            await self._stop_requested.wait()
        with self._lock:
            self.is_closing = self._is_closed = True
        await asyncio.sleep(0)  # work that was submitted last becomes a task
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            _, stuck = await asyncio.wait(rest, timeout=CANCEL_TIMEOUT)
            if stuck:
                logger.warning("%d tasks did not stop and were abandoned", len(stuck))
        await self._loop.shutdown_asyncgens()


@atexit.register
def _close_all() -> None:
    """Close all threads at once, in bounded time: a server that ignores the end of its stdin would stay."""
    running = [each for each in list(_LOOP_THREADS) if each.thread.is_alive()]  # none is after a fork
    deadline = time.monotonic() + EXIT_TIMEOUT + CANCEL_TIMEOUT
    wait([cleanup for each in running if (cleanup := each.start_closing())], EXIT_TIMEOUT)
    for each in running:
        each.stop()
    for each in running:
        each.thread.join(max(0.0, deadline - time.monotonic()))


# --------------------------------------------------------------------- the client

P = ParamSpec("P")


def _copy_signature(
    _like: Callable[P, Client],
) -> Callable[[Callable[..., None]], Callable[Concatenate["SyncClient", P], None]]:
    """Give a constructor the parameters of `Client`."""
    return lambda constructor: constructor


def _make_blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncClient", P], T]:
    """Return a blocking version of a method."""

    @wraps(method)
    def call(self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda client: method(client, *args, **kwargs))  # pyright: ignore[reportPrivateUsage] - a method

    return call


def _like(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[[Callable[..., Any]], Callable[Concatenate["SyncClient", P], T]]:
    """Replace a stub by the blocking version of a generic method: pyrefly binds `self` only for a `def`."""
    return lambda _stub: _make_blocking(method)


def _make_blocking_iterator(
    method: Callable[Concatenate[Client, P], AsyncIterable[T]],
) -> Callable[Concatenate["SyncClient", P], Iterator[T]]:
    """Return a blocking version of an iterator."""

    @wraps(method)
    def call(self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._iterate(lambda client: method(client, *args, **kwargs))  # pyright: ignore[reportPrivateUsage] - a method

    return call


def _make_blocking_stream(
    method: Callable[Concatenate[Client, P], ChangeStream],
) -> Callable[Concatenate["SyncClient", P], "SyncChangeStream"]:
    """Return a blocking version of a stream, which starts at once."""

    @wraps(method)
    def call(self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs) -> SyncChangeStream:
        async def start(client: Client) -> ChangeStream:
            stream = method(client, *args, **kwargs)
            await stream.start()
            return stream

        stream = self._run(start)  # pyright: ignore[reportPrivateUsage] - a method
        changes = self._iterate(lambda _: stream, ends=True)  # pyright: ignore[reportPrivateUsage] - a method
        return SyncChangeStream(changes, lambda: self._run(lambda _: stream.aclose()))  # pyright: ignore[reportPrivateUsage] - a method

    return call


class SyncChangeStream(Iterator[Change]):
    """The changes on a server, one after the other: `for change in client.listen(…):`.

    It has subscribed when `listen` returns. As a context manager it ends with the block.
    """

    def __init__(self, changes: Generator[Change], stop: Callable[[], None]) -> None:
        self._changes = changes
        self._stop = stop

    def __next__(self) -> Change:
        """Wait for the next change."""
        return next(self._changes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. Closing twice is fine."""
        self._changes.close()
        with suppress(ChannelClosed):
            self._stop()


class SyncClient(ServerFacts):
    """A client for synchronous code. Takes the arguments of `Client`.

    Use it as `with SyncClient(target) as client:`, or call `connect` and `close`. Every method may be called
    from any thread. A sync callback may call the client. An async callback may not, because it runs in the
    client's own thread.

    Examples:
        >>> server = Server("shop")
        >>> @server.tool
        ... def price(item: str) -> float:
        ...     return 2.5
        >>> with SyncClient(server) as mcp:
        ...     mcp.call_tool("price", {"item": "pen"}).data
        2.5
    """

    @_copy_signature(Client)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = Client(*args, **options)
        self._session = self._client._session  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - they share it
        self._lock = threading.Lock()
        self._loop_thread: LoopThread | None = None
        self._connecting = 0

    # ----------------------------------------------------------------- the connection

    def connect(self) -> Self:
        """Connect to the server unless already connected; return the client. Raises like `Client.connect`."""
        with self._lock:
            self._connecting += 1
        try:
            while (loop_thread := self._get_loop_thread()).run(self._client.connect) is None:
                loop_thread.thread.join()  # it is closing; only then the client can use another one
        except BaseException:  # also an interrupt: the thread must not stay behind
            self._abort_connect()
            raise
        with self._lock:
            self._connecting -= 1
        return self

    def close(self) -> None:
        """Disconnect and end the thread. Closing twice is fine."""
        if self._loop_thread is not None:
            self._loop_thread.close()

    def _get_loop_thread(self) -> LoopThread:
        """Return the thread of the client, started if there is none."""
        with self._lock:
            now = self._loop_thread
            if now is None or not (now.is_forked or now.thread.is_alive()):
                now = self._loop_thread = LoopThread(self._client.close)
            return now

    def _abort_connect(self) -> None:
        """Close the thread after a failed connect, unless another thread connects or has connected."""
        with self._lock:
            self._connecting -= 1
            loop_thread = self._loop_thread
            if loop_thread is None or self._connecting or self._client.connected:
                return
            loop_thread.start_closing()  # now, so that the next connect uses another thread
        loop_thread.close()

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run some work on the client in its thread. Raises `ChannelClosed` if it is not connected."""
        done = None if self._loop_thread is None else self._loop_thread.run(lambda: work(self._client))
        if done is None:
            hint = "use `with client:`, or `client.connect()`"
            raise ChannelClosed("the client is not connected", sent=False, hint=hint)
        return done[0]

    def _iterate(self, begin: Callable[[Client], AsyncIterable[T]], *, ends: bool = False) -> Generator[T]:
        """Iterate over what `begin` returns; with `ends`, stop when the client is closed."""
        steps: AsyncIterator[T] | None = None

        async def step(client: Client) -> T | None:
            nonlocal steps
            if steps is None:
                steps = aiter(begin(client))
            return await anext(steps, None)

        async def stop(_: Client) -> None:
            if isinstance(steps, AsyncGenerator):
                await steps.aclose()

        try:
            while (item := self._run(step)) is not None:
                yield item
        except ChannelClosed:
            is_closing = self._loop_thread is None or self._loop_thread.is_closing
            if not ends or not is_closing:
                raise
        finally:
            with suppress(ChannelClosed, LocalProtocolError):  # closed, or left in the client's own thread
                self._run(stop)

    # ----------------------------------------------------------------- the server

    @property
    def pending(self) -> Mapping[RequestId, str]:
        """The requests in flight: id → method."""

        async def look(client: Client) -> Mapping[RequestId, str]:
            return client.pending

        return self._run(look)

    def events(self) -> Iterator[Transition]:
        """Iterate over the transitions of the connection from now on, until the client is closed."""
        events = self._client.events()  # from now on, and not from the first step

        def each() -> Iterator[Transition]:
            with suppress(ChannelClosed):
                yield from self._iterate(lambda _: events)

        return each()

    # ----------------------------------------------------------------- requests

    list_tools = _make_blocking(Client.list_tools)
    list_tools_pages = _make_blocking_iterator(Client.list_tools_pages)
    list_resources = _make_blocking(Client.list_resources)
    list_resources_pages = _make_blocking_iterator(Client.list_resources_pages)
    list_resource_templates = _make_blocking(Client.list_resource_templates)
    list_resource_templates_pages = _make_blocking_iterator(Client.list_resource_templates_pages)
    read_resource = _make_blocking(Client.read_resource)
    subscribe = _make_blocking(Client.subscribe)
    unsubscribe = _make_blocking(Client.unsubscribe)
    list_prompts = _make_blocking(Client.list_prompts)
    list_prompts_pages = _make_blocking_iterator(Client.list_prompts_pages)
    get_prompt = _make_blocking(Client.get_prompt)
    complete = _make_blocking(Client.complete)
    list_skills = _make_blocking(Client.list_skills)
    read_skill = _make_blocking(Client.read_skill)
    listen = _make_blocking_stream(Client.listen)
    set_log_level = _make_blocking(Client.set_log_level)
    ping = _make_blocking(Client.ping)
    cancel = _make_blocking(Client.cancel)
    notify_roots_changed = _make_blocking(Client.notify_roots_changed)
    notify = _make_blocking(Client.notify)
    forward = _make_blocking(Client.forward)

    @_like(Client.call_tool)
    def call_tool(self) -> Any:
        """As `Client.call_tool`."""

    @_like(Client.begin_call)
    def begin_call(self) -> Any:
        """As `Client.begin_call`."""

    def start_task(self, *args: Any, **options: Any) -> "SyncTaskHandle":
        """As `Client.start_task`."""
        return SyncTaskHandle(self._run(lambda client: client.start_task(*args, **options)), self)

    def task(self, task_id: str, *, result_type: type[Any] | None = None) -> "SyncTaskHandle":
        """As `Client.task`."""
        return SyncTaskHandle(self._client.task(task_id, result_type=result_type), self)

    @_like(Client.resume)
    def resume(self) -> Any:
        """As `Client.resume`."""

    @_like(Client.request)
    def request(self) -> Any:
        """As `Client.request`."""


class SyncTaskHandle:
    """A call that the server runs as a task: `TaskHandle` without `await`.

    Examples:
        >>> server = Server("lab")
        >>> @server.tool(task=True)
        ... def crunch(data: str) -> str:
        ...     return data.upper()
        >>> with SyncClient(server) as mcp:
        ...     mcp.start_task("crunch", {"data": "abc"}).result().text
        'ABC'
    """

    def __init__(self, handle: "TaskHandle[Any]", client: SyncClient) -> None:
        self.handle = handle
        """The handle in the client's own thread, with the facts: `id`, `status`, `message`, `state`."""
        self._run = client._run  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - a part of it
        self._iterate = client._iterate  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as above

    def __iter__(self) -> "Iterator[TaskState]":
        """The states of the task, until it has ended."""
        return self._iterate(lambda _: self.handle)

    def refresh(self) -> "TaskState":
        """As `TaskHandle.refresh`."""
        return self._run(lambda _: self.handle.refresh())

    def result(self, *, timeout: float | None = None) -> "ToolResult[Any]":
        """As `TaskHandle.result`."""
        return self._run(lambda _: self.handle.result(timeout=timeout))

    def cancel(self) -> None:
        """As `TaskHandle.cancel`."""
        self._run(lambda _: self.handle.cancel())
