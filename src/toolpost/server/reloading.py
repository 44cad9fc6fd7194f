"""`ReloadableServer`: replaces the server behind connected clients when its code changes.

Forwards every request to the current server. The lifespan of a replaced server stays open until its requests
are finished. `cli` loads the next server.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, Final

from msgspec.structs import replace

from toolpost.errors import InternalError
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import SUBSCRIPTIONS_LISTEN
from toolpost.server.context import Context
from toolpost.server.handler import Handler
from toolpost.server.options import Lifespan
from toolpost.server.registry.registry_server import RegistryServer
from toolpost.server.runtime.change_broadcast import LIST_CHANGED
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.server.runtime.dispatch import Call, Next, RouteResult, run_middleware, serve_forwarded
from toolpost.types.base import Params, Result
from toolpost.types.notifications import ListenParams

logger: Final = logging.getLogger("toolpost.server")


class ReloadableServer(Handler):
    """A server that can be replaced while it serves.

    Info, capabilities, instructions, lists, middleware, limits and lifespan are those of the current server.
    Sessions, subscriptions, keys and stored data outlive it; so do `auth=` and `store=` of the first one.
    `lifespan` is entered around all of them, with this object.
    """

    runs_extensions = False

    def __init__(self, first: Handler, *, lifespan: Lifespan | None = None) -> None:
        _check_replaceable(first)
        super().__init__(
            first.info.name,
            extensions=first.extensions,
            store=first._store,  # noqa: SLF001 - the same class
            keys=first._state_keys,  # noqa: SLF001 - as above
            auth=first.auth,
            telemetry=False,  # the current server has its own
        )
        self.prepare()
        self.middleware = [self._apply_middleware]
        self.routes = {SUBSCRIPTIONS_LISTEN: self._listen}  # subscriptions outlive the server
        self.fallback_route = self._forward
        self._outer_lifespan = lifespan
        self._running: set[_RunningServer] = set()
        self._current: _RunningServer | None = None
        first.inherit_state_from(self)
        self._switch_to(first)

    async def replace(self, server: Handler) -> None:
        """Replace the current server, once the lifespan of the new one is entered.

        The old server finishes its running requests. Clients are notified that the lists of both changed.
        If the lifespan raises, so does this method, and the old server stays.
        """
        _check_replaceable(server)
        before = self._current
        changed = _get_lists(self.server) | _get_lists(server)
        if before is None:
            raise RuntimeError("a server can be replaced only while it is running")
        server.inherit_state_from(self)
        self._current = await self._start_server(server)
        self._switch_to(server)
        before.release()
        for listener in self.broadcaster.get_subscribers():
            if isinstance(listener, ServerConversation):
                connection = listener.connection
                connection.local_peer, connection.limit = server.local_peer, server.max_in_flight
        for name in filter(changed.__contains__, LIST_CHANGED):
            self.broadcaster.broadcast_list_changed(name)

    def _switch_to(self, server: Handler) -> None:
        self.server = server
        self.info, self.instructions = server.info, server.instructions
        self.revisions, self.extensions = server.revisions, server.extensions
        self.max_in_flight = server.max_in_flight

    async def _start_server(self, server: Handler) -> "_RunningServer":
        running = _RunningServer(server)
        self._running.add(running)
        running.task.add_done_callback(lambda _: self._running.discard(running))
        try:
            await running.started
        except asyncio.CancelledError:
            running.task.cancel()
            await asyncio.wait([running.task])
            raise
        return running

    @asynccontextmanager
    async def open_lifespan(self) -> AsyncGenerator[Any]:
        """The lifespan, which ends after those of all running servers."""
        async with super().open_lifespan():
            try:
                self._current = await self._start_server(self.server)
                async with nullcontext() if self._outer_lifespan is None else self._outer_lifespan(self):
                    yield None
            finally:
                self._current = None
                for running in self._running:
                    running.stop_event.set()
                await asyncio.gather(*(running.task for running in self._running), return_exceptions=True)

    @property
    def local_peer(self) -> LocalPeer:  # pyright: ignore[reportIncompatibleVariableOverride] - it changes with the server
        """How the current server presents itself."""
        return self.server.local_peer

    @property
    def has_header_parameters(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - as above
        """Whether HTTP headers mirror parameters of a tool."""
        return self.server.has_header_parameters

    def find_header_parameters(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """Return the parameters of a tool that HTTP mirrors in headers."""
        return self.server.find_header_parameters(tool)

    def has_entry(self, method: str, name: str) -> bool:
        """Return whether the tool or prompt of a request exists."""
        return self.server.has_entry(method, name)

    def get_required_scopes(self, method: str, about: str) -> frozenset[str]:
        """Return the scopes that a request needs."""
        return self.server.get_required_scopes(method, about)

    @contextmanager
    def _hold_current(self, ctx: Context) -> Generator[tuple[Handler, Context]]:
        """Yield the current server and a context for it; its lifespan stays open meanwhile."""
        running = self._current
        assert running is not None, "the lifespan has not started"
        running.use_count += 1
        try:
            yield running.server, ctx.copy_for_server(running.server, running.lifespan)
        finally:
            running.release()

    async def _forward(self, ctx: Context, params: Params) -> RouteResult:  # noqa: ARG002 - `incoming` has them
        with self._hold_current(ctx) as (server, theirs):
            return await serve_forwarded(server, theirs)

    async def _listen(self, ctx: Context, params: ListenParams) -> Result:
        async def listen(_: Context, params: ListenParams) -> Result:
            return await self._subscriptions.serve(ctx, params.notifications)

        with self._hold_current(ctx) as (server, theirs):
            middleware = server.middleware  # not held for as long as a client listens
        return await run_middleware(middleware, Call(SUBSCRIPTIONS_LISTEN, params, theirs), listen)

    async def _apply_middleware(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Apply the middleware of the current server to notifications; `_forward` does it for requests."""
        if not call.is_notification:
            return await next(call)

        async def go_on(context: Context, params: Any) -> Any:
            return await next(replace(call, context=context, params=params))

        with self._hold_current(call.context) as (server, theirs):
            return await run_middleware(server.middleware, replace(call, context=theirs), go_on)

    async def handle_notification(self, method: str, params: Any, ctx: Context) -> None:
        """Forward a notification of a client."""
        with self._hold_current(ctx) as (server, theirs):
            await server.handle_notification(method, params, theirs)

    async def subscribe(self, uri: str, ctx: Context) -> None:
        """Forward a subscription."""
        with self._hold_current(ctx) as (server, theirs):
            await server.subscribe(uri, theirs)

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        """Forward the end of a subscription."""
        with self._hold_current(ctx) as (server, theirs):
            await server.unsubscribe(uri, theirs)


