"""An authorization server for tests and demos: small, in memory, and **not for production**.

A login needs no password, and nothing is stored. It has the features that MCP clients need: metadata,
registration, codes with PKCE and a consent page, refresh tokens, client credentials, introspection.
`TokenIssuer` creates valid and invalid tokens for tests.
"""

import secrets
import socket
import time
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from html import escape
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import msgspec

from toolpost.auth.jose import hash_s256, import_jose, parse_jws
from toolpost.auth.server.dpop import PROOF_ALGORITHMS, read_proof
from toolpost.errors import MCPError, TokenRejected
from toolpost.protocol.urls import is_loopback_host
from toolpost.types.base import Struct

_ACCESS_TOKEN_TYPE: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a kind of token
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384"}


class TokenIssuer:
    """Signs tokens for one issuer.

    Args:
        issuer: the issuer in the tokens.
        algorithm: "ES256", "ES384", "RS256" or "PS256".
        lifetime: seconds until a token expires, by default.
    """

    def __init__(self, issuer: str, *, algorithm: str = "ES256", lifetime: float = 300.0) -> None:
        self.issuer = issuer
        self.lifetime = lifetime
        self.algorithm = algorithm
        self._keys: list[Any] = []
        self.rotate()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.issuer}>"

    def rotate(self, *, forget: bool = False) -> None:
        """Sign with a new key from now on.

        Args:
            forget: whether the old keys are withdrawn, which invalidates their tokens.
        """
        jwk = import_jose().jwk
        about = {"kid": secrets.token_hex(4), "use": "sig", "alg": self.algorithm}
        curve = _CURVES.get(self.algorithm)
        key = jwk.ECKey.generate_key(curve, about) if curve else jwk.RSAKey.generate_key(2048, about)
        self._keys = [key, *([] if forget else self._keys)]

    @property
    def jwks(self) -> dict[str, Any]:
        """The public keys, as a JWK set."""
        return {"keys": [key.as_dict(private=False) for key in self._keys]}

    def token(
        self,
        resource: str | Iterable[str],
        *,
        subject: str = "alice",
        client: str = "test-client",
        scopes: Iterable[str] = (),
        lifetime: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """Create an access token (RFC 9068).

        Args:
            resource: the audience.
            subject: the user.
            client: the id of the client.
            scopes: the scopes.
            lifetime: seconds until it expires; negative for an expired one.
            headers: other members of the header; None omits a member.
            claims: other claims; None omits a claim.
        """
        now = int(time.time())
        content: dict[str, Any] = {
            "iss": self.issuer,
            "sub": subject,
            "aud": resource if isinstance(resource, str) else list(resource),
            "client_id": client,
            "scope": " ".join([scopes] if isinstance(scopes, str) else scopes),
            "iat": now,
            "exp": now + int(self.lifetime if lifetime is None else lifetime),
            "jti": secrets.token_urlsafe(12),
            **claims,
        }
        payload = msgspec.json.encode({name: value for name, value in content.items() if value is not None})
        key = self._keys[0]
        header = {"alg": self.algorithm, "typ": "at+jwt", "kid": key.kid, **(headers or {})}
        header = {name: value for name, value in header.items() if value is not None}
        return import_jose().jws.serialize_compact(header, payload, key, [self.algorithm])

    def claims_of(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a token of this issuer that has not expired, else None."""
        try:
            claims = parse_jws(token).claims
        except TokenRejected:
            return None
        return claims if claims.get("iss") == self.issuer and claims.get("exp", 0) > time.time() else None


MAX_BODY: Final = 64 * 1024  # bytes of a request: forms and registrations are small
CODE_LIFETIME: Final = 60.0  # seconds until a code expires

_HTML_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)

_PAGE_TEMPLATE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<h1>{title}</h1><p><strong>For tests only.</strong> There are no passwords.</p>{body}</html>"""

_JSON_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-headers", b"*"),
)

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Reply: TypeAlias = tuple[int, Iterable[tuple[bytes, bytes]], bytes]


class OAuthRequest(NamedTuple):
    """An HTTP request; `form` are the parameters of its query, or of its body."""

    method: str
    headers: dict[str, str]
    text: str
    form: dict[str, str]


class RegisteredClient(Struct):
    """A registered client."""

    id: str
    secret: str | None = None
    redirects: tuple[str, ...] = ()
    name: str = ""


class UserGrant(Struct):
    """A grant of a user to a client; `asked` are the parameters of the login."""

    client: str
    subject: str
    scope: str
    resource: str
    asked: Mapping[str, str] = {}
    ends: float = 0.0
    used: bool = False
    family: str = ""


class OAuthError(Exception):
    """An error response of OAuth."""

    def __init__(self, error: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.reply = _reply_json({"error": error, "error_description": text}, status)


class AuthorizationServer(TokenIssuer):
    """An ASGI application that issues tokens, for tests and demos. Not for production.

    Args:
        issuer: its URL; the endpoints are below its path.
        user: the user to log in, unless the consent page sets another.
        consent: whether a page asks the user; otherwise all requests are allowed.
        clients: registered clients: id → secret, or None for public ones. They may use any redirect.
        registration: whether other clients may register.
        scopes: the scopes in the metadata.
        refresh: whether codes give refresh tokens.
        algorithm: the algorithm of the signatures.
        lifetime: seconds until a token expires.
        audiences: the servers for which clients with a secret may exchange tokens of users (RFC 8693).

    Attributes:
        request_counts: the number of requests of each endpoint, by its name.
    """

    def __init__(
        self,
        issuer: str,
        *,
        user: str = "alice",
        consent: bool = False,
        clients: Mapping[str, str | None] | None = None,
        registration: bool = True,
        scopes: Iterable[str] = (),
        refresh: bool = True,
        algorithm: str = "ES256",
        lifetime: float = 300.0,
        audiences: Iterable[str] = (),
    ) -> None:
        super().__init__(issuer, algorithm=algorithm, lifetime=lifetime)
        self.audiences = frozenset(audiences)
        self.user = user
        self.consent = consent
        self.registration = registration
        self.scopes = list(scopes)
        self.refresh = refresh
        self.clients = {
            name: RegisteredClient(name, secret, name=name) for name, secret in (clients or {}).items()
        }
        self.request_counts: Counter[str] = Counter()
        self.revoked: set[str] = set()
        self._tickets: dict[str, dict[str, str]] = {}
        self._codes: dict[str, UserGrant] = {}
        self._refresh_tokens: dict[str, UserGrant] = {}
        self._base = base = urlsplit(issuer).path.rstrip("/")
        self._routes: dict[str, Callable[[OAuthRequest], Reply]] = {
            f"/.well-known/oauth-authorization-server{base}": self._metadata,
            f"/.well-known/openid-configuration{base}": self._metadata,
            f"{base}/.well-known/openid-configuration": self._metadata,
            f"{base}/jwks": lambda _: _reply_json(self.jwks),
            f"{base}/register": self._register,
            f"{base}/authorize": self._authorize,
            f"{base}/token": self._token,
            f"{base}/introspect": self._introspect,
        }

    @classmethod
    @asynccontextmanager
    async def serve(cls, path: str = "", **options: Any) -> AsyncGenerator["AuthorizationServer"]:
        """Start a server on an unused port of this machine.

        Args:
            path: the path of the issuer.
            options: the options of the class.

        Raises:
            MCPError: uvicorn is not installed.
        """
        try:
            import uvicorn  # noqa: PLC0415 - optional
        except ImportError as error:
            raise MCPError("serve() requires uvicorn", hint="pip install 'toolpost[http]'") from error
        with socket.create_server(("127.0.0.1", 0)) as bound:
            issuer = f"http://127.0.0.1:{bound.getsockname()[1]}{path}"
            app = cls(issuer, **options)
            config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", access_log=False)  # pyright: ignore[reportArgumentType] - its messages are dicts, which uvicorn types one by one
            config.load()
            server = uvicorn.Server(config)
            server.lifespan = config.lifespan_class(config)
            await server.startup(sockets=[bound])
            try:
                yield app
            finally:
                await server.shutdown()

    # ----------------------------------------------------------------- HTTP

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more and len(body) <= MAX_BODY:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        status, headers, data = self._respond(scope, body[:MAX_BODY])
        await send({"type": "http.response.start", "status": status, "headers": [*headers]})
        await send({"type": "http.response.body", "body": data})

    def _respond(self, scope: MutableMapping[str, Any], body: bytes) -> Reply:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        route = self._routes.get(path)
        if scope["method"] == "OPTIONS":
            return 204, _JSON_HEADERS, b""
        if route is None:
            return 404, _JSON_HEADERS, b"{}"
        self.request_counts[path.rpartition("/")[2] if route != self._metadata else "metadata"] += 1
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        text = (body if scope["method"] == "POST" else scope["query_string"]).decode("utf-8", "replace")
        form = {} if route == self._register else dict(parse_qsl(text, keep_blank_values=True))
        try:
            return route(OAuthRequest(scope["method"], headers, text, form))
        except OAuthError as error:
            return error.reply

    # ----------------------------------------------------------------- metadata and registration

    def _metadata(self, _: OAuthRequest) -> Reply:
        issuer = self.issuer.rstrip("/")
        metadata: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "jwks_uri": f"{issuer}/jwks",
            "introspection_endpoint": f"{issuer}/introspect",
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
            "authorization_response_iss_parameter_supported": True,
            "dpop_signing_alg_values_supported": PROOF_ALGORITHMS,
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.algorithm],
        }
        if self.registration:
            metadata["registration_endpoint"] = f"{issuer}/register"
        if self.scopes:
            metadata["scopes_supported"] = self.scopes
        if any(name.startswith("https://") for name in self.clients):
            metadata["client_id_metadata_document_supported"] = True
        return _reply_json(metadata)

    def _register(self, request: OAuthRequest) -> Reply:
        """Register a client (RFC 7591)."""
        try:
            wanted = msgspec.json.decode(request.text, type=dict[str, Any])
            redirects = tuple(str(each) for each in wanted["redirect_uris"])
        except (msgspec.MsgspecError, KeyError, TypeError):
            raise OAuthError("invalid_client_metadata", "expected JSON with redirect_uris") from None
        if not self.registration:
            raise OAuthError("access_denied", "registration is disabled", 403)
        if not redirects or not all(map(_is_safe_redirect, redirects)):
            raise OAuthError("invalid_redirect_uri", "a redirect URI must use https or a loopback address")
        method = str(wanted.get("token_endpoint_auth_method", "client_secret_basic"))
        secret = None if method == "none" else secrets.token_urlsafe(24)
        name = secrets.token_urlsafe(9)
        self.clients[name] = RegisteredClient(name, secret, redirects, str(wanted.get("client_name", "")))
        about = {**wanted, "client_id": name, "client_id_issued_at": int(time.time())}
        about["token_endpoint_auth_method"] = method
        if secret is not None:
            about |= {"client_secret": secret, "client_secret_expires_at": 0}
        return _reply_json(about, 201)

    # ----------------------------------------------------------------- login

    def _authorize(self, request: OAuthRequest) -> Reply:
        given = request.form
        if request.method == "POST":
            asked = self._tickets.pop(given.get("ticket", ""), None)
            if asked is None:
                return _reply_error_page("This page has already been submitted, or has expired.")
            allowed = given.get("answer") == "allow"
            return self._complete_login(asked, given.get("user") or self.user if allowed else None)
        client, redirect = self.clients.get(given.get("client_id", "")), given.get("redirect_uri", "")
        if client is None or not _is_registered_redirect(client, redirect):
            # No redirect for an unknown client (RFC 6749 §4.1.2.1).
            return _reply_error_page("The client or its redirect URI is not registered.")
        if given.get("response_type") != "code":
            return self._redirect_back(given, error="unsupported_response_type")
        if given.get("code_challenge_method") != "S256" or len(given.get("code_challenge", "")) != 43:
            return self._redirect_back(given, error="invalid_request")
        if not self.consent:
            return self._complete_login(given, self.user)
        ticket = secrets.token_urlsafe(16)
        self._tickets[ticket] = given
        return 200, _HTML_HEADERS, self._render_consent_page(ticket, client.name or client.id, given)

    def _complete_login(self, asked: dict[str, str], subject: str | None) -> Reply:
        if subject is None:
            return self._redirect_back(asked, error="access_denied")
        code = secrets.token_urlsafe(24)
        scope, resource, ends = asked.get("scope", ""), asked.get("resource", ""), time.time() + CODE_LIFETIME
        grant = UserGrant(asked["client_id"], subject, scope, resource, asked, ends)
        grant.family = secrets.token_hex(8)
        self._codes[code] = grant
        return self._redirect_back(asked, code=code)

    def _redirect_back(self, asked: dict[str, str], **params: str) -> Reply:
        params["iss"] = self.issuer
        if "state" in asked:
            params["state"] = asked["state"]
        target = asked["redirect_uri"]
        location = f"{target}{'&' if urlsplit(target).query else '?'}{urlencode(params)}"
        return 302, [(b"location", location.encode()), (b"cache-control", b"no-store")], b""

    def _render_consent_page(self, ticket: str, client: str, given: Mapping[str, str]) -> bytes:
        scopes = [f"<li>{escape(scope)}</li>" for scope in given.get("scope", "").split()]
        body = f"""<p><em id="client">{escape(client)}</em> requests access. You will be redirected to
<em id="host">{escape(urlsplit(given["redirect_uri"]).netloc)}</em>.</p>
<ul id="scopes">{"".join(scopes) or "<li>no scopes</li>"}</ul>
<form method="post" action="{escape(self._base)}/authorize">
<input type="hidden" name="ticket" value="{escape(ticket)}">
<label>Log in as <input name="user" value="{escape(self.user)}"></label>
<button name="answer" value="allow">Allow</button><button name="answer" value="deny">Deny</button></form>"""
        return _PAGE_TEMPLATE.format(title="Allow access?", body=body).encode()

    # ----------------------------------------------------------------- tokens

    def _token(self, request: OAuthRequest) -> Reply:
        given = request.form
        client = self._authenticate_client(request)
        bound = self._read_proof_key(request.headers)
        match given.get("grant_type"):
            case "authorization_code":
                grant = self._redeem_code(client, given)
            case "refresh_token":
                grant = self._rotate_refresh_token(client, given)
            case "client_credentials" if client.secret is not None:
                grant = UserGrant(client.id, client.id, given.get("scope", ""), given.get("resource", ""))
            case "urn:ietf:params:oauth:grant-type:token-exchange" if client.secret is not None:
                grant = self._exchange_token(client, given)
            case _:
                raise OAuthError("unsupported_grant_type", "this client cannot use this grant type")
        if given.get("resource", grant.resource) != grant.resource:
            raise OAuthError("invalid_target", "the user granted access to another resource")
        access = self.token(
            grant.resource or self.issuer,
            subject=grant.subject,
            client=client.id,
            scopes=grant.scope.split(),
            cnf=None if bound is None else {"jkt": bound},
            sid=grant.family or None,
        )
        answer = {
            "access_token": access,
            "token_type": "Bearer" if bound is None else "DPoP",
            "expires_in": int(self.lifetime),
            "scope": grant.scope,
        }
        if "openid" in grant.scope.split():
            answer["id_token"] = self.token(
                client.id,
                subject=grant.subject,
                client=client.id,
                headers={"typ": "JWT"},
                nonce=grant.asked.get("nonce"),
            )
        if "subject_token" in given:
            answer["issued_token_type"] = _ACCESS_TOKEN_TYPE
        if grant.family and self.refresh:
            answer["refresh_token"] = refresh = secrets.token_urlsafe(24)
            self._refresh_tokens[refresh] = msgspec.structs.replace(grant, used=False)
        return _reply_json(answer)

    def _redeem_code(self, client: RegisteredClient, given: Mapping[str, str]) -> UserGrant:
        grant = self._codes.get(given.get("code", ""))
        if grant is None or grant.client != client.id or grant.ends < time.time():
            raise OAuthError("invalid_grant", "invalid code")
        if grant.used:
            self.revoked.add(grant.family)  # the code or its token may be stolen (RFC 6749 §4.1.2)
            raise OAuthError("invalid_grant", "the code has already been used")
        grant.used = True
        proven = hash_s256(given.get("code_verifier", ""))
        if not secrets.compare_digest(proven.encode(), grant.asked["code_challenge"].encode()):
            raise OAuthError("invalid_grant", "the code belongs to another client")
        redirect = grant.asked["redirect_uri"]
        if given.get("redirect_uri", redirect) != redirect:
            raise OAuthError("invalid_grant", "redirect_uri does not match")
        return grant

    def _rotate_refresh_token(self, client: RegisteredClient, given: Mapping[str, str]) -> UserGrant:
        """Return the grant of a refresh token, which can be used once (AS-13)."""
        grant = self._refresh_tokens.get(given.get("refresh_token", ""))
        if grant is None or grant.client != client.id or grant.family in self.revoked:
            raise OAuthError("invalid_grant", "invalid refresh token")
        if grant.used:
            self.revoked.add(grant.family)
            raise OAuthError("invalid_grant", "the refresh token has already been used")
        grant.used = True
        fewer = given.get("scope", grant.scope)
        if not set(fewer.split()) <= set(grant.scope.split()):
            raise OAuthError("invalid_scope", "the user did not grant this scope")
        return msgspec.structs.replace(grant, scope=fewer)

    def _exchange_token(self, client: RegisteredClient, given: Mapping[str, str]) -> UserGrant:
        """Return the grant for the token of a user, at another server."""
        claims = self.claims_of(given.get("subject_token", ""))
        if claims is None or not self.revoked.isdisjoint({claims.get("sid"), claims.get("jti")}):
            raise OAuthError("invalid_grant", "invalid subject token")
        target = given.get("audience") or given.get("resource", "")
        if target not in self.audiences:
            raise OAuthError("invalid_target", "tokens are not exchanged for this server")
        return UserGrant(client.id, claims["sub"], given.get("scope", ""), target)

    def _authenticate_client(self, request: OAuthRequest) -> RegisteredClient:
        scheme, _, pair = request.headers.get("authorization", "").partition(" ")
        name, secret = request.form.get("client_id", ""), request.form.get("client_secret", "")
        if scheme.lower() == "basic":
            try:
                name, _, secret = b64decode(pair, validate=True).decode().partition(":")
            except ValueError:
                raise OAuthError("invalid_client", "invalid credentials", 401) from None
            name, secret = unquote_plus(name), unquote_plus(secret)
        client = self.clients.get(name)
        if client is None or not secrets.compare_digest((client.secret or "").encode(), secret.encode()):
            raise OAuthError("invalid_client", "unknown client, or wrong secret", 401)
        return client

    def _read_proof_key(self, sent: Mapping[str, str]) -> str | None:
        """Return the key that a DPoP proof binds the token to, if there is one (RFC 9449 §5)."""
        if "dpop" not in sent:
            return None
        try:
            return read_proof(sent["dpop"], "POST", f"{self.issuer.rstrip('/')}/token")[1]
        except TokenRejected:
            raise OAuthError("invalid_dpop_proof", "invalid proof") from None

    def _introspect(self, request: OAuthRequest) -> Reply:
        """Return the claims of a token (RFC 7662)."""
        self._authenticate_client(request)
        claims = self.claims_of(request.form.get("token", ""))
        if claims is None or not self.revoked.isdisjoint({claims.get("sid"), claims.get("jti")}):
            return _reply_json({"active": False})
        return _reply_json({"active": True, **claims})


def _reply_json(value: Any, status: int = 200) -> Reply:
    return status, _JSON_HEADERS, msgspec.json.encode(value)


def _reply_error_page(text: str) -> Reply:
    """Return an error page instead of a redirect."""
    page = _PAGE_TEMPLATE.format(title="Access cannot be granted", body=f"<p>{escape(text)}</p>")
    return 400, _HTML_HEADERS, page.encode()


def _is_safe_redirect(redirect: str) -> bool:
    parts = urlsplit(redirect)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback_host(parts.hostname))


def _is_registered_redirect(client: RegisteredClient, redirect: str) -> bool:
    """Return whether a client may use this redirect. Loopback allows any port (RFC 8252 §7.3)."""
    if not client.redirects:
        return _is_safe_redirect(redirect)
    if redirect in client.redirects:
        return True
    here = urlsplit(redirect)
    return is_loopback_host(here.hostname) and any(
        here._replace(netloc="") == each._replace(netloc="") and here.hostname == each.hostname
        for each in map(urlsplit, client.redirects)
    )
