"""`PerClientServer`: decides for each client which server it talks to, or refuses it with a reason.

A handler that serves nothing itself: every request goes on to the server that was chosen for its client. Owns
who was chosen for whom, and holds the lifespans of the chosen open.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from functools import cached_property
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from toolpost.errors import InvalidRequest, MCPError, MethodNotFound, RPCError
from toolpost.principal import Principal
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.methods import Row
from toolpost.server.context import Context
from toolpost.server.handler import Handler
from toolpost.server.options import SERVER
from toolpost.server.request import decode_arguments
from toolpost.server.runtime.request import RouteResult, Routes, start_request
from toolpost.types.base import Params, Result
from toolpost.types.initialize import (
    ClientCapabilities,
    Implementation,
    InitializeParams,
    ListCapability,
    ResourcesCapability,
    ServerCapabilities,
)
from toolpost.types.tools import CallToolParams

if TYPE_CHECKING:
    from toolpost.auth.server.auth import Auth

MAX_REMEMBERED_CLIENTS: Final = 256
"""Kinds of stateless clients to remember the choice for: hosts are few, and others are chosen for anew."""

ChooseServer: TypeAlias = Callable[
    [Implementation | None, ClientCapabilities, Principal | None], Awaitable[Handler]
]
"""Gets the client's name tag, its capabilities and its principal; returns what serves it."""


