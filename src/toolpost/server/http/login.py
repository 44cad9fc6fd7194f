"""The login endpoints of an HTTP endpoint with `Auth(provider=…)`: from ASGI to `auth.provider`, and back.

Loaded only if there is a provider. What the endpoints do is left to `toolpost.auth.provider`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from toolpost.auth.provider.endpoints import MAX_FORM, PAGES, Endpoint, LoginRequest, LoginServer
from toolpost.auth.server.auth import Auth
from toolpost.server.http.exchange import (
    BODY_CHUNK_TIMEOUT,
    CLOSE_CONNECTION,
    HttpExchange,
    HTTPRefusal,
    Route,
)


def make_login_server(auth: Auth, resource: str, path: str, sse: str, **options: Any) -> LoginServer:
    """Return the authorization server of an endpoint at this path; `sse` is that of HTTP+SSE, if any."""
    base = resource.rstrip("/") if path == "/" else resource.removesuffix(path)
    if path != "/" and base == resource and not auth.issuers:
        raise ValueError(f"provider= requires issuer=, because resource= does not end in {path}")
    resources = (resource, base + sse) if sse and base != resource else (resource,)
    return LoginServer(auth, [*auth.issuers, base][0], resources, **options)


def make_login_routes(login: LoginServer, check_root: Callable[[str], None]) -> dict[str, dict[str, Route]]:
    """Return path → HTTP method → route; `check_root` refuses a path that the server is not mounted at."""

    def make_route(path: str, endpoint: Endpoint) -> Route:
        async def serve(exchange: HttpExchange) -> None:
            check_root(exchange.root)
            try:
                async with asyncio.timeout(BODY_CHUNK_TIMEOUT):
                    data = await exchange.receive_body(MAX_FORM)
            except TimeoutError:
                raise HTTPRefusal(408, "The form was not received in time.", [CLOSE_CONNECTION]) from None
            query = str(exchange.scope.get("query_string", b""), "latin-1")
            request = LoginRequest(exchange.method, query, exchange.headers, data)
            answer = await login.serve(endpoint, request)
            await exchange.respond_raw(answer.status, answer.body, answer.headers)

        return Route(serve, is_guarded=path in PAGES, needs_token=False)

    return {
        path: {method: make_route(path, endpoint) for method, endpoint in endpoints.items()}
        for path, endpoints in login.routes.items()
    }
