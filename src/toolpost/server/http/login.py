"""The login endpoints of an HTTP endpoint with `Auth(provider=…)`: from ASGI to `auth.provider`, and back.

Loaded only if there is a provider. What the endpoints do is left to `toolpost.auth.provider`.
"""

from collections.abc import Awaitable, Callable

from toolpost.auth.provider.endpoints import MAX_FORM, PAGES, Endpoint, LoginRequest, LoginServer
from toolpost.auth.server.auth import Auth
from toolpost.protocol.seal import KeyRing
from toolpost.server.http.exchange import HttpExchange, Route
from toolpost.stores.store import RecordStore
from toolpost.types.initialize import Implementation


def make_login_server(
    auth: Auth,
    about: Implementation,
    resource: str,
    path: str,
    sse: str,
    *,
    records: Callable[[], RecordStore],
    keys: Callable[[], Awaitable[KeyRing]],
) -> LoginServer:
    """Return the authorization server of an endpoint; `sse` is the path of HTTP+SSE, if it has one."""
    assert auth.provider is not None, "the caller has checked it"
    has_path = path == "/" or resource.endswith(path)
    if not (has_path or auth.issuers):
        raise ValueError(f"provider= requires Auth(issuer=…), because resource= does not end in {path}")
    base = resource.rstrip("/") if path == "/" else resource.removesuffix(path)
    return LoginServer(
        auth.provider,
        auth.issuers[0] if auth.issuers else base,
        (resource, base + sse) if sse and has_path else (resource,),
        scopes=auth.scopes,
        optional_scopes=auth.optional_scopes,
        hosts=auth.redirect_hosts,
        name=auth.name or about.title or about.name,
        records=records,
        keys=keys,
    )


def make_login_routes(login: LoginServer, check_root: Callable[[str], None]) -> dict[str, dict[str, Route]]:
    """Return path → HTTP method → route; `check_root` refuses a path that the server is not mounted at."""

    def make_route(path: str, endpoint: Endpoint) -> Route:
        async def serve(exchange: HttpExchange) -> None:
            check_root(exchange.root)
            body = exchange.receive_body(MAX_FORM)
            data = body if isinstance(body, bytes) else await body
            query = str(exchange.scope.get("query_string", b""), "latin-1")
            request = LoginRequest(exchange.method, query, exchange.headers, data)
            answer = await login.serve(endpoint, request)
            await exchange.respond_raw(answer.status, answer.body, answer.headers)

        return Route(serve, is_guarded=path in PAGES, needs_token=False)

    return {
        path: {method: make_route(path, endpoint) for method, endpoint in endpoints.items()}
        for path, endpoints in login.routes.items()
    }
