"""`Generations`: one server after another, for the same clients. The code changes, and nobody is sent away.

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
from toolpost.protocol.party import Party
from toolpost.server.context import Context
from toolpost.server.dispatch import Answer, Call, Next, Routes, begin, through
from toolpost.server.handler import Handler
from toolpost.server.library import KINDS, Library
from toolpost.server.notify import LIST_CHANGED
from toolpost.server.options import Lifespan
from toolpost.server.pending import is_pending
from toolpost.server.serve import Conversation
from toolpost.types.base import Params, Result
from toolpost.types.lifecycle import ServerCapabilities
from toolpost.types.notices import ListenParams

__all__ = ["Generations"]

logger: Final = logging.getLogger("toolpost.server")

_LISTEN: Final = "subscriptions/listen"


class Generations(Handler):
    """A server that can be replaced while it serves.

    Name tag, capabilities, instructions, lists, middleware, limits and lifespan are those of the server that
    serves at the moment. Sessions, subscriptions, keys and what the store keeps outlive it; so do `auth=` and
    `store=`, which are those of the first.

    Args:
        first: who serves until it is replaced.
        lifespan: entered while somebody is served, whoever that is by; it is given this object.

    Raises:
        TypeError: the first server chooses others, and cannot be replaced.
    """

    forwards = True

    def __init__(self, first: Handler, *, lifespan: Lifespan | None = None) -> None:
        _check(first)
        super().__init__(
            first.info.name,
            extra=first.extra.values(),
            store=first._store,  # noqa: SLF001 - it is one of us
            keys=first._state_keys,  # noqa: SLF001 - as above
            auth=first.auth,
        )
        self.prepare()
        self.middleware = [self._around]
        self._whole = lifespan
        self._living: set[_Generation] = set()
        self._now: _Generation | None = None
        self._serves = first
        first.follow(self)
        self._become(first)

    @property
    def server(self) -> Handler:
        """Who serves at the moment."""
        return self._serves

    async def replace(self, server: Handler) -> None:
        """Let another server serve from here on, once its lifespan is entered.

        Requests that are being served are finished by whoever has begun them. Clients hear that lists have
        changed: all that either of the two has.

        Raises:
            TypeError: it chooses other servers, so that it could not be replaced in its turn.
            RuntimeError: nobody is served at the moment.
            Exception: its lifespan could not be entered, for this reason; the other one serves on.
        """
        _check(server)
        before, changed = self._now, _kinds(self._serves) | _kinds(server)
        if before is None:
            raise RuntimeError("a server can be replaced only while it serves")
        server.follow(self)
        self._now = await self._begin(server)
        self._become(server)
        before.let_go()
        for listener in self.announcer.everybody():
            if isinstance(listener, Conversation):
                connection = listener.connection
                connection.extra, connection.limit = server.extra, server.limit
        for what in LIST_CHANGED:
            if what in changed:
                self.announcer.list_changed(what)

    def _become(self, server: Handler) -> None:
        self._serves = server
        self.info, self.instructions = server.info, server.instructions
        self.revisions, self.extra, self.limit = server.revisions, server.extra, server.limit
        self.__dict__.pop("routes", None)

    async def _begin(self, server: Handler) -> "_Generation":
        generation = _Generation(server)
        self._living.add(generation)
        generation.task.add_done_callback(lambda _: self._living.discard(generation))
        await generation.begun()
        return generation

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[Any]:
        """The lives of those who serve, and of those who have not finished yet."""
        async with super().living():
            try:
                self._now = await self._begin(self._serves)
                async with nullcontext() if self._whole is None else self._whole(self):
                    yield None
            finally:
                self._now = None
                await self._end()

    async def _end(self) -> None:
        for generation in self._living:
            generation.over.set()
        await asyncio.gather(*(generation.task for generation in self._living), return_exceptions=True)

    # ----------------------------------------------------------------- who we are

    @property
    def party(self) -> Party:  # pyright: ignore[reportIncompatibleVariableOverride] - that of another, who may change it
        """For transports: how the server of now presents itself."""
        return self._serves.party

    def capabilities(self) -> ServerCapabilities:
        """What the server of now declares."""
        return self._serves.capabilities()

    @cached_property
    def routes(self) -> Routes:
        """Every method goes on to the server of now, but for the subscriptions, which outlive it."""
        return {**dict.fromkeys(self._serves.routes, self._forward), _LISTEN: self._listen}

    def annotated(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """For transports: the parameters of a tool that HTTP mirrors in headers."""
        return self._serves.annotated(tool)

    def needs(self, method: str, about: str) -> frozenset[str]:
        """For transports: the scopes of what a request is about."""
        return self._serves.needs(method, about)

    # ----------------------------------------------------------------- what goes on to others

    @contextmanager
    def _held(self, ctx: Context) -> Generator[tuple[Handler, Context]]:
        """The server of now, and what it is asked, as it sees that; its lifespan stays open meanwhile."""
        generation = self._now
        assert generation is not None, "nobody is served before the first has begun"
        generation.hold()
        try:
            yield generation.server, ctx.passed_on(generation.server, generation.lifespan)
        finally:
            generation.let_go()

    async def _forward(self, ctx: Context, params: Params) -> Answer:  # noqa: ARG002 - `incoming` has them
        incoming = ctx.incoming
        assert incoming is not None, "only requests have routes"
        with self._held(ctx) as (server, theirs):
            begun = begin(server.routes, server.middleware, theirs, incoming)
            return await begun if is_pending(begun) else begun

    async def _listen(self, ctx: Context, params: ListenParams) -> Result:
        async def listen(_: Context, params: ListenParams) -> Result:
            return await self._listens.serve(ctx, params.notifications)

        with self._held(ctx) as (server, theirs):
            middleware = server.middleware  # not held for as long as a client listens
        return await through(middleware, Call(_LISTEN, params, theirs), listen)

    async def _around(self, call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
        """The middleware of now, for notices; requests find it where they go on."""
        if not call.notice:
            return await next(call)

        async def go_on(context: Context, params: Any) -> Any:
            return await next(Call(call.method, params, context, incoming=call.incoming, notice=True))

        with self._held(call.context) as (server, theirs):
            told = Call(call.method, call.params, theirs, incoming=call.incoming, notice=True)
            return await through(server.middleware, told, go_on)

    async def heard(self, method: str, params: Any, ctx: Context) -> None:
        """Let the server of now hear what a client says."""
        with self._held(ctx) as (server, theirs):
            await server.heard(method, params, theirs)

    async def subscribe(self, uri: str, ctx: Context) -> None:
        """Ask the server of now whether a resource can be watched."""
        with self._held(ctx) as (server, theirs):
            await server.subscribe(uri, theirs)

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        """Tell the server of now that a resource is watched no longer."""
        with self._held(ctx) as (server, theirs):
            await server.unsubscribe(uri, theirs)


class _Generation:
    """A server and its lifespan, which stays open until it is replaced and all that it serves is finished.

    A task of its own enters the lifespan and leaves it: some contexts insist on that.
    """

    def __init__(self, server: Handler) -> None:
        self.server = server
        self.lifespan: Any = None
        self.over = asyncio.Event()
        self._users = 1  # it serves
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._live())

    async def begun(self) -> None:
        """Return when the lifespan is entered.

        Raises:
            Exception: whatever it raises.
        """
        try:
            await self._begun
        except asyncio.CancelledError:
            self.task.cancel()
            await asyncio.wait([self.task])
            raise

    async def _live(self) -> None:
        try:
            async with self.server.alive() as self.lifespan:
                self._begun.set_result(None)
                await self.over.wait()
        except BaseException as error:  # whatever a lifespan raises
            told = isinstance(error, Exception)
            if not self._begun.done():
                self._begun.set_exception(error if told else InternalError("the lifespan was cancelled"))
            elif told:
                logger.exception("the lifespan of %s could not be left in order", self.server.info.name)
            if not told:
                raise

    def hold(self) -> None:
        """One more is served by it."""
        self._users += 1

    def let_go(self) -> None:
        """One less."""
        self._users -= 1
        if not self._users:
            self.over.set()


def _check(server: Handler) -> None:
    if server.chooses:
        raise TypeError(f"{server.info.name} chooses a server for each client, and cannot be replaced")


def _kinds(server: Handler) -> set[str]:
    """What a server has lists of."""
    if not isinstance(server, Library):
        return set(LIST_CHANGED)
    return {kind.changes for name, kind in KINDS.items() if getattr(server, name).used}
