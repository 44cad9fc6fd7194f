"""One endpoint for all revisions: a plain ASGI application that needs no framework.

Owns paths and verbs, the life of the endpoint, and its end: what runs may finish, what is new is turned away.
A message goes to the stateless era or to a session, as its headers and its body say. Knows a server only by
the `Host` promise.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from threading import get_ident
from typing import Final, TypeAlias

from toolpost.errors import InternalError, RPCError
from toolpost.principal import Principal
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.events import Incoming
from toolpost.protocol.jsonrpc import Message, Request
from toolpost.protocol.party import Party
from toolpost.protocol.route import (
    Known,
    KnownSession,
    KnownStateless,
    Reject,
    ToSession,
    ToStateless,
    classify,
    settled,
)
from toolpost.transports.body import read_body
from toolpost.transports.exchange import (
    ASGIReceive,
    ASGISend,
    BodyTooLarge,
    BodyTooSlow,
    Disconnected,
    Exchange,
    HungUp,
    Scope,
)
from toolpost.transports.gate import EVENTS, JSON, LATER, MAX_BODY, Gate, Refusal, check_get, check_post
from toolpost.transports.head import KnownHeads
from toolpost.transports.host import Caller, Host
from toolpost.transports.http_legacy import Legacy
from toolpost.transports.http_life import Life
from toolpost.transports.http_load import MAX_CALLS, MAX_STREAMS, Load
from toolpost.transports.http_metadata import Metadata, trimmed
from toolpost.transports.http_sessions import Limits, Sessions, Underway
from toolpost.transports.http_stateless import (
    Answered,
    Taken,
    begin_known,
    begin_stateless,
    hear_stateless,
    serve_alone,
    serve_stateless,
)
from toolpost.transports.keeper import Keeper
from toolpost.types.base import Struct

__all__ = ["Endpoint", "Settings", "Who"]

logger: Final = logging.getLogger("toolpost.http")

LARGE: Final = 64 * 1024
"""Bytes of an answer that a network does not take at once: whoever ends the server waits for such."""

AT_LEAST: Final = 30.0
"""Seconds for which a stream is open whose token ends at once: clocks differ, so some come with such."""

Named: TypeAlias = Principal | str | None
Who: TypeAlias = Callable[[Scope], Named | Awaitable[Named]]
"""Says on whose behalf a request speaks, from its ASGI scope."""

Destination: TypeAlias = ToStateless | ToSession | Incoming
"""Where a message goes, or, if its head has come before, the request that it is."""

Verb: TypeAlias = Callable[[Exchange], Awaitable[None]]


class Settings(Struct, frozen=True, kw_only=True):
    """How an endpoint is set up.

    Args:
        path: where clients of Streamable HTTP come.
        sse: where clients of HTTP+SSE come; None for none. May be the same as `path`.
        messages: where these post.
        health: where others ask whether we live; None for none. Below it, `/ready` tells whether we serve.
        json_only: never answer with an event stream, except where one is asked for.
        stateless: serve old clients without sessions.
        max_body: the largest body, in bytes.
        max_calls: how many requests may be served at once.
        max_streams: how many streams may be open for news.
        limits: of sessions.
        drain: seconds that running requests get to finish when we stop.
        principal: says on whose behalf a request speaks; a session belongs to who has opened it.
    """

    path: str = "/mcp"
    sse: str | None = "/sse"
    messages: str = "/messages"
    health: str | None = None
    json_only: bool = False
    stateless: bool = False
    max_body: int = MAX_BODY
    max_calls: int = MAX_CALLS
    max_streams: int = MAX_STREAMS
    limits: Limits = Limits()
    drain: float = 5.0
    principal: Who | None = None


class Endpoint:
    """A server as an ASGI application.

    Args:
        host: what is served.
        settings: where, and how.
        gate: who may come in.
        keeper: who asks for tokens, if anybody does.
    """

    def __init__(self, host: Host, settings: Settings, gate: Gate, keeper: Keeper | None = None) -> None:
        self._keeper = keeper
        self._metadata = Metadata(keeper)
        self._host = host
        self.settings = settings
        self._gate = gate
        self._knows_all = settings.principal is None
        """Whether all that there is to know of a request stands in it."""
        self._keeps_sessions = not settings.stateless and host.party.sessions
        self._paths = self._routes()
        # Who watches over us knows our address, not our name; and what we publish, anybody may read.
        self._unguarded = frozenset({self._live, self._ready, self._metadata.answer})
        self._open = self._unguarded | {self._preflight}  # browsers ask without a token
        self._answers = (JSON,) if settings.json_only else (JSON, EVENTS)
        self._heads = KnownHeads()
        self._life: Life | None = None

    def _routes(self) -> dict[str, dict[str, Verb]]:
        """Path → verb → what serves it.

        Raises:
            ValueError: a path is none, or two are the same that cannot be.
        """
        chosen = self.settings
        paths: dict[str, dict[str, Verb]] = {}

        def add(name: str, path: str, **verbs: Verb) -> None:
            if not path.startswith("/"):
                raise ValueError(f"{name} is {path!r}; a path starts with /")
            served = paths.setdefault(trimmed(path), {})
            if served.keys() & verbs:
                raise ValueError(f"{name} is {path!r}, where something else is served already")
            served.update(verbs)

        add("path", chosen.path, POST=self._post)
        if self._keeps_sessions:
            add("path", chosen.path, GET=self._get, DELETE=self._delete)
            if chosen.sse is not None:
                if not self._sse_at_path:
                    add("sse", chosen.sse, GET=self._sse)
                add("messages", chosen.messages, POST=self._message)
        if chosen.health is not None:
            add("health", chosen.health, GET=self._live, HEAD=self._live)
            add("health", f"{trimmed(chosen.health)}/ready", GET=self._ready, HEAD=self._ready)
        for path in () if self._keeper is None else self._keeper.published:
            if path not in paths:
                answer = self._metadata.answer
                add("auth", path, GET=answer, HEAD=answer, OPTIONS=answer)
        return paths

    @property
    def _sse_at_path(self) -> bool:
        chosen = self.settings
        return chosen.sse is not None and trimmed(chosen.sse) == trimmed(chosen.path)

    async def __call__(self, scope: Scope, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve one request, or the life of the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._live_through(receive, send)
            else:
                await send({"type": "websocket.close", "code": 1003, "reason": "there is no WebSocket here"})
            return
        exchange = Exchange(scope, receive, send, self._heads.of(scope))
        try:
            verb: Verb = exchange.head.verb or self._verb(exchange)
            if self._keeper is not None and verb not in self._open:
                exchange.principal = await self._keeper.admit(exchange)
            await verb(exchange)
        except asyncio.CancelledError:
            if not exchange.streaming:
                raise
            await exchange.end()  # an ASGI server that stops cancels streams, and would log what we raise
        except Exception as error:  # noqa: BLE001 - whatever it is stays with its request
            await self._failed(exchange, error)

    async def _failed(self, exchange: Exchange, error: Exception) -> None:
        """Answer a request that could not be served."""
        if isinstance(error, BodyTooLarge):
            try:
                error = await self._too_large(exchange, error)
            except Disconnected as gone:
                error = gone
        elif isinstance(error, BodyTooSlow):
            error = Refusal(408, "The body did not come in time.", [(b"connection", b"close")])
        if isinstance(error, Refusal):
            await exchange.json(error.status, error.body, error.headers)
        elif isinstance(error, Disconnected):
            logger.debug("%s %s: the client has gone", exchange.method, exchange.path)
            await exchange.abandon()
        elif isinstance(error, HungUp):
            await self._give_up(exchange)
        else:
            logger.error("%s %s failed", exchange.method, exchange.path, exc_info=error)
            await self._give_up(
                exchange, 500, InternalError("Internal error: the request could not be served")
            )

    async def _give_up(self, exchange: Exchange, status: int = 503, error: RPCError | None = None) -> None:
        """End a response without what was due."""
        if exchange.streaming:
            await exchange.end()
        else:
            error = error or InternalError(
                "The request was given up: the server, or one of its workers, stops."
            )
            later = [(b"retry-after", LATER[status])] if status in LATER else ()
            await exchange.json(status, jsonrpc.encode_failure(None, error), later)

    def _verb(self, exchange: Exchange) -> Verb:
        """What serves a request, which comes from where it may."""
        path = exchange.path
        verbs = self._paths.get(path) or self._paths.get(trimmed(path))
        if verbs is None:
            here, chosen = exchange.root + self.settings.path, self.settings
            if chosen.stateless and trimmed(path) in {trimmed(chosen.sse or ""), chosen.messages}:
                why = "HTTP+SSE needs sessions, which stateless=True switches off"
            else:
                why = "There is nothing at this path"
            raise Refusal(404, f"{why}; MCP is at {here}.")
        verb = verbs.get(exchange.method)
        if verb is None:
            self._gate.check(exchange)
            return self._preflight if exchange.method == "OPTIONS" else self._no_verb
        if verb not in self._unguarded:
            self._gate.check(exchange)
        if not exchange.extra:  # else a browser has to be told something each time
            exchange.head.verb = verb
            self._heads.keep(exchange.head)
        return verb

    async def _preflight(self, exchange: Exchange) -> None:
        """Tell a browser what it may send."""
        allowed = self._gate.preflight(exchange)
        if allowed is None:
            await self._no_verb(exchange)
        else:
            await exchange.empty(204, allowed)

    async def _no_verb(self, exchange: Exchange) -> None:
        verbs = self._paths[trimmed(exchange.path)]
        raise Refusal(
            405,
            f"{exchange.method} is not served here."
            + (" If a web page asks, set cors=True." if exchange.method == "OPTIONS" else ""),
            [(b"allow", ", ".join(verbs).encode())],
        )

    # ----------------------------------------------------------------- messages

    async def _post(self, exchange: Exchange) -> None:
        head = exchange.head
        if not head.fits:
            check_post(exchange, self._answers)
            head.fits = True
        data = exchange.body(self.settings.max_body)
        if not isinstance(data, bytes):
            data = await data
        party, known = self._host.party, head.way
        message: Message | None = None
        route = known.read(data, party) if type(known) is KnownStateless else None
        if route is None:
            message, route = self._read(exchange, data, party, known)
        new = message is None or isinstance(message, Request)
        life = self._life
        # Until Python 3.12, to ask which loop is running is a system call of 0.2 us; this is half of it.
        if life is None or not (life.open and life.thread == get_ident() and life.loop.is_running()):
            life = await self._alive(new=new)
            life.thread = get_ident()
        if not self._knows_all:
            begun = None  # who somebody is may be a reason to refuse, and is asked first
        elif isinstance(route, Incoming):
            begun = begin_known(self._host, route, data, exchange, life.load)
        else:
            begun = self._begun(exchange, message, route, life)
        if isinstance(begun, bytes) and len(begun) < LARGE:
            await (exchange.json(200, begun) if begun else exchange.empty(202))  # if it was cancelled
            if type(known) is KnownStateless and not known.learnt and isinstance(route, Incoming):
                known.learn(data, route)
            return
        self._count(life, exchange, new=new and not _has_started(begun))
        try:
            if isinstance(begun, bytes):
                await exchange.json(200, begun)
            else:
                await self._serve(exchange, message, data, route, life=life, begun=begun)
        finally:
            del life.running[exchange]

    def _read(
        self, exchange: Exchange, data: bytes, party: Party, known: Known | None
    ) -> tuple[Message | None, ToStateless | ToSession]:
        """The message in a body, None for a batch, and where it goes.

        Raises:
            Refusal: it is none, or goes nowhere.
        """
        message = read_body(data)
        route = known.leads(message, party) if isinstance(known, KnownSession) else None
        if route is None:
            route = classify(exchange.headers, message, party)
            exchange.head.way = settled(route, message, party)
            if isinstance(route, Reject):
                raise Answered(route.status, jsonrpc.encode_failure(route.id, route.error))
        return message, route

    def _begun(
        self, exchange: Exchange, message: Message | None, route: ToStateless | ToSession, life: Life
    ) -> bytes | Taken | Underway | None:
        """The answer to a request, if it is there at once; else as far as it has begun, if it has."""
        if not isinstance(message, Request):
            return None
        if isinstance(route, ToSession):
            if route.session is None or not self._keeps_sessions:
                return None
            return life.sessions.begin(route.session, message, exchange.principal)
        return begin_stateless(self._host, message, route, exchange, life.load)

    async def _serve(
        self,
        exchange: Exchange,
        message: Message | None,
        data: bytes,
        route: Destination,
        *,
        life: Life,
        begun: Taken | Underway | None,
    ) -> None:
        """Serve what is not answered at once."""
        host, settings = self._host, self.settings
        principal = exchange.principal if settings.principal is None else await self._principal(exchange)
        caller = Caller(exchange, principal, settings.json_only, life.load, self._keeper)
        if isinstance(route, ToSession):
            assert not isinstance(begun, Taken), "that is the other era"
            if self._keeps_sessions:
                await life.legacy.post(exchange, message, data, route, principal, begun=begun)
            else:
                await serve_alone(host, message, data, route.revision, caller)
        elif isinstance(route, Incoming) or isinstance(message, Request):
            if begun is not None:
                taken = begun
            elif isinstance(route, Incoming):
                taken = begin_known(host, route, data, exchange)
            else:
                assert isinstance(message, Request), "so it was read"
                taken = begin_stateless(host, message, route, exchange)
            assert isinstance(taken, Taken), "nothing begins by itself, nor in the other era"
            listens = taken.event.row.name == "subscriptions/listen"
            timer = self._ends_with_token(exchange) if listens else None
            try:
                await serve_stateless(host, taken, caller)
            finally:
                _stop(timer)
        else:
            await hear_stateless(host, message, caller)

    async def _message(self, exchange: Exchange) -> None:
        check_post(exchange)
        data = exchange.body(self.settings.max_body)
        if not isinstance(data, bytes):
            data = await data
        message = read_body(data)
        new = isinstance(message, Request)
        life = await self._alive(new=new)
        self._count(life, exchange, new=new)
        try:
            await life.legacy.message(exchange, message, data, await self._principal(exchange))
        finally:
            del life.running[exchange]

    async def _too_large(self, exchange: Exchange, large: BodyTooLarge) -> Refusal:
        """Why a body is refused; whoever sends it is heard for a while, or it could not hear us."""
        limit = self.settings.max_body
        if large.more:
            await exchange.discard(2 * limit)
        return Refusal(
            413,
            f"The body has more than {limit} bytes; the server can allow more: max_body=.",
            [(b"connection", b"close")],
        )

    async def _get(self, exchange: Exchange) -> None:
        if self._sse_at_path and headers.SESSION not in exchange.headers:
            await self._sse(exchange)
            return
        check_get(exchange)
        self._check_revision(exchange)
        life = await self._alive()
        life.listens(exchange, life.listening)
        timer: asyncio.TimerHandle | None = None
        try:
            principal = await self._principal(exchange)
            timer = self._ends_with_token(exchange)
            relay = await life.legacy.get(exchange, principal)
            if relay is not None:
                await relay
        finally:
            _stop(timer)
            life.has_listened(exchange, life.listening)

    async def _sse(self, exchange: Exchange) -> None:
        check_get(exchange)
        life = await self._alive()
        life.listens(exchange, life.answering)
        try:
            await life.legacy.sse(exchange, await self._principal(exchange))
        finally:
            life.has_listened(exchange, life.answering)

    async def _delete(self, exchange: Exchange) -> None:
        self._check_revision(exchange)
        life = await self._alive(new=False)
        self._count(life, exchange, new=False)
        try:
            await life.legacy.delete(exchange, await self._principal(exchange))
        finally:
            del life.running[exchange]

    def _check_revision(self, exchange: Exchange) -> None:
        """Return if a request without a message names no revision, or one that we speak (HTTPL-33)."""
        named = exchange.headers.get(headers.VERSION)
        party = self._host.party
        if named is not None and named.strip(" \t") not in party.supported:
            raise Refusal(400, party.refusal(named).message)

    async def _principal(self, exchange: Exchange) -> Principal | None:
        who = self.settings.principal
        if who is not None:
            found = who(exchange.scope)
            exchange.principal = Principal.of(await found if isawaitable(found) else found)
        return exchange.principal

    def _ends_with_token(self, exchange: Exchange) -> asyncio.TimerHandle | None:
        """What ends a stream of news with the token that has opened it; its reader comes back with another.

        To be stopped when the stream ends before.
        """
        principal = exchange.principal
        ends = None if self._keeper is None or principal is None else principal.claims.get("exp")
        if not isinstance(ends, int | float):
            return None
        left = max(ends - time.time(), AT_LEAST)
        return asyncio.get_running_loop().call_later(left, exchange.hang_up)

    # ----------------------------------------------------------------- metadata

    @property
    def metadata(self) -> Callable[[Scope, ASGIReceive, ASGISend], Awaitable[None]]:
        """An ASGI application with what is published about this one, for a framework that mounts both.

        Mount it at "/.well-known/oauth-protected-resource"; of several servers, each below that, at its own
        path, or the first hides the others.
        """
        if self._keeper is not None:
            self._keeper.placed = True
        return self._metadata

    # ----------------------------------------------------------------- health

    async def _live(self, exchange: Exchange) -> None:
        await exchange.json(200, b'{"status":"alive"}')

    async def _ready(self, exchange: Exchange) -> None:
        try:
            await self._alive()
        except Refusal:
            await exchange.json(503, b'{"status":"stopping"}', [(b"retry-after", LATER[503])])
        else:
            await exchange.json(200, b'{"status":"ready"}')

    # ----------------------------------------------------------------- life

    def _count(self, life: Life, exchange: Exchange, *, new: bool) -> None:
        """Count a request as running, until it is taken out; one that is not new belongs to another one.

        Neither a context manager nor awaited: as both it takes 4 us of 15.
        """
        if new and life.load.calls >= life.load.max_calls:
            raise Refusal(
                503, f"{life.load.max_calls} requests are being served, and no more can be (max_calls=)."
            )
        task = asyncio.current_task()
        assert task is not None, "a request is served in a task"
        life.running[exchange] = task

    async def _alive(self, *, new: bool = True) -> Life:
        """The life of this endpoint in this loop, which begins with the first request at the latest."""
        life = self._life
        if life is None or life.loop is not asyncio.get_running_loop():
            settings = self.settings
            sessions = Sessions(
                self._host.store,
                self._host.serve,
                settings.limits,
                json_only=settings.json_only,
                chosen=self._host.chooses,
                load=Load(self._host.connection().limit, settings.max_calls, settings.max_streams),
            )
            scoped = self._keeper is not None or settings.principal is not None
            needs = self._host.needs if scoped else None
            legacy = Legacy(sessions, settings.messages, self._keeper, needs)
            life = self._life = Life(self._host, sessions, legacy)
        if life.stopping if new else life.over:
            raise _stops()
        try:
            await life.begun()
        except Exception:  # whatever a lifespan raises
            if self._life is life:
                self._life = None  # the next request tries again
            raise
        return life

    async def _live_through(self, receive: ASGIReceive, send: ASGISend) -> None:
        """The lifespan protocol of ASGI."""
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    logger.exception("the server could not be started")
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                try:
                    await self.stop()
                except Exception as error:
                    logger.exception("the server could not be stopped in order")
                    await send({"type": "lifespan.shutdown.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def start(self) -> None:
        """Get ready to serve; the first request does it otherwise."""
        if self._life is not None and self._life.stopping:
            self._life = None
        await self._alive()

    async def stop(self) -> None:
        """Take no new requests, end streams, let running requests finish for a while, then give them up."""
        life = self._life
        if life is not None and life.loop is asyncio.get_running_loop():
            self._host.end_listens()
            await life.end(self.settings.drain)

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """The life of the endpoint, for a framework that mounts it: `Starlette(lifespan=app.lifespan)`."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()


def _has_started(begun: bytes | Taken | Underway | None) -> bool:
    """Whether it is too late to refuse a request."""
    return begun is not None and (not isinstance(begun, Taken) or begun.started is not None)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _stops() -> Refusal:
    return Refusal(503, "The server stops, and takes no new requests.")
