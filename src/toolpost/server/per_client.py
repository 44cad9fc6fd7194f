"""`PerClientServer`: chooses a server for each client, or refuses the client with a reason.

Forwards every request to the server of its client, and holds the lifespans of the chosen servers open.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from toolpost.errors import InvalidRequest, MCPError, MethodNotFound, RPCError, explain_keywords
from toolpost.principal import Principal
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.extension import Extension
from toolpost.protocol.local_peer import declare_capabilities
from toolpost.protocol.methods import INITIALIZE, PING
from toolpost.server.context import Context
from toolpost.server.context_request import decode_arguments
from toolpost.server.handler import Handler
from toolpost.server.options import SERVER, HandlerOptions, collect_options
from toolpost.server.runtime.change_broadcast import LIST_CHANGED
from toolpost.server.runtime.dispatch import RouteResult, serve_forwarded
from toolpost.types.base import Params, Result
from toolpost.types.initialize import ClientCapabilities, Implementation, InitializeParams, ServerCapabilities
from toolpost.types.tools import CallToolParams

if TYPE_CHECKING:
    from toolpost.auth.server.auth import Auth

MAX_REMEMBERED_CLIENTS: Final = 256
"""Stateless clients whose server is remembered; `choose` is called again for others."""

ChooseServer: TypeAlias = Callable[
    [Implementation | None, ClientCapabilities, Principal | None], Awaitable[Handler]
]
"""Gets the client's info, its capabilities and its principal; returns the server."""


