"""One endpoint for all revisions: a plain ASGI application that needs no framework.

Routes paths and HTTP methods, starts and stops the worker behind them, and turns errors into responses. What
a message means is left to `post`, event streams to `streams` and `sse`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from math import inf
from typing import Final, TypeAlias

from toolpost.errors import InternalError
from toolpost.principal import Principal
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.jsonrpc import JSONRPCMessage
from toolpost.server.handler import Handler
from toolpost.server.http.authorization import (
    Authenticator,
    ResourceMetadataApp,
    make_authenticator,
    strip_trailing_slash,
)
from toolpost.server.http.post import MISSING_SESSION_TEXT, serve_post
from toolpost.server.http.request import (
    ASGIReceive,
    ASGIScope,
    ASGISend,
    BodyTooLarge,
    BodyTooSlow,
    ClientDisconnected,
    HttpExchange,
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
from toolpost.server.http.sse import post_message, serve_sse
from toolpost.server.http.streams import GENERAL, GeneralStream, resume_stream
from toolpost.server.http.worker import Worker
from toolpost.server.options import HttpOptions

logger: Final = logging.getLogger("toolpost.http")

MethodFunction: TypeAlias = Callable[[HttpExchange], Awaitable[None]]

_CLOSE_CONNECTION: Final = (b"connection", b"close")
_OPTION_MINIMUMS: Final = {
    "max_body": 1,
    "max_calls": 1,
    "max_streams": 1,
    "handshake": 0.001,
    "idle": 0.001,
    "session_life": 1,
    "drain": 0,
}


def make_endpoint(handler: Handler, options: HttpOptions) -> "Endpoint":
    """Return a server as an ASGI application. Raises ValueError, with its name, if an option cannot work."""
    for name, least in _OPTION_MINIMUMS.items():
        value = getattr(options, name)
        if not least <= value < inf:
            raise ValueError(f"{name} is {value!r}; give a number, {least:g} or more, that is finite")
    guard = RequestGuard(
        public_url=options.public_url,
        allowed_hosts=options.allowed_hosts,
        allowed_origins=options.allowed_origins,
        cors=options.cors,
    )
    return Endpoint(handler, options, guard, make_authenticator(handler, options))


class Endpoint:
    """A server as an ASGI application."""

    def __init__(
        self,
        handler: Handler,
        settings: HttpOptions,
        guard: RequestGuard,
        authenticator: Authenticator | None,
    ) -> None:
        self._authenticator = authenticator
        self._metadata = ResourceMetadataApp(authenticator)
        self._handler = handler
        self.settings = settings
        self._guard = guard
        self._has_sessions = not settings.stateless and handler.local_peer.has_sessions
        sse_path = None if settings.sse is None else strip_trailing_slash(settings.sse)
        self._has_sse_at_path = sse_path == strip_trailing_slash(settings.path)
        self._paths = self._build_routes()
        # Health checks use our address, not our name; and published documents are for everyone.
        self._unguarded = frozenset({self._answer_live, self._answer_ready, self._metadata.send_document})
        self._tokenless = self._unguarded | {self._answer_preflight}  # browsers send no token there
        self._answer_types = (JSON,) if settings.json_only else (JSON, EVENTS)
        self._worker: Worker | None = None

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
        exchange = HttpExchange(scope, receive, send)
        try:
            verb = self._find_method(exchange)
            if self._authenticator is not None and verb not in self._tokenless:
                exchange.principal = await self._authenticator.authenticate(exchange)
            await verb(exchange)
        except asyncio.CancelledError:
            if self._worker is not None and self._worker.is_over:
                await self._answer_failure(exchange, ResponseAborted())
            elif exchange.streaming:
                # An ASGI server that stops cancels streams, and would log what we raise.
                await exchange.end_stream()
            else:
                raise
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

    async def _post_message(self, exchange: HttpExchange) -> None:
        await self._post(exchange, post_message, ())

    async def _post(
        self,
        exchange: HttpExchange,
        serve: Callable[[Worker, HttpExchange, JSONRPCMessage | None, bytes], Awaitable[None]] = serve_post,
        answer_types: tuple[str, ...] | None = None,
    ) -> None:
        """Read the message of a POST, and serve it."""
        check_post(exchange, self._answer_types if answer_types is None else answer_types)
        data = exchange.receive_body(self.settings.max_body)
        if not isinstance(data, bytes):
            data = await data
        message = read_body(data)
        worker, task = self._worker, asyncio.current_task()
        assert task is not None, "a request is served in a task"
        if worker is None or worker.is_draining or not worker.is_open or worker.loop is not task.get_loop():
            worker = await self._get_worker(exchange)
        worker.running[exchange] = task
        worker.timer.fresh[exchange] = False
        if not worker.timer.is_checking:
            worker.timer.start()
        try:
            if self.settings.principal is not None:
                await self._resolve_principal(exchange)
            await serve(worker, exchange, message, data)
        finally:
            del worker.running[exchange]
            worker.timer.fresh.pop(exchange, None)

    async def _get(self, exchange: HttpExchange) -> None:
        if self._has_sse_at_path and headers.SESSION not in exchange.headers:
            await self._serve_sse(exchange)
            return
        check_get(exchange)
        self._check_revision(exchange)
        worker = await self._get_worker(exchange)
        worker.add_stream(exchange)
        timer: asyncio.TimerHandle | None = None
        try:
            await self._resolve_principal(exchange)
            timer = worker.end_with_token(exchange)
            session = await worker.sessions.find(_get_session_id(exchange), exchange.principal)
            last = exchange.headers.get(headers.LAST_EVENT) or None
            if last is not None and last.partition(".")[0] != GENERAL:
                await resume_stream(worker, exchange, session, last)
            else:
                server = await worker.get_server(session, exchange)
                lifespan = worker.lifespan if session.server is None else session.server[1]
                await GeneralStream(worker, exchange, session, server, lifespan).run(last)
        finally:
            if timer is not None:
                timer.cancel()
            worker.remove_stream(exchange)

    async def _serve_sse(self, exchange: HttpExchange) -> None:
        check_get(exchange)
        worker = await self._get_worker(exchange)
        worker.add_stream(exchange)
        worker.listening.discard(exchange)  # it carries answers, too, and ends when they are sent
        try:
            await self._resolve_principal(exchange)
            await serve_sse(worker, exchange)
        finally:
            worker.remove_stream(exchange)

    async def _delete(self, exchange: HttpExchange) -> None:
        self._check_revision(exchange)
        worker = await self._get_worker(exchange)
        await self._resolve_principal(exchange)
        session = await worker.sessions.find(_get_session_id(exchange), exchange.principal)
        await worker.sessions.end(session)
        await exchange.send_empty(200)

    def _check_revision(self, exchange: HttpExchange) -> None:
        """Refuse a request without a message that names a revision that we do not speak (HTTPL-33)."""
        named = exchange.headers.get(headers.VERSION)
        local_peer = self._handler.local_peer
        if named is not None and named.strip(" \t") not in local_peer.supported:
            raise HTTPRefusal(400, local_peer.make_unsupported_error(named).message)

    async def _resolve_principal(self, exchange: HttpExchange) -> None:
        """Ask the function of the user, if there is one, on whose behalf a request speaks."""
        find = self.settings.principal
        if find is not None:
            found = find(exchange.scope)
            exchange.principal = Principal.from_value(await found if isawaitable(found) else found)

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
            is_ready = not (await self._get_worker(exchange)).is_draining
        except HTTPRefusal:
            is_ready = False
        if is_ready:
            await exchange.send_json(200, b'{"status":"ready"}')
        else:
            await exchange.send_json(503, b'{"status":"stopping"}', [(b"retry-after", RETRY_AFTER[503])])

    # ----------------------------------------------------------------- lifetime

    async def _get_worker(self, exchange: HttpExchange) -> Worker:
        """Return the worker for a request; the first request starts it."""
        worker = self._worker
        if worker is None or not worker.is_open or worker.loop is not asyncio.get_running_loop():
            worker = await self._ensure_started()
        if worker.is_draining:
            exchange.extra = (*exchange.extra, _CLOSE_CONNECTION)
        return worker

    async def _ensure_started(self) -> Worker:
        """Return the worker in this loop, once it is ready."""
        worker = self._worker
        if worker is None or worker.loop is not asyncio.get_running_loop():
            worker = self._worker = Worker(self._handler, self.settings, self._authenticator)
        if worker.is_over:
            raise HTTPRefusal(503, "The server stops, and takes no new requests.")
        try:
            await worker.wait_until_ready()
        except Exception:  # a lifespan of the user
            if self._worker is worker:
                self._worker = None  # the next request tries again
            raise
        return worker

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
        if self._worker is not None and self._worker.is_draining:
            self._worker = None
        await self._ensure_started()

    async def drain(self) -> None:
        """End streams, and let running requests finish for a while; new ones are served, then closed."""
        worker = self._worker
        if worker is not None and worker.loop is asyncio.get_running_loop() and not worker.is_draining:
            self._handler.end_subscriptions()
            await worker.drain(self.settings.drain)

    async def stop(self) -> None:
        """Drain, then refuse new requests and cancel what still runs."""
        await self.drain()
        worker = self._worker
        if worker is not None and worker.loop is asyncio.get_running_loop():
            await worker.end()

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Start and stop the endpoint, for a framework that mounts it: `Starlette(lifespan=app.lifespan)`."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()


def _get_session_id(exchange: HttpExchange) -> str:
    session_id = exchange.headers.get(headers.SESSION)
    if session_id is None:
        raise HTTPRefusal(400, MISSING_SESSION_TEXT)
    if not headers.is_valid_session_id(session_id):
        raise HTTPRefusal(400, "The session id has characters that it may not have.")
    return session_id