class PerClientServer(Handler):
    """A server that is another one for each client.

    In a session `choose` is called once, at `initialize`, and what it returns serves the whole conversation:
    name tag, capabilities, instructions, lists, notices, middleware and lifespan are those of the chosen.
    Over HTTP, it serves no request whose principal has fewer scopes than that for which it was chosen. A
    stateless client is known by what its requests say of it, and by the subject, client and scopes of its
    principal: who says the same gets the same server. Claims do not count: choose by scopes. Let none
    of several servers say that its answers are public (`Cache`): a client could be given those of another.

    Args:
        choose: gets the client's name tag, its capabilities and its principal (None where
            nobody is recognised), and returns the server. Return the same for the same kind of client, such
            as one of a few `server.select(…)`. Each lives as long as a session that it serves; those of
            the stateless clients that came last are kept. To refuse a client, raise: an `RPCError` is the
            answer, any other `MCPError` gives its text.
        name: how the factory is called, where nobody is chosen yet.
        version: of the factory.
        revisions: the protocol revisions to speak; a chosen server has to speak that of its client.
        max_in_flight: how many requests of one client may be served at once before a server is chosen.
        extra_methods: the rows of the chosen servers, for stateless clients.
        auth: how clients are recognised over HTTP; what the chosen servers say of it does not count.
    """

    is_forwarding = True
    is_per_client = True

    def __init__(
        self,
        choose: ChooseServer,
        name: str | None = None,
        *,
        version: str = SERVER.version,
        revisions: Iterable[str] = SERVER.revisions,
        max_in_flight: int = SERVER.max_in_flight,
        extra_methods: Iterable[Row] = SERVER.extra_methods,
        auth: "Auth | None" = SERVER.auth,
    ) -> None:
        super().__init__(
            name,
            version=version,
            revisions=revisions,
            max_in_flight=max_in_flight,
            extra_methods=extra_methods,
            auth=auth,
        )
        self._choose = choose
        self._servers_by_client: OrderedDict[bytes, tuple[Handler, AsyncExitStack]] = OrderedDict()

    def capabilities(self) -> ServerCapabilities:
        """All of them: what is really offered, the chosen server says."""
        return ServerCapabilities(
            tools=ListCapability(list_changed=True),
            resources=ResourcesCapability(list_changed=True, subscribe=True),
            prompts=ListCapability(list_changed=True),
            completions={},
            logging={},
        )

    @cached_property
    def routes(self) -> Routes:
        """Every method goes on to the chosen, but for the handshake and signs of life before it."""
        own: Routes = {"initialize": self._initialize, "ping": self._ping}
        return {**dict.fromkeys([*super().routes, *self.extra_methods], self._forward), **own}

    @asynccontextmanager
    async def open_lifespan(self) -> AsyncGenerator[Any]:
        """The lives of those who are remembered, from when each is first needed."""
        async with super().open_lifespan() as value:
            try:
                yield value
            finally:
                while self._servers_by_client:
                    _, (_, life) = self._servers_by_client.popitem()
                    await life.aclose()

    def end_subscriptions(self) -> None:
        """End the subscriptions of all who were chosen."""
        for chosen, _ in self._servers_by_client.values():
            chosen.end_subscriptions()

    # ----------------------------------------------------------------- routes

    async def _initialize(self, ctx: Context, params: InitializeParams) -> Result:  # noqa: ARG002 - the chosen reads them
        chosen = await self._choose_server(ctx)
        async with chosen.hold_lifespan():
            answer: Any = await self._pass_on(ctx, chosen)
            await ctx.hand_over(chosen)
        return answer

    async def _forward(self, ctx: Context, params: Params) -> RouteResult:
        chosen = await self._find_or_choose_server(ctx)
        if isinstance(params, CallToolParams) and ctx.request.headers:
            # The transport could not: which tools there are was not known before somebody was chosen.
            annotated = chosen.find_header_parameters(params.name)
            if annotated:
                headers.verify_arguments(annotated, decode_arguments(params.arguments), ctx.request.headers)
        answer = await self._pass_on(ctx, chosen)
        if isinstance(answer, Result):
            assert ctx.incoming is not None
            answer = copy(answer)
            answer.meta = {**chosen.local_peer.build_meta(ctx.incoming.peer.revision), **(answer.meta or {})}
        return answer

    async def _pass_on(self, ctx: Context, chosen: Handler) -> RouteResult:
        """What the chosen server answers."""
        incoming = ctx.incoming
        assert incoming is not None, "only requests have routes"
        revision, row = incoming.peer.revision, incoming.row
        if revision.date not in chosen.local_peer.supported:
            raise chosen.local_peer.make_unsupported_error(revision.date)
        if row.needs and row.name not in revision.ungated and not chosen.local_peer.has_capability(row.needs):
            raise MethodNotFound(f"Method not found: {row.name} (this server does not offer {row.needs})")
        async with chosen.hold_lifespan() as lifespan:
            begun = start_request(
                chosen.routes, chosen.middleware, ctx.copy_for_server(chosen, lifespan), incoming
            )
            return await begun if isawaitable(begun) else begun

    # ----------------------------------------------------------------- choosing

    async def _find_or_choose_server(self, ctx: Context) -> Handler:
        """Who serves a stateless client: the same as before, so that their cursors still mean something."""
        from hashlib import sha256  # noqa: PLC0415 - as in `load_journal`

        client = ctx.client
        principal = ctx.principal
        who = principal and [principal.key, principal.client, sorted(principal.scopes)]
        facts = jsonrpc.encode([client.info, client.capabilities, who])
        key = sha256(facts).digest()
        if key not in self._servers_by_client:
            chosen, life = await self._choose_server(ctx), AsyncExitStack()
            if key not in self._servers_by_client:  # two who ask at once get the same
                self._servers_by_client[key] = (chosen, life)
                await life.enter_async_context(chosen.hold_lifespan())
        chosen, _ = self._servers_by_client[key]
        self._servers_by_client.move_to_end(key)
        if len(self._servers_by_client) > MAX_REMEMBERED_CLIENTS:
            _, (_, forgotten) = self._servers_by_client.popitem(last=False)
            await forgotten.aclose()
        return chosen

    async def _choose_server(self, ctx: Context) -> Handler:
        client = ctx.client
        try:
            chosen = await self._choose(client.info, client.capabilities, ctx.principal)
        except RPCError:
            raise
        except MCPError as error:
            raise InvalidRequest(f"{self.info.name} refuses this client: {error}") from error
        if not isinstance(chosen, Handler) or isinstance(chosen, PerClientServer):  # pyright: ignore[reportUnnecessaryIsInstance] - who is not checked may err
            choose = getattr(self._choose, "__qualname__", repr(self._choose))
            raise TypeError(
                f"{choose} returned {chosen!r}, which serves nothing itself; return a server, or raise"
            )
        return chosen
