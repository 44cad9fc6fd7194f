"""`ReloadableServer`: replaces the server behind connected clients when its code changes.

A handler that forwards every request to the current server. The lifespan of a replaced server stays open
until its requests are finished. Where the next server comes from is not known here.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from toolpost.errors import InternalError
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import SUBSCRIPTIONS_LISTEN
from toolpost.server.context import Context
from toolpost.server.handler import Handler
from toolpost.server.options import Lifespan
from toolpost.server.registry.registry_server import LIST_KINDS, RegistryServer
from toolpost.server.runtime.change_broadcast import LIST_CHANGED
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.server.runtime.eager import is_pending
from toolpost.server.runtime.request import Call, Next, RouteResult, Routes, run_middleware, start_request
from toolpost.types.base import Params, Result
from toolpost.types.initialize import ServerCapabilities
from toolpost.types.notifications import ListenParams

logger: Final = logging.getLogger("toolpost.server")


class ReloadableServer(Handler):
    """A server that can be replaced while it serves.

    Info, capabilities, instructions, lists, middleware, limits and lifespan are those of the current server.
    Sessions, subscriptions, keys and stored data outlive it; so do `auth=` and `store=` of the first one.
    `lifespan` is entered around all of them, with this object.
    """

    is_forwarding = True

    def __init__(self, first: Handler, *, lifespan: Lifespan | None = None) -> None:
        _check_replaceable(first)
        super().__init__(
            first.info.name,
            extra_methods=first.extra_methods.values(),
            store=first._store,  # noqa: SLF001 - the same class
            keys=first._state_keys,  # noqa: SLF001 - as above
            auth=first.auth,
        )
        self.prepare()
        self.middleware = [self._apply_middleware]
        self._outer_lifespan = lifespan
        self._running: set[_RunningServer] = set()
        self._current: _RunningServer | None = None
        self._current_server = first
        first.inherit_state_from(self)
        self._switch_to(first)

    @property
    def server(self) -> Handler:
        """The current server."""
        return self._current_server

    async def replace(self, server: Handler) -> None:
        """Replace the current server, once the lifespan of the new one is entered.

        Running requests are finished by the old one. Clients are notified that the lists of both changed.
        Raises what the lifespan raises; the old server goes on then.
        """
        _check_replaceable(server)
        before = self._current
        changed = _find_changed_lists(self._current_server) | _find_changed_lists(server)
        if before is None:
            raise RuntimeError("a server can be replaced only while it serves")
        server.inherit_state_from(self)
        self._current = await self._start_server(server)
        self._switch_to(server)
        before.release()
        for listener in self.broadcaster.get_subscribers():
            if isinstance(listener, ServerConversation):
                connection = listener.connection
                connection.extra, connection.limit = server.extra_methods, server.max_in_flight
        for what in filter(changed.__contains__, LIST_CHANGED):
            self.broadcaster.broadcast_list_changed(what)

    def _switch_to(self, server: Handler) -> None:
        self._current_server = server
        self.info, self.instructions = server.info, server.instructions
        self.revisions, self.extra_methods = server.revisions, server.extra_methods
        self.max_in_flight = server.max_in_flight
        self.__dict__.pop("routes", None)

    async def _start_server(self, server: Handler) -> "_RunningServer":
        running = _RunningServer(server)
        self._running.add(running)
        running.task.add_done_callback(lambda _: self._running.discard(running))
        await running.wait_started()
        return running

    @asynccontextmanager
    async def open_lifespan(self) -> AsyncGenerator[Any]:
        """The lifespan, which ends after those of all running servers."""
        async with super().open_lifespan():
            try:
                self._current = await self._start_server(self._current_server)
                async with nullcontext() if self._outer_lifespan is None else self._outer_lifespan(self):
                    yield None
            finally:
                self._current = None
                for running in self._running:
                    running.stop_event.set()
                await asyncio.gather(*(running.task for running in self._running), return_exceptions=True)

    # ----------------------------------------------------------------- facts of the current server

    @property
    def local_peer(self) -> LocalPeer:  # pyright: ignore[reportIncompatibleVariableOverride] - it changes with the server
        """How the current server presents itself."""
        return self._current_server.local_peer

    def capabilities(self) -> ServerCapabilities:
        """Return what the current server declares."""
        return self._current_server.capabilities()

    @cached_property
    def routes(self) -> Routes:
        """Every method is forwarded, but for subscriptions, which outlive the server."""
        forwarded = dict.fromkeys(self._current_server.routes, self._forward)
        return {**forwarded, SUBSCRIPTIONS_LISTEN: self._listen}

    def find_header_parameters(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """Return the parameters of a tool that HTTP mirrors in headers."""
        return self._current_server.find_header_parameters(tool)

    def get_required_scopes(self, method: str, about: str) -> frozenset[str]:
        """Return the scopes that a request needs."""
        return self._current_server.get_required_scopes(method, about)

    # ----------------------------------------------------------------- forwarding

    @contextmanager
    def _hold_current(self, ctx: Context) -> Generator[tuple[Handler, Context]]:
        """Yield the current server and a context for it; its lifespan stays open meanwhile."""
        running = self._current
        assert running is not None, "nothing is served outside of the lifespan"
        running.acquire()
        try:
            yield running.server, ctx.copy_for_server(running.server, running.lifespan)
        finally:
            running.release()

    async def _forward(self, ctx: Context, params: Params) -> RouteResult:  # noqa: ARG002 - `incoming` has them
        incoming = ctx.incoming
        assert incoming is not None, "only requests have routes"
        with self._hold_current(ctx) as (server, theirs):
            begun = start_request(server, theirs, incoming)
            return await begun if is_pending(begun) else begun

    async def _listen(self, ctx: Context, params: ListenParams) -> Result:
        async def listen(_: Context, params: ListenParams) -> Result:
            return await self._subscriptions.serve(ctx, params.notifications)

        with self._hold_current(ctx) as (server, theirs):
            middleware = server.middleware  # not held for as long as a client listens
        return await run_middleware(middleware, Call(SUBSCRIPTIONS_LISTEN, params, theirs), listen)

    async def _apply_middleware(self, call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
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

    A task of its own enters the lifespan and leaves it: some context managers insist on one task.
    """

    def __init__(self, server: Handler) -> None:
        self.server = server
        self.lifespan: Any = None
        self.stop_event = asyncio.Event()
        self._use_count = 1  # it is the current one
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())

    async def wait_started(self) -> None:
        """Return when the lifespan is entered."""
        try:
            await self._started
        except asyncio.CancelledError:
            self.task.cancel()
            await asyncio.wait([self.task])
            raise

    async def _run(self) -> None:
        try:
            async with self.server.hold_lifespan() as self.lifespan:
                self._started.set_result(None)
                await self.stop_event.wait()
        except BaseException as error:  # whatever a lifespan raises
            is_cancelled = not isinstance(error, Exception)
            if not self._started.done():
                reason = InternalError("the lifespan was cancelled") if is_cancelled else error
                self._started.set_exception(reason)
            elif not is_cancelled:
                logger.exception("the lifespan of %s could not be left in order", self.server.info.name)
            if is_cancelled:
                raise

    def acquire(self) -> None:
        """Count one more request."""
        self._use_count += 1

    def release(self) -> None:
        """Count one less; end after the last."""
        self._use_count -= 1
        if not self._use_count:
            self.stop_event.set()


def _check_replaceable(server: Handler) -> None:
    if server.is_per_client:
        raise TypeError(f"{server.info.name} chooses a server for each client, and cannot be replaced")


def _find_changed_lists(server: Handler) -> set[str]:
    """Return the lists that a server has."""
    if not isinstance(server, RegistryServer):
        return set(LIST_CHANGED)
    return {kind.changed_list for name, kind in LIST_KINDS.items() if getattr(server, name).has_been_used}
