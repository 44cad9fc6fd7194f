"""One endpoint for all revisions: a plain ASGI application that needs no framework.

Routes paths and HTTP methods, starts and stops the endpoint, and turns errors into responses. Headers and
body decide whether a message is served without a session or in one. Knows a server only as `EndpointHost`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from threading import get_ident
from typing import Final, TypeAlias

from toolpost.errors import InternalError
from toolpost.principal import Principal
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.http_routing import (
    KnownRoute,
    KnownSession,
    KnownStateless,
    RejectedRoute,
    SessionRoute,
    StatelessRoute,
    classify,
    make_known_route,
)
from toolpost.protocol.jsonrpc import JSONRPCMessage, JSONRPCRequest
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import SUBSCRIPTIONS_LISTEN
from toolpost.server.http.authorization import Authenticator, ResourceMetadataApp, strip_trailing_slash
from toolpost.server.http.capacity import RequestCounts
from toolpost.server.http.request import (
    ASGIReceive,
    ASGIScope,
    ASGISend,
    BodyTooLarge,
    BodyTooSlow,
    ClientDisconnected,
    HttpExchange,
    KnownHeads,
    ResponseAborted,
)
from toolpost.server.http.security import (
    EVENTS,
    JSON,
    RETRY_AFTER,
    HTTPRefusal,
    RequestGuard,
    check_get,
    check_post,
    read_body,
)
from toolpost.server.http.session_endpoints import SessionEndpoints
from toolpost.server.http.sessions import Sessions, StartedSessionRequest
from toolpost.server.http.shutdown import EndpointLifetime
from toolpost.server.http.stateless import (
    AcceptedRequest,
    Caller,
    EndpointHost,
    RPCRefusal,
    begin_known,
    begin_stateless,
    receive_stateless,
    serve_stateless,
    serve_without_session,
)
from toolpost.server.options import HttpOptions

logger: Final = logging.getLogger("toolpost.http")

LARGE_ANSWER: Final = 64 * 1024
"""Bytes of an answer that a network does not take at once: a shutdown waits until such are sent."""

MIN_STREAM_LIFETIME: Final = 30.0
"""Seconds for which a stream stays open at least, however soon its token expires: clocks differ."""

Destination: TypeAlias = StatelessRoute | SessionRoute | InboundRequest
"""Where a message goes; the request itself if its head is known."""

MethodFunction: TypeAlias = Callable[[HttpExchange], Awaitable[None]]


class Endpoint:
    """A server as an ASGI application."""

    def __init__(
        self,
        host: EndpointHost,
        settings: HttpOptions,
        gate: RequestGuard,
        keeper: Authenticator | None = None,
    ) -> None:
        self._authenticator = keeper
        self._metadata = ResourceMetadataApp(keeper)
        self._host = host
        self.settings = settings
        self._guard = gate
        self._is_self_contained = settings.principal is None
        """Whether no function of the user has to be called for the principal of a request."""
        self._has_sessions = not settings.stateless and host.local_peer.has_sessions
        sse_path = None if settings.sse is None else strip_trailing_slash(settings.sse)
        self._has_sse_at_path = sse_path == strip_trailing_slash(settings.path)
        self._paths = self._build_routes()
        # Health checks use our address, not our name; and published documents are for everyone.
        self._unguarded = frozenset({self._answer_live, self._answer_ready, self._metadata.send_document})
        self._tokenless = self._unguarded | {self._answer_preflight}  # browsers send no token there
        self._answer_types = (JSON,) if settings.json_only else (JSON, EVENTS)
        self._head_cache = KnownHeads()
        self._life: EndpointLifetime | None = None

    def _build_routes(self) -> dict[str, dict[str, MethodFunction]]:
        """Return path → HTTP method → function; raise ValueError for an impossible path."""
        chosen = self.settings
        paths: dict[str, dict[str, MethodFunction]] = {}

        def add(name: str, path: str, **verbs: MethodFunction) -> None:
            if not path.startswith("/"):
                raise ValueError(f"{name} is {path!r}; a path starts with /")
            served = paths.setdefault(strip_trailing_slash(path), {})
            if served.keys() & verbs:
                raise ValueError(f"{name} is {path!r}, where something else is served already")
            served.update(verbs)

        add("path", chosen.path, POST=self._post)
        if self._has_sessions:
            add("path", chosen.path, GET=self._get, DELETE=self._delete)
            if chosen.sse is not None:
                if not self._has_sse_at_path:
                    add("sse", chosen.sse, GET=self._serve_sse)
                add("messages", chosen.messages, POST=self._post_message)
        if chosen.health is not None:
            ready = f"{strip_trailing_slash(chosen.health)}/ready"
            add("health", chosen.health, GET=self._answer_live, HEAD=self._answer_live)
            add("health", ready, GET=self._answer_ready, HEAD=self._answer_ready)
        for path in () if self._authenticator is None else self._authenticator.metadata_documents:
            if path not in paths:
                answer = self._metadata.send_document
                add("auth", path, GET=answer, HEAD=answer, OPTIONS=answer)
        return paths

    async def __call__(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve one request, or the lifespan of the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._run_lifespan(receive, send)
            else:
                await send({"type": "websocket.close", "code": 1003, "reason": "there is no WebSocket here"})
            return
        exchange = HttpExchange(scope, receive, send, self._head_cache.get_head(scope))
        try:
            verb: MethodFunction = exchange.head.verb or self._find_method(exchange)
            if self._authenticator is not None and verb not in self._tokenless:
                exchange.principal = await self._authenticator.authenticate(exchange)
            await verb(exchange)
        except asyncio.CancelledError:
            if not exchange.streaming:
                raise
            # An ASGI server that stops cancels streams, and would log what we raise.
            await exchange.end_stream()
        except Exception as error:  # noqa: BLE001 - each request fails alone
            await self._answer_failure(exchange, error)

    async def _answer_failure(self, exchange: HttpExchange, error: Exception) -> None:
        """Answer a request that could not be served."""
        if isinstance(error, BodyTooLarge):
            limit = self.settings.max_body
            text = f"The body has more than {limit} bytes; the server can allow more: max_body=."
            try:
                if error.more:  # a client that still sends would not read our answer
                    await exchange.discard_body(2 * limit)
                error = HTTPRefusal(413, text, [(b"connection", b"close")])
            except ClientDisconnected as gone:
                error = gone
        elif isinstance(error, BodyTooSlow):
            error = HTTPRefusal(408, "The body did not come in time.", [(b"connection", b"close")])
        if isinstance(error, HTTPRefusal):
            await exchange.send_json(error.status, error.body, error.headers)
        elif isinstance(error, ClientDisconnected):
            logger.debug("%s %s: the client has gone", exchange.method, exchange.path)
            await exchange.finish_disconnected()
        elif isinstance(error, ResponseAborted):
            text = "The request was given up: the server, or one of its workers, stops."
            await self._abort_response(exchange, 503, text)
        else:
            logger.error("%s %s failed", exchange.method, exchange.path, exc_info=error)
            text = "Internal error: the request could not be served"
            await self._abort_response(exchange, 500, text)

    async def _abort_response(self, exchange: HttpExchange, status: int, error: str) -> None:
        """End a response without an answer."""
        if exchange.streaming:
            await exchange.end_stream()
        else:
            later = [(b"retry-after", RETRY_AFTER[status])] if status in RETRY_AFTER else ()
            await exchange.send_json(status, jsonrpc.encode_error(None, InternalError(error)), later)

    def _find_method(self, exchange: HttpExchange) -> MethodFunction:
        """Return the function that serves a request, after the checks of host and origin."""
        path = exchange.path
        verbs = self._paths.get(path) or self._paths.get(strip_trailing_slash(path))
        if verbs is None:
            here, chosen = exchange.root + self.settings.path, self.settings
            sse_paths = {strip_trailing_slash(chosen.sse or ""), chosen.messages}
            if chosen.stateless and strip_trailing_slash(path) in sse_paths:
                why = "HTTP+SSE needs sessions, which stateless=True switches off"
            else:
                why = "There is nothing at this path"
            raise HTTPRefusal(404, f"{why}; MCP is at {here}.")
        verb = verbs.get(exchange.method)
        if verb is None:
            self._guard.check(exchange)
            return self._answer_preflight if exchange.method == "OPTIONS" else self._refuse_method
        if verb not in self._unguarded:
            self._guard.check(exchange)
        if not exchange.extra:  # else the response has headers for a browser
            exchange.head.verb = verb
            self._head_cache.keep(exchange.head)
        return verb

    async def _answer_preflight(self, exchange: HttpExchange) -> None:
        """Answer the preflight request of a browser."""
        allowed = self._guard.get_preflight_headers(exchange)
        if allowed is None:
            await self._refuse_method(exchange)
        else:
            await exchange.send_empty(204, allowed)

    async def _refuse_method(self, exchange: HttpExchange) -> None:
        verbs = self._paths[strip_trailing_slash(exchange.path)]
        hint = " If a web page asks, set cors=True." if exchange.method == "OPTIONS" else ""
        allowed = [(b"allow", ", ".join(verbs).encode())]
        raise HTTPRefusal(405, f"{exchange.method} is not served here.{hint}", allowed)

    # ----------------------------------------------------------------- messages

    async def _post(self, exchange: HttpExchange) -> None:
        head = exchange.head
        if not head.fits:
            check_post(exchange, self._answer_types)
            head.fits = True
        data = exchange.receive_body(self.settings.max_body)
        if not isinstance(data, bytes):
            data = await data
        party, known = self._host.local_peer, head.way
        message: JSONRPCMessage | None = None
        route = known.read(data, party) if type(known) is KnownStateless else None
        if route is None:
            message, route = self._read_message(exchange, data, party, known)
        new = message is None or isinstance(message, JSONRPCRequest)
        life = self._life
        # Cheaper than asking for the running loop, which is a system call before Python 3.12.
        if life is None or not (life.open and life.thread == get_ident() and life.loop.is_running()):
            life = await self._ensure_started(new=new)
            life.thread = get_ident()
        if not self._is_self_contained:
            begun = None  # the principal may be a reason to refuse it, and comes first
        elif isinstance(route, InboundRequest):
            begun = begin_known(self._host, route, data, exchange, life.load)
        else:
            begun = self._begin(exchange, message, route, life)
        if isinstance(begun, bytes) and len(begun) < LARGE_ANSWER:
            # There is no answer if it was cancelled.
            await (exchange.send_json(200, begun) if begun else exchange.send_empty(202))
            if type(known) is KnownStateless and not known.has_learned and isinstance(route, InboundRequest):
                known.learn(data, route)
            return
        self._count_request(life, exchange, new=new and not _has_started(begun))
        try:
            if isinstance(begun, bytes):
                await exchange.send_json(200, begun)
            else:
                await self._serve(exchange, message, data, route, life=life, begun=begun)
        finally:
            del life.running[exchange]

    def _read_message(
        self, exchange: HttpExchange, data: bytes, party: LocalPeer, known: KnownRoute | None
    ) -> tuple[JSONRPCMessage | None, StatelessRoute | SessionRoute]:
        """Return the message in a body, None for a batch, and its route; raise HTTPRefusal if it has none."""
        message = read_body(data)
        route = known.find_route(message, party) if isinstance(known, KnownSession) else None
        if route is None:
            route = classify(exchange.headers, message, party)
            exchange.head.way = make_known_route(route, message, party)
            if isinstance(route, RejectedRoute):
                raise RPCRefusal(route.status, jsonrpc.encode_error(route.id, route.error))
        return message, route

    def _begin(
        self,
        exchange: HttpExchange,
        message: JSONRPCMessage | None,
        route: StatelessRoute | SessionRoute,
        life: EndpointLifetime,
    ) -> bytes | AcceptedRequest | StartedSessionRequest | None:
        """Start a request. Return its answer if that is there at once, or what was started, or None."""
        if not isinstance(message, JSONRPCRequest):
            return None
        if isinstance(route, SessionRoute):
            if route.session is None or not self._has_sessions:
                return None
            return life.sessions.begin(route.session, message, exchange.principal)
        return begin_stateless(self._host, message, route, exchange, life.load)

    async def _serve(
        self,
        exchange: HttpExchange,
        message: JSONRPCMessage | None,
        data: bytes,
        route: Destination,
        *,
        life: EndpointLifetime,
        begun: AcceptedRequest | StartedSessionRequest | None,
    ) -> None:
        """Serve a message that was not answered at once."""
        host = self._host
        principal = await self._resolve_principal(exchange)
        caller = Caller(exchange, principal, self.settings.json_only, life.load, self._authenticator)
        if isinstance(route, SessionRoute):
            assert not isinstance(begun, AcceptedRequest), "it belongs to a session"
            if self._has_sessions:
                await life.legacy.post(exchange, message, data, route, principal, begun=begun)
            else:
                await serve_without_session(host, message, data, route.revision, caller)
        elif isinstance(route, InboundRequest) or isinstance(message, JSONRPCRequest):
            if begun is not None:
                taken = begun
            elif isinstance(route, InboundRequest):
                taken = begin_known(host, route, data, exchange)
            else:
                assert isinstance(message, JSONRPCRequest), "checked above"
                taken = begin_stateless(host, message, route, exchange)
            assert isinstance(taken, AcceptedRequest), "without counts, no request is answered at once"
            listens = taken.event.row.name == SUBSCRIPTIONS_LISTEN
            timer = self._end_with_token(exchange) if listens else None
            try:
                await serve_stateless(host, taken, caller)
            finally:
                _cancel_timer(timer)
        else:
            await receive_stateless(host, message, caller)

    async def _post_message(self, exchange: HttpExchange) -> None:
        check_post(exchange)
        data = exchange.receive_body(self.settings.max_body)
        if not isinstance(data, bytes):
            data = await data
        message = read_body(data)
        new = isinstance(message, JSONRPCRequest)
        life = await self._ensure_started(new=new)
        self._count_request(life, exchange, new=new)
        try:
            await life.legacy.post_message(exchange, message, data, await self._resolve_principal(exchange))
        finally:
            del life.running[exchange]

    async def _get(self, exchange: HttpExchange) -> None:
        if self._has_sse_at_path and headers.SESSION not in exchange.headers:
            await self._serve_sse(exchange)
            return
        check_get(exchange)
        self._check_revision(exchange)
        life = await self._ensure_started()
        life.add_stream(exchange, life.listening)
        timer: asyncio.TimerHandle | None = None
        try:
            principal = await self._resolve_principal(exchange)
            timer = self._end_with_token(exchange)
            relay = await life.legacy.get(exchange, principal)
            if relay is not None:
                await relay
        finally:
            _cancel_timer(timer)
            life.remove_stream(exchange, life.listening)

    async def _serve_sse(self, exchange: HttpExchange) -> None:
        check_get(exchange)
        life = await self._ensure_started()
        life.add_stream(exchange, life.answering)
        try:
            await life.legacy.serve_sse(exchange, await self._resolve_principal(exchange))
        finally:
            life.remove_stream(exchange, life.answering)

    async def _delete(self, exchange: HttpExchange) -> None:
        self._check_revision(exchange)
        life = await self._ensure_started(new=False)
        self._count_request(life, exchange, new=False)
        try:
            await life.legacy.delete(exchange, await self._resolve_principal(exchange))
        finally:
            del life.running[exchange]

    def _check_revision(self, exchange: HttpExchange) -> None:
        """Refuse a request without a message that names a revision that we do not speak (HTTPL-33)."""
        named = exchange.headers.get(headers.VERSION)
        party = self._host.local_peer
        if named is not None and named.strip(" \t") not in party.supported:
            raise HTTPRefusal(400, party.make_unsupported_error(named).message)

    async def _resolve_principal(self, exchange: HttpExchange) -> Principal | None:
        who = self.settings.principal
        if who is not None:
            found = who(exchange.scope)
            exchange.principal = Principal.from_value(await found if isawaitable(found) else found)
        return exchange.principal

    def _end_with_token(self, exchange: HttpExchange) -> asyncio.TimerHandle | None:
        """Start the timer that ends a long stream with its token; the client reconnects with another one."""
        principal = exchange.principal
        ends = None if self._authenticator is None or principal is None else principal.claims.get("exp")
        if not isinstance(ends, int | float):
            return None
        left = max(ends - time.time(), MIN_STREAM_LIFETIME)
        return asyncio.get_running_loop().call_later(left, exchange.abort)

    # ----------------------------------------------------------------- metadata

    @property
    def metadata(self) -> Callable[[ASGIScope, ASGIReceive, ASGISend], Awaitable[None]]:
        """An ASGI application with the metadata of this one, for a framework that mounts both.

        Mount it at "/.well-known/oauth-protected-resource"; of several servers, mount each below that, at its
        own path, or the first hides the others.
        """
        if self._authenticator is not None:
            self._authenticator.is_metadata_mounted = True
        return self._metadata

    # ----------------------------------------------------------------- health

    async def _answer_live(self, exchange: HttpExchange) -> None:
        await exchange.send_json(200, b'{"status":"alive"}')

    async def _answer_ready(self, exchange: HttpExchange) -> None:
        try:
            await self._ensure_started()
        except HTTPRefusal:
            await exchange.send_json(503, b'{"status":"stopping"}', [(b"retry-after", RETRY_AFTER[503])])
        else:
            await exchange.send_json(200, b'{"status":"ready"}')

    # ----------------------------------------------------------------- lifetime

    def _count_request(self, life: EndpointLifetime, exchange: HttpExchange, *, new: bool) -> None:
        """Count a request as running; the caller removes it. One that is not new belongs to another one."""
        if new and life.load.calls >= life.load.max_calls:
            raise HTTPRefusal(
                503, f"{life.load.max_calls} requests are being served, and no more can be (max_calls=)."
            )
        task = asyncio.current_task()
        assert task is not None, "a request is served in a task"
        life.running[exchange] = task

    async def _ensure_started(self, *, new: bool = True) -> EndpointLifetime:
        """Return the lifetime of this endpoint in this loop; the first request starts it."""
        life = self._life
        if life is None or life.loop is not asyncio.get_running_loop():
            settings = self.settings
            sessions = Sessions(
                self._host.store,
                self._host.serve,
                settings,
                json_only=settings.json_only,
                chosen=self._host.is_per_client,
                load=RequestCounts(self._host.connection().limit, settings.max_calls, settings.max_streams),
            )
            scoped = self._authenticator is not None or settings.principal is not None
            needs = self._host.get_required_scopes if scoped else None
            legacy = SessionEndpoints(sessions, settings.messages, self._authenticator, needs)
            life = self._life = EndpointLifetime(self._host, sessions, legacy)
        if life.stopping if new else life.over:
            raise HTTPRefusal(503, "The server stops, and takes no new requests.")
        try:
            await life.wait_until_ready()
        except Exception:  # a lifespan of the user
            if self._life is life:
                self._life = None  # the next request tries again
            raise
        return life

    async def _run_lifespan(self, receive: ASGIReceive, send: ASGISend) -> None:
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
        """Start the endpoint; otherwise the first request does it."""
        if self._life is not None and self._life.stopping:
            self._life = None
        await self._ensure_started()

    async def stop(self) -> None:
        """Refuse new requests, end streams, let running requests finish for a while, then cancel them."""
        life = self._life
        if life is not None and life.loop is asyncio.get_running_loop():
            self._host.end_subscriptions()
            await life.end(self.settings.drain)

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Start and stop the endpoint, for a framework that mounts it: `Starlette(lifespan=app.lifespan)`."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()


def _has_started(begun: bytes | AcceptedRequest | StartedSessionRequest | None) -> bool:
    """Return whether it is too late to refuse a request."""
    return begun is not None and (not isinstance(begun, AcceptedRequest) or begun.started is not None)


def _cancel_timer(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