class _RunningServer:
    """A server and its lifespan, which stays open until it is replaced and its requests are finished.

    One task enters the lifespan and leaves it, as some context managers demand.
    """

    def __init__(self, server: Handler) -> None:
        self.server = server
        self.lifespan: Any = None
        self.stop_event = asyncio.Event()
        self.use_count = 1  # it is the current one
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with self.server.hold_lifespan() as self.lifespan:
                self.started.set_result(None)
                await self.stop_event.wait()
        except BaseException as error:  # whatever a lifespan raises
            is_cancelled = not isinstance(error, Exception)
            if not self.started.done():
                reason = InternalError("the lifespan was cancelled") if is_cancelled else error
                self.started.set_exception(reason)
            elif not is_cancelled:
                logger.exception("the lifespan of %s failed on exit", self.server.info.name)
            if is_cancelled:
                raise

    def release(self) -> None:
        """Decrement the use count; at zero, end the lifespan."""
        self.use_count -= 1
        if not self.use_count:
            self.stop_event.set()


def _check_replaceable(server: Handler) -> None:
    if server.is_per_client:
        raise TypeError(f"{server.info.name} selects a server per client and cannot be replaced")


def _get_lists(server: Handler) -> set[str]:
    return server.used_lists if isinstance(server, RegistryServer) else set(LIST_CHANGED)
