"""What an HTTP endpoint needs of the server behind it.

The promise that keeps transports and servers apart: whoever implements it can be served over HTTP.
"""

from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias

from toolpost.errors import RPCError
from toolpost.principal import Principal
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest, NotificationReceived
from toolpost.protocol.local_peer import LocalPeer
from toolpost.server.http.authorization import Authenticator
from toolpost.server.http.limits import RequestCounts
from toolpost.server.http.request import HttpExchange
from toolpost.server.http.session import HttpSession
from toolpost.stores.store import Store
from toolpost.types.base import Struct

Started: TypeAlias = Any
"""A request that has begun to be served; what that is, the server knows."""


class Caller(Struct, frozen=True):
    """Who sends a request that has no session, and where what is said before its answer goes."""

    exchange: HttpExchange
    principal: Principal | None
    json_only: bool
    load: RequestCounts
    keeper: Authenticator | None = None


class EndpointHost(Protocol):
    """What an endpoint serves."""

    @property
    def store(self) -> Store:
        """Where sessions live."""
        ...

    @property
    def is_per_client(self) -> bool:
        """Whether it decides when a session begins what is served in it, by what the principal is allowed."""
        ...

    @property
    def local_peer(self) -> LocalPeer:
        """How it presents itself."""
        ...

    def hold_lifespan(self) -> AbstractAsyncContextManager[object]:
        """Hold it ready to serve."""
        ...

    def connection(self, peer: Peer | None = None) -> Connection:
        """A fresh connection of the server's; with a peer, one whose handshake was done elsewhere."""
        ...

    def take_back(self, connection: Connection) -> None:
        """Use a connection again that came without a peer, and in which nothing is left."""

    def find_header_parameters(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """The parameters of a tool that HTTP mirrors in headers."""
        ...

    def get_required_scopes(self, method: str, about: str) -> frozenset[str]:
        """The scopes of what a request is about, as far as they are known before it is served."""
        ...

    def begin(self, incoming: InboundRequest) -> bytes | Started | None:
        """The answer to one request that has no session, if it is there at once.

        None if nothing has begun; otherwise `answer` goes on with it.
        """
        ...

    def answer(
        self, connection: Connection, incoming: InboundRequest, caller: Caller, started: Started | None = None
    ) -> Coroutine[Any, Any, tuple[bytes, RPCError | None]]:
        """The answer to one request that has no session, and the error in it, if it is one."""
        ...

    async def hear(self, connection: Connection, notice: NotificationReceived, caller: Caller) -> None:
        """Hear a notice that has no session."""

    async def serve(self, session: HttpSession, principal: Principal | None) -> None:
        """Hold the conversation of a session, or go on with what is left of it."""

    def end_subscriptions(self) -> None:
        """End the subscriptions of stateless clients, each with its result."""