class PerClientServer(Handler):
    """A server that chooses another server for each client.

    In a session `choose` is called once, at `initialize`, and the chosen server serves the whole session:
    info, capabilities, instructions, lists, notifications, middleware and lifespan are its own. Over HTTP, it
    serves no request whose principal has fewer scopes than that for which it was chosen. Stateless clients
    with the same info, capabilities, and subject, client and scopes of the principal get the same server.
    Claims do not count: choose by scopes. Of several servers, none may declare its results as public
    (`Cache`): a client could get those of another.

    Args:
        choose: gets the client's info, its capabilities and its principal, if it has one, and returns the
            server. Return the same for the same kind of client, such as one of a few `server.select(…)`.
            The lifespan of each is open while it serves a session; those of the last stateless clients stay
            open. To refuse a client, raise: an `RPCError` is sent as it is, any other `MCPError` as text.
        name: the name of the factory, until a server is chosen.
        version: the version of the factory.
        revisions: the supported protocol revisions; a chosen server must support that of its client.
        max_in_flight: the maximum number of concurrent requests of a client before a server is chosen.
        extensions: the extensions of the chosen servers, for stateless clients.
        auth: how to authenticate clients over HTTP; the `auth` of a chosen server has no effect.
    """

    is_per_client = True
    runs_extensions = False

    @explain_keywords
    def __init__(
        self,
        choose: ChooseServer,
        name: str | None = None,
        *,
        version: str = SERVER.version,
        revisions: Iterable[str] = SERVER.revisions,
        max_in_flight: int = SERVER.max_in_flight,
        extensions: Iterable[Extension] = SERVER.extensions,
        auth: "Auth | None" = SERVER.auth,
    ) -> None:
        super().__init__(name, telemetry=False, **collect_options(HandlerOptions, locals()))
        self.routes = {INITIALIZE: self._initialize, PING: self._ping}
        self.fallback_route = self._forward
        self._choose = choose
        self._servers_by_client: OrderedDict[bytes, tuple[Handler, AsyncExitStack]] = OrderedDict()

    def capabilities(self) -> ServerCapabilities:
        """Return all capabilities: the chosen server declares its own."""
        return declare_capabilities(LIST_CHANGED)

    @asynccontextmanager
    async def open_lifespan(self) -> AsyncGenerator[Any]:
        """The lifespan; the lifespans of the remembered servers end with it."""
        async with super().open_lifespan() as value:
            try:
                yield value
            finally:
                while self._servers_by_client:
                    _, (_, life) = self._servers_by_client.popitem()
                    await life.aclose()

    def end_subscriptions(self, endpoint: object = None) -> None:
        """End subscriptions of all remembered servers."""
        for chosen, _ in self._servers_by_client.values():
            chosen.end_subscriptions(endpoint)

    async def _initialize(self, ctx: Context, params: InitializeParams) -> Result:  # noqa: ARG002 - the chosen server reads them
        chosen = await self.choose_server(ctx)
        async with chosen.hold_lifespan():
            answer: Any = await self._pass_on(ctx, chosen)
            await ctx.client_connection.hand_over(chosen)
        return answer

    async def _forward(self, ctx: Context, params: Params) -> RouteResult:
        chosen = await self._find_or_choose_server(ctx)
        incoming = ctx.incoming
        assert incoming is not None, "only requests have routes"
        revision = incoming.peer.revision
        if isinstance(params, CallToolParams) and ctx.request.headers and revision.stateless:
            # The transport cannot check: it does not know the tools of the chosen server.
            annotated = chosen.find_header_parameters(params.name)
            if annotated:
                headers.verify_arguments(annotated, decode_arguments(params.arguments), ctx.request.headers)
        answer = await self._pass_on(ctx, chosen)
        if isinstance(answer, Result) and revision.stateless:
            answer = copy(answer)
            answer.meta = {**chosen.local_peer.stamps[revision.date], **(answer.meta or {})}
        return answer

    async def _pass_on(self, ctx: Context, chosen: Handler) -> RouteResult:
        """Return the result of the chosen server."""
        incoming = ctx.incoming
        assert incoming is not None, "only requests have routes"
        revision, row = incoming.peer.revision, incoming.row
        if revision.date not in chosen.local_peer.supported:
            raise chosen.local_peer.make_unsupported_error(revision.date)
        if row.needs and row.name not in revision.ungated and not chosen.local_peer.has_capability(row.needs):
            raise MethodNotFound(f"Method not found: {row.name} (this server does not offer {row.needs})")
        async with chosen.hold_lifespan() as lifespan:
            return await serve_forwarded(chosen, ctx.copy_for_server(chosen, lifespan))

    async def _find_or_choose_server(self, ctx: Context) -> Handler:
        """Return the server of a stateless client: the same as before, so that cursors stay valid."""
        from hashlib import sha256  # noqa: PLC0415 - start-up time

        client, principal = ctx.client, ctx.principal
        identity = principal and [principal.key, principal.client, sorted(principal.scopes)]
        key = sha256(jsonrpc.encode([client.info, client.capabilities, identity])).digest()
        remembered = self._servers_by_client
        if key in remembered:
            remembered.move_to_end(key)
            return remembered[key][0]
        chosen = await self.choose_server(ctx)
        async with AsyncExitStack() as life:
            await life.enter_async_context(chosen.hold_lifespan())
            if key in remembered:  # concurrent requests get the same
                return remembered[key][0]
            remembered[key] = (chosen, life.pop_all())
        if len(remembered) > MAX_REMEMBERED_CLIENTS:
            _, (forgotten, life) = remembered.popitem(last=False)
            if all(forgotten is not each for each, _ in remembered.values()):
                forgotten.end_subscriptions()  # their clients subscribe again
            await life.aclose()
        return chosen

    async def choose_server(self, ctx: Context) -> Handler:
        """Return the server of a client."""
        client = ctx.client
        try:
            chosen = await self._choose(client.info, client.capabilities, ctx.principal)
        except RPCError:
            raise
        except MCPError as error:
            raise InvalidRequest(f"{self.info.name} rejected this client: {error}") from error
        if not isinstance(chosen, Handler) or isinstance(chosen, PerClientServer):  # pyright: ignore[reportUnnecessaryIsInstance] - not every user has a type checker
            choose = getattr(self._choose, "__qualname__", repr(self._choose))
            raise TypeError(f"{choose} must return a server that serves requests itself, not {chosen!r}")
        if self.metrics is not None:
            chosen.count_in(self.metrics)
        return chosen


for _each in (PerClientServer.__init__, vars(PerClientServer.__init__)["__wrapped__"]):
    _each.__qualname__ = "Server.factory"  # as users write it
