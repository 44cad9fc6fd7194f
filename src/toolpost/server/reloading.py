"""`ReloadableServer`: replaces the server behind connected clients when its code changes.

A handler that serves nothing itself: every request goes on to the server of now, and is finished by it
whatever comes later. Owns who serves, and how long the lifespans of those who served before stay open. Where
the next server comes from is not known here.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Final

from toolpost.errors import InternalError
from toolpost.protocol.local_peer import LocalPeer
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

_LISTEN: Final = "subscriptions/listen"


class ReloadableServer(Handler):
    """A server that can be replaced while it serves.

    Name tag, capabilities, instructions, lists, middleware, limits and lifespan are those of the server that
    serves at the moment. Sessions, subscriptions, keys and what the store keeps outlive it; so do `auth=` and
    `store=`, which are those of the first.
    """

    is_forwarding = True

    def __init__(self, first: Handler, *, lifespan: Lifespan | None = None) -> None:
        _check_replaceable(first)
        super().__init__(
            first.info.name,
            extra_methods=first.extra_methods.values(),
            store=first._store,  # noqa: SLF001 - it is one of us
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
        """Who serves at the moment."""
        return self._current_server

    async def replace(self, server: Handler) -> None:
        """Let another server serve from here on, once its lifespan is entered.

        Requests that are being served are finished by whoever has begun them. Clients hear that lists have
        changed: all that either of the two has.
        """
        _check_replaceable(server)
        before, changed = (
            self._current,
            _find_changed_lists(self._current_server) | _find_changed_lists(server),
        )
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
        for what in LIST_CHANGED:
            if what in changed:
                self.broadcaster.broadcast_list_changed(what)

    def _switch_to(self, server: Handler) -> None:
        self._current_server = server
        self.info, self.instructions = server.info, server.instructions
        self.revisions, self.extra_methods = server.revisions, server.extra_methods
        self.max_in_flight = server.max_in_flight
        self.__dict__.pop("routes", None)

    async def _start_server(self, server: Handler) -> "_RunningServer":
        generation = _RunningServer(server)
        self._running.add(generation)
        generation.task.add_done_callback(lambda _: self._running.discard(generation))
        await generation.wait_started()
        return generation

    @asynccontextmanager
    async def open_lifespan(self) -> AsyncGenerator[Any]:
        """The lives of those who serve, and of those who have not finished yet."""
        async with super().open_lifespan():
            try:
                self._current = await self._start_server(self._current_server)
                async with nullcontext() if self._outer_lifespan is None else self._outer_lifespan(self):
                    yield None
            finally:
                self._current = None
                await self._stop_servers()

    async def _stop_servers(self) -> None:
        for generation in self._running:
            generation.stop_event.set()
        await asyncio.gather(*(generation.task for generation in self._running), return_exceptions=True)

    # ----------------------------------------------------------------- who we are

    @property
    def local_peer(self) -> LocalPeer:  # pyright: ignore[reportIncompatibleVariableOverride] - that of another, who may change it
        """For transports: how the server of now presents itself."""
        return self._current_server.local_peer

    def capabilities(self) -> ServerCapabilities:
        """What the server of now declares."""
        return self._current_server.capabilities()

    @cached_property
    def routes(self) -> Routes:
        """Every method goes on to the server of now, but for the subscriptions, which outlive it."""
        return {**dict.fromkeys(self._current_server.routes, self._forward), _LISTEN: self._listen}

    def find_header_parameters(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """For transports: the parameters of a tool that HTTP mirrors in headers."""
        return self._current_server.find_header_parameters(tool)

    def get_required_scopes(self, method: str, about: str) -> frozenset[str]:
        """For transports: the scopes of what a request is about."""
        return self._current_server.get_required_scopes(method, about)

    # ----------------------------------------------------------------- what goes on to others

    @contextmanager
    def _hold_current(self, ctx: Context) -> Generator[tuple[Handler, Context]]:
        """The server of now, and what it is asked, as it sees that; its lifespan stays open meanwhile."""
        generation = self._current
        assert generation is not None, "nobody is served before the first has begun"
        generation.acquire()
        try:
            yield generation.server, ctx.copy_for_server(generation.server, generation.lifespan)
        finally:
            generation.release()

    async def _forward(self, ctx: Context, params: Params) -> RouteResult:  # noqa: ARG002 - `incoming` has them
        incoming = ctx.incoming
        assert incoming is not None, "only requests have routes"
        with self._hold_current(ctx) as (server, theirs):
            begun = start_request(server.routes, server.middleware, theirs, incoming)
            return await begun if is_pending(begun) else begun

    async def _listen(self, ctx: Context, params: ListenParams) -> Result:
        async def listen(_: Context, params: ListenParams) -> Result:
            return await self._subscriptions.serve(ctx, params.notifications)

        with self._hold_current(ctx) as (server, theirs):
            middleware = server.middleware  # not held for as long as a client listens
        return await run_middleware(middleware, Call(_LISTEN, params, theirs), listen)

    async def _apply_middleware(self, call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
        """The middleware of now, for notices; requests find it where they go on."""
        if not call.is_notification:
            return await next(call)

        async def go_on(context: Context, params: Any) -> Any:
            return await next(
                Call(call.method, params, context, incoming=call.incoming, is_notification=True)
            )

        with self._hold_current(call.context) as (server, theirs):
            told = Call(call.method, call.params, theirs, incoming=call.incoming, is_notification=True)
            return await run_middleware(server.middleware, told, go_on)

    async def handle_notification(self, method: str, params: Any, ctx: Context) -> None:
        """Let the server of now hear what a client says."""
        with self._hold_current(ctx) as (server, theirs):
            await server.handle_notification(method, params, theirs)

    async def subscribe(self, uri: str, ctx: Context) -> None:
        """Ask the server of now whether a resource can be watched."""
        with self._hold_current(ctx) as (server, theirs):
            await server.subscribe(uri, theirs)

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        """Tell the server of now that a resource is watched no longer."""
        with self._hold_current(ctx) as (server, theirs):
            await server.unsubscribe(uri, theirs)


class _RunningServer:
    """A server and its lifespan, which stays open until it is replaced and all that it serves is finished.

    A task of its own enters the lifespan and leaves it: some contexts insist on that.
    """

    def __init__(self, server: Handler) -> None:
        self.server = server
        self.lifespan: Any = None
        self.stop_event = asyncio.Event()
        self._use_count = 1  # it serves
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
            told = isinstance(error, Exception)
            if not self._started.done():
                self._started.set_exception(error if told else InternalError("the lifespan was cancelled"))
            elif told:
                logger.exception("the lifespan of %s could not be left in order", self.server.info.name)
            if not told:
                raise

    def acquire(self) -> None:
        """One more is served by it."""
        self._use_count += 1

    def release(self) -> None:
        """One less."""
        self._use_count -= 1
        if not self._use_count:
            self.stop_event.set()


def _check_replaceable(server: Handler) -> None:
    if server.is_per_client:
        raise TypeError(f"{server.info.name} chooses a server for each client, and cannot be replaced")


def _find_changed_lists(server: Handler) -> set[str]:
    """What a server has lists of."""
    if not isinstance(server, RegistryServer):
        return set(LIST_CHANGED)
    return {kind.changed_list for name, kind in LIST_KINDS.items() if getattr(server, name).has_been_used}
