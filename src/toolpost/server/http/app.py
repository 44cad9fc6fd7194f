"""One endpoint for all revisions: a plain ASGI application that needs no framework.

Routes paths and HTTP methods, starts and stops the worker behind them, and turns errors into responses.
Messages are left to `post`, event streams to `streams` and `sse`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from inspect import isawaitable
from math import inf
from typing import Final

from toolpost import types
from toolpost.errors import InternalError, RemoteProtocolError, StoreUnavailable
from toolpost.principal import Principal
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.jsonrpc import JSONRPCMessage
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.handler import Handler
from toolpost.server.http.authorization import Authenticator, ResourceMetadataApp, strip_trailing_slash
from toolpost.server.http.exchange import (
    CLOSE_CONNECTION,
    ASGIReceive,
    ASGIScope,
    ASGISend,
    ClientDisconnected,
    HttpExchange,
    HTTPRefusal,
    MethodFunction,
    ResponseAborted,
    Route,
)
from toolpost.server.http.post import MISSING_SESSION_TEXT, serve_post
from toolpost.server.http.security import (
    EVENTS,
    JSON,
    RequestGuard,
    check_get,
    find_media_type_error,
    make_message_refusal,
)
from toolpost.server.http.sessions import Session, has_sessions, hold_process_lease
from toolpost.server.http.sse_transport import post_message, serve_sse
from toolpost.server.http.streams import GENERAL, GeneralStream, ResumedStream
from toolpost.server.http.worker import Worker
from toolpost.server.options import HttpOptions

logger: Final = logging.getLogger("toolpost.http")

STORE_CHECK_TIMEOUT: Final = 0.5  # seconds: probes wait for one by default

_NO_ROUTES: Final[dict[str, Route]] = {}
_OPTION_MINIMUMS: Final = {
    "max_body": 1,
    "max_calls": 1,
    "max_streams": 1,
    "handshake": 0.001,
    "idle": 0.001,
    "session_life": 1,
    "drain": 0,
}


class Endpoint:
    """A server as an ASGI application. Raises ValueError, with its name, if an option cannot work."""

    def __init__(self, handler: Handler, settings: HttpOptions) -> None:
        for name, least in _OPTION_MINIMUMS.items():
            value = getattr(settings, name)
            if not least <= value < inf:
                raise ValueError(f"{name} must be a finite number of at least {least:g}, not {value!r}")
        if handler.auth is not None and settings.principal is not None:
            raise ValueError("principal= and auth= are mutually exclusive; pass one of them")
        self._guard = RequestGuard(settings)
        self._authenticator = None if handler.auth is None else Authenticator(handler, handler.auth, settings)
        documents = {} if self._authenticator is None else self._authenticator.metadata_documents
        self._metadata = ResourceMetadataApp(documents)
        self._handler = handler
        self.settings = settings
        sse, path = settings.sse, strip_trailing_slash(settings.path)
        self._has_sse_at_path = sse is not None and strip_trailing_slash(sse) == path
        login_routes = {} if self._authenticator is None else self._authenticator.login_routes
        self._paths = self._build_routes(documents, login_routes)
        self._metrics = None if settings.metrics is None else handler.count_in()
        self._authenticates = self._authenticator is not None or settings.principal is not None
        self._answer_types = (JSON,) if settings.json_only else (JSON, EVENTS)
        self._worker: Worker | None = None

    def _build_routes(
        self, documents: Mapping[str, bytes], login_routes: dict[str, dict[str, Route]]
    ) -> dict[str, dict[str, Route]]:
        """Return path → HTTP method → route; raise ValueError for an impossible path."""
        chosen, answer = self.settings, self._metadata.serve
        paths = login_routes

        def add(name: str, path: str, *, is_public: bool = False, **verbs: MethodFunction) -> None:
            if not path.startswith("/"):
                raise ValueError(f"{name} must start with '/', not {path!r}")
            served = paths.setdefault(strip_trailing_slash(path), {})
            if served.keys() & verbs:
                raise ValueError(f"{name}: {path!r} is already in use")
            served.update({verb: Route(serve, not is_public, not is_public) for verb, serve in verbs.items()})

        add("path", chosen.path, POST=self._post)
        if has_sessions(self._handler, chosen):
            add("path", chosen.path, GET=self._get, DELETE=self._delete)
            if chosen.sse is not None:
                if not self._has_sse_at_path:
                    add("sse", chosen.sse, GET=self._serve_sse)
                add("messages", chosen.messages, POST=self._post_message)
        for name, place, serve in self._list_public_routes():
            add(name, place, is_public=True, GET=serve, HEAD=serve)
        for path in documents:
            if path not in paths:
                add("auth", path, is_public=True, GET=answer, HEAD=answer, OPTIONS=answer)
        return paths

    def _list_public_routes(self) -> Iterator[tuple[str, str, MethodFunction]]:
        """Yield the pages for operators, with their options."""
        if self.settings.health is not None:
            yield "health", self.settings.health, self._answer_live
            yield "health", f"{strip_trailing_slash(self.settings.health)}/ready", self._answer_ready
        if self.settings.metrics is not None:
            yield "metrics", self.settings.metrics, self._answer_metrics

    async def __call__(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve one request, or the lifespan of the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._run_lifespan(receive, send)
            else:
                await send({"type": "websocket.close", "code": 1003, "reason": "WebSocket is not supported"})
            return
        exchange = HttpExchange(scope, receive, send)
        try:
            route = self._paths.get(exchange.path, _NO_ROUTES).get(exchange.method)
            if route is None:
                route = self._find_route(exchange)
            if route.is_guarded:
                self._guard.check(exchange)
            if self._authenticates and route.needs_token:
                await self._authenticate(exchange)
            await route.serve(exchange)
        except asyncio.CancelledError:
            if self._worker is not None and self._worker.is_over:
                await self._answer_failure(exchange, ResponseAborted())
            elif exchange.streaming:
                # An ASGI server that stops cancels streams, and would log the exception.
                await exchange.end_stream()
            else:
                raise
        except Exception as error:  # noqa: BLE001 - each request fails alone
            await self._answer_failure(exchange, error)

    async def _answer_failure(self, exchange: HttpExchange, error: Exception) -> None:
        if not isinstance(error, HTTPRefusal | ClientDisconnected):
            status, text = 503, "The request was aborted: the server or a worker is shutting down."
            if isinstance(error, StoreUnavailable):
                text = "The server cannot reach its store. Try again later."
            elif not isinstance(error, ResponseAborted):
                logger.error("%s %.200s failed", exchange.method, exchange.path, exc_info=error)
                status, text = 500, "Internal error: the request could not be served"
            error = HTTPRefusal(status, body=jsonrpc.encode_error(None, InternalError(text)))
        if isinstance(error, ClientDisconnected):
            logger.debug("%s %.200s: the client disconnected", exchange.method, exchange.path)
            await exchange.finish_disconnected()
        elif exchange.streaming:
            await exchange.end_stream()
        else:
            await exchange.respond(error.status, error.body, error.headers)

    async def _authenticate(self, exchange: HttpExchange) -> None:
        """Find the principal of a request. Raises HTTPRefusal if it has no valid token."""
        if self._authenticator is not None:
            exchange.principal = await self._authenticator.authenticate(exchange)
        elif self.settings.principal is not None:
            found = self.settings.principal(exchange.scope)
            exchange.principal = Principal.from_value(await found if isawaitable(found) else found)

    def _find_route(self, exchange: HttpExchange) -> Route:
        """Return the route of a request whose path or method is not exactly that of a route."""
        path = exchange.path
        verbs = self._paths.get(strip_trailing_slash(path))
        if verbs is None:
            here, chosen = exchange.root + self.settings.path, self.settings
            sse_paths = {strip_trailing_slash(chosen.sse or ""), chosen.messages}
            if chosen.stateless and strip_trailing_slash(path) in sse_paths:
                why = "HTTP+SSE needs sessions, which stateless=True disables"
            else:
                why = "Not found"
            raise HTTPRefusal(404, f"{why}; the MCP endpoint is {here}.")
        if exchange.method == "OPTIONS":  # browsers send no token there
            return verbs.get("OPTIONS", Route(self._answer_preflight, needs_token=False))
        return verbs.get(exchange.method, Route(self._refuse_method))

    async def _answer_preflight(self, exchange: HttpExchange) -> None:
        allowed = self._guard.get_preflight_headers(exchange)
        await (self._refuse_method(exchange) if allowed is None else exchange.respond(204, headers=allowed))

    async def _refuse_method(self, exchange: HttpExchange) -> None:
        allowed = ", ".join(self._paths[strip_trailing_slash(exchange.path)]).encode()
        hint = " For requests from web pages, set cors=True." if exchange.method == "OPTIONS" else ""
        raise HTTPRefusal(405, f"Method {exchange.method} is not allowed here.{hint}", [(b"allow", allowed)])

    # ----------------------------------------------------------------- messages

    async def _post_message(self, exchange: HttpExchange) -> None:
        await self._post(exchange, post_message, ())

    async def _post(
        self,
        exchange: HttpExchange,
        serve: Callable[[Worker, HttpExchange, JSONRPCMessage | None, bytes], Awaitable[object]] = serve_post,
        answer_types: tuple[str, ...] | None = None,
    ) -> None:
        """Read the message of a POST, and serve it."""
        sent, wanted = exchange.raw_headers, self._answer_types if answer_types is None else answer_types
        content_type, accept = sent.get(b"content-type"), sent.get(b"accept")
        refusal = find_media_type_error(content_type, accept, wanted, sent.get(b"content-encoding"))
        if refusal is not None:
            raise HTTPRefusal(*refusal)
        worker, task = self._worker, exchange.task
        if worker is None or not worker.is_open or worker.loop is not task.get_loop():
            worker = await self._get_worker(exchange)
        worker.running[exchange] = task
        timer = worker.timer
        timer.fresh[exchange] = False
        if not timer.is_checking:
            timer.start()
        try:
            data = await exchange.receive_body(self.settings.max_body)
            try:
                message = None if jsonrpc.is_batch(data) else jsonrpc.decode(data)
            except RemoteProtocolError as error:
                raise make_message_refusal(error) from error
            await serve(worker, exchange, message, data)
        finally:
            del worker.running[exchange]
            timer.fresh.pop(exchange, None)

    async def _get(self, exchange: HttpExchange) -> None:
        self._check_era(exchange)
        if self._has_sse_at_path and headers.SESSION not in exchange.headers:
            await self._serve_sse(exchange)
            return
        check_get(exchange)
        worker = await self._get_worker(exchange)
        worker.add_stream(exchange)
        timer: asyncio.TimerHandle | None = None
        try:
            timer = worker.end_with_token(exchange)
            session = await self._find_session(worker, exchange)
            last = exchange.headers.get(headers.LAST_EVENT) or None
            if last is not None and last.partition(".")[0] != GENERAL:
                await ResumedStream(worker, exchange, session, last).run()
            else:
                await worker.choose_server(session, exchange)
                await GeneralStream(worker, exchange, session).run(last)
        finally:
            if timer is not None:
                timer.cancel()
            worker.remove_stream(exchange)

    async def _serve_sse(self, exchange: HttpExchange) -> None:
        check_get(exchange)
        worker = await self._get_worker(exchange)
        worker.add_stream(exchange)
        worker.listening.discard(exchange)  # drained separately: it also carries answers, which go first
        try:
            await serve_sse(worker, exchange)
        finally:
            worker.remove_stream(exchange)

    async def _delete(self, exchange: HttpExchange) -> None:
        self._check_era(exchange)
        worker = await self._get_worker(exchange)
        await worker.sessions.end(await self._find_session(worker, exchange))
        await exchange.respond(200)

    def _check_era(self, exchange: HttpExchange) -> None:
        """Refuse a GET or DELETE of a revision without sessions (HTTPM-20)."""
        named = exchange.headers.get(headers.VERSION, "").strip(" \t")
        if named in self._handler.local_peer.supported and REVISIONS[named].stateless:
            text = f"Revision {named} has no sessions and no {exchange.method}: send each request with POST"
            hint = "; `subscriptions/listen` receives notifications." if exchange.method == "GET" else "."
            raise HTTPRefusal(405, text + hint, [(b"allow", b"POST")])

    async def _find_session(self, worker: Worker, exchange: HttpExchange) -> Session:
        """Return the session of a GET or DELETE; refuse an unsupported revision (HTTPL-33)."""
        named = exchange.headers.get(headers.VERSION)
        local_peer = self._handler.local_peer
        if named is not None and named.strip(" \t") not in local_peer.supported:
            raise HTTPRefusal(400, local_peer.make_unsupported_error(named).message)
        session_id = exchange.headers.get(headers.SESSION)
        if session_id is None:
            raise HTTPRefusal(400, MISSING_SESSION_TEXT)
        if not headers.is_valid_session_id(session_id):
            raise HTTPRefusal(400, "The session id is too long or contains invalid characters.")
        return await worker.sessions.find(session_id, exchange.principal)

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
        _, details = self._check_health()
        await exchange.respond(200, jsonrpc.encode({"status": "alive", **details}))

    async def _answer_ready(self, exchange: HttpExchange) -> None:
        """Answer with the state of each part that requests need."""
        lifespan, store = await self._check_lifespan(exchange), await self._check_store()
        is_healthy, details = self._check_health()
        has_store = store == "available" or not self.settings.require_store
        is_ready = is_healthy and has_store and lifespan == "started"
        parts = {
            "status": "ready" if is_ready else "not ready",
            "lifespan": lifespan,
            "store": store,
            **details,
        }
        if not is_ready:
            raise HTTPRefusal(503, body=jsonrpc.encode(parts))
        await exchange.respond(200, jsonrpc.encode(parts))

    def _check_health(self) -> tuple[bool, Mapping[str, types.JSON]]:
        return (True, {}) if self._handler.health is None else self._handler.health()

    async def _check_lifespan(self, exchange: HttpExchange) -> str:
        try:
            worker = await self._get_worker(exchange)
        except HTTPRefusal:
            return "stopping"
        except Exception:
            logger.exception("the server is not ready: its lifespan failed")
            return "failed"
        return "stopping" if worker.is_draining else "started"

    async def _check_store(self) -> str:
        try:
            async with asyncio.timeout(STORE_CHECK_TIMEOUT):
                await self._handler.store.records.get("ready")
        except (StoreUnavailable, TimeoutError):
            return "unavailable"
        return "available"

    async def _answer_metrics(self, exchange: HttpExchange) -> None:
        assert self._metrics is not None, "the route exists only with metrics"
        text = self._metrics.render((await self._get_worker(exchange)).read_gauges())
        await exchange.respond_raw(200, text, [(b"content-type", self._metrics.content_type)])

    # ----------------------------------------------------------------- lifetime

    async def _get_worker(self, exchange: HttpExchange | None = None) -> Worker:
        """Return the worker in this loop, once it is ready; the first request starts it."""
        worker = self._worker
        if worker is None or worker.loop is not asyncio.get_running_loop():
            if worker is not None and not worker.is_over and worker.loop.is_running():
                raise InternalError(
                    "this application serves in another event loop; give each loop its own server"
                )
            worker = self._worker = Worker(self._handler, self.settings, self._authenticator)
        if worker.is_over:
            raise HTTPRefusal(503, "The server is shutting down and accepts no new requests.")
        try:
            await asyncio.shield(worker.ready)
        except Exception:  # a lifespan of the user
            if self._worker is worker:
                self._worker = None  # the next request tries again
            raise
        if worker.is_draining and exchange is not None:
            exchange.extra = (*exchange.extra, CLOSE_CONNECTION)
        return worker

    async def _run_lifespan(self, receive: ASGIReceive, send: ASGISend) -> None:
        is_alone = self._handler.is_in_memory and has_sessions(self._handler, self.settings)
        with hold_process_lease(self._handler.info.name) if is_alone else nullcontext():
            for phase, run, failure in (
                ("startup", self.start, "server startup failed"),
                ("shutdown", self.stop, "server shutdown failed"),
            ):
                await receive()
                try:
                    await run()
                except Exception as error:
                    logger.exception(failure)
                    await send({"type": f"lifespan.{phase}.failed", "message": str(error)})
                    return
                await send({"type": f"lifespan.{phase}.complete"})

    async def start(self, dead: int = 0) -> int:
        """Start the endpoint, perhaps in place of a dead worker; return the number of its worker.

        Otherwise the first request starts it. It ends with the last `stop`.
        """
        if self._worker is not None and self._worker.is_draining:
            self._worker = None
        worker = await self._get_worker()
        worker.start_count += 1
        if dead:
            await self._handler.store.remove(dead)
        return worker.number

    async def drain(self) -> None:
        """End streams, and wait for running requests; new ones are served, and their connections closed."""
        worker = self._worker
        if worker is not None and worker.loop is asyncio.get_running_loop() and not worker.is_draining:
            await worker.drain(self.settings.drain)

    async def stop(self) -> None:
        """Drain, then refuse new requests and cancel those that still run."""
        worker = self._worker
        if worker is not None and worker.loop is asyncio.get_running_loop():
            worker.start_count -= 1
            if worker.start_count <= 0:
                await self.drain()
                await worker.end()

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Start and stop the endpoint, for a framework that mounts it: `Starlette(lifespan=app.lifespan)`."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()
