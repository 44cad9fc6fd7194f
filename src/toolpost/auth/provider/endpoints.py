"""The HTTP endpoints of the login: an authorization server (OAuth 2.1) that leaves the login to a provider.

    client ── authorize ──▶ consent page ── allow ──▶ provider ── callback ──▶ client ── token ──▶ access

Knows neither ASGI nor the server: it takes a request, and returns a response. A request that is wrong is
answered with a page and not with a redirect, because every stranger can register a client (RFC 9700 §4.11).
"""

import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from toolpost.auth.jose import hash_s256
from toolpost.auth.provider.clients import PUBLIC, LoginClient, LoginClients, OAuthRefusal
from toolpost.auth.provider.consent import (
    PAGE_HEADERS,
    Browser,
    open_request,
    render_consent,
    render_error,
    seal_request,
)
from toolpost.auth.provider.grants import Grants, choose_scopes
from toolpost.auth.provider.records import LOGIN_LIFETIME, EncryptedRecords, LoginGrant, PendingLogin
from toolpost.auth.provider.tokens import ACCESS_LIFETIME, AccessTokens
from toolpost.auth.provider.upstream import LoginEnded, ProviderClient
from toolpost.auth.server.auth import Auth
from toolpost.auth.urls import OAUTH_METADATA_PATH, is_same_resource
from toolpost.errors import MCPError, TokenRejected
from toolpost.principal import find_scopes
from toolpost.protocol.seal import KeyRing
from toolpost.stores.store import RecordStore

logger: Final = logging.getLogger("toolpost.auth")

MAX_FORM: Final = 32 * 1024  # bytes of a request: a consent form carries a request of 8 KiB, sealed
MAX_QUERY: Final = 8 * 1024  # characters of a request to log in
MAX_PARAMETERS: Final = 64  # of a request

PREFIX: Final = "/oauth"
AUTHORIZE_PATH: Final = f"{PREFIX}/authorize"
CALLBACK_PATH: Final = f"{PREFIX}/callback"
PAGES: Final = frozenset({AUTHORIZE_PATH, CALLBACK_PATH})
"""What people open; programs use the others, also from other origins."""

# Scopes about the user, which some clients always request: they grant nothing here.
_IDENTITY_SCOPES: Final = frozenset({"openid", "profile", "email", "address", "phone", "offline_access"})
_JSON_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"access-control-allow-origin", b"*"),  # for clients in browsers; no cookie counts here
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"POST"),
)


class LoginRequest(NamedTuple):
    """An HTTP request; names of headers are in lower case."""

    method: str
    query: str
    headers: Mapping[str, str]
    body: bytes


class LoginResponse(NamedTuple):
    """An HTTP response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""


Endpoint: TypeAlias = Callable[[LoginRequest], Awaitable[LoginResponse]]


class _LoginRefusal(Exception):
    """A login that cannot go on: shown on a page, with a link back to the client if it is known."""

    def __init__(self, text: str, link: str | None = None, status: int = 400) -> None:
        super().__init__(text)
        self.text = text
        self.link = link
        self.status = status


class LoginServer:
    """The authorization server of one endpoint.

    Args:
        auth: the settings, with a provider.
        issuer: the URL below which it is served.
        resources: the URLs of the MCP server, as tokens name it; the first one is the usual.
        name: the name of the server on the consent page.
        records: returns the records of the store.
        keys: returns the keys of the server.
    """

    def __init__(
        self,
        auth: Auth,
        issuer: str,
        resources: tuple[str, ...],
        *,
        name: str,
        records: Callable[[], RecordStore],
        keys: Callable[[], Awaitable[KeyRing]],
    ) -> None:
        assert auth.provider is not None, "the caller has checked it"
        self.issuer = issuer
        self._provider = provider = auth.provider
        self._resources = resources
        self._scopes = tuple(sorted(auth.scopes))
        self._known_scopes = auth.scopes | auth.optional_scopes
        self._name = name
        self._get_keys = keys
        base = issuer.rstrip("/")
        self._records = EncryptedRecords(issuer, records, keys)
        self._browser = Browser(issuer)
        self._upstream = ProviderClient(provider, base + CALLBACK_PATH)
        self._clients = LoginClients(issuer, self._records, provider.http, auth.redirect_hosts)
        self._grants = Grants(issuer, self._records, keys, self._upstream)
        find = self._grants.find_upstream_token if provider.expose_token else None
        self.tokens = AccessTokens(issuer, keys, find)
        self.routes: dict[str, dict[str, Endpoint]] = {
            AUTHORIZE_PATH: {"GET": self._authorize, "POST": self._answer_consent},
            CALLBACK_PATH: {"GET": self._finish_login},
            f"{PREFIX}/token": {"POST": self._issue_token, "OPTIONS": self._allow_origin},
            f"{PREFIX}/register": {"POST": self._register, "OPTIONS": self._allow_origin},
            f"{PREFIX}/revoke": {"POST": self._revoke, "OPTIONS": self._allow_origin},
        }
        """Path below the issuer → method → function."""
        self.metadata_path = OAUTH_METADATA_PATH + urlsplit(base).path
        self.metadata = msgspec.json.encode({
            "issuer": issuer,
            "authorization_endpoint": f"{base}{AUTHORIZE_PATH}",
            "token_endpoint": f"{base}{PREFIX}/token",
            "registration_endpoint": f"{base}{PREFIX}/register",
            "revocation_endpoint": f"{base}{PREFIX}/revoke",
            "scopes_supported": sorted(self._known_scopes),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": [PUBLIC],
            "revocation_endpoint_auth_methods_supported": [PUBLIC],
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": True,
        })  # fmt: skip

    async def serve(self, endpoint: Endpoint, request: LoginRequest) -> LoginResponse:
        """Return the response of an endpoint. Errors of the store are raised."""
        try:
            return await endpoint(request)
        except _LoginRefusal as error:
            return LoginResponse(error.status, PAGE_HEADERS, render_error(error.text, error.link))
        except OAuthRefusal as error:
            return _respond_json({"error": error.code, "error_description": error.text}, error.status)

    async def _allow_origin(self, _: LoginRequest) -> LoginResponse:
        return LoginResponse(204, _JSON_HEADERS[2:])

    # ----------------------------------------------------------------- login

    async def _authorize(self, request: LoginRequest) -> LoginResponse:
        """Check the request of a client, and show the consent page."""
        if len(request.query) > MAX_QUERY:
            raise _LoginRefusal(f"The request has more than {MAX_QUERY} characters.")
        try:
            form = _read_form(request.query, repeated=("resource",))
            client = await self._clients.find(form.get("client_id", ""))
        except OAuthRefusal as error:  # no redirect for an unknown client (RFC 6749 §4.1.2.1)
            text = f"The program that sent you here cannot log you in: {error.text}."
            raise _LoginRefusal(text, status=429 if error.status == 429 else 400) from None
        redirect = form.get("redirect_uri", client.redirects[0] if len(client.redirects) == 1 else "")
        if not self._clients.can_redirect(client, redirect):
            raise _LoginRefusal("The program that sent you here may not send you on to this redirect URI.")
        login = PendingLogin(
            client=client.id,
            redirect=redirect,
            state=form.get("state"),
            challenge=form.get("code_challenge", ""),
            scopes=self._read_scopes(form.get("scope", "")),
            resource=self._find_resource(form.get("resource")) or "",
        )
        problem = self._find_problem(login, form)
        if problem is not None:
            code, text = problem
            link = self._build_redirect(login, error=code, error_description=text)
            raise _LoginRefusal(f"The request is not valid: {text}.", link)
        cookie = self._browser.read(request.headers) or self._browser.make()
        sealed = seal_request(await self._get_keys(), self.issuer, login, cookie)
        page = render_consent(
            client,
            redirect,
            login.scopes,
            server=self._name,
            provider=self._provider.name,
            sealed=sealed,
        )
        return LoginResponse(200, (*PAGE_HEADERS, self._browser.build_header(cookie)), page)

    def _read_scopes(self, text: str) -> tuple[str, ...]:
        wanted = tuple(scope for scope in find_scopes(text) if scope not in _IDENTITY_SCOPES)
        return wanted or self._scopes

    def _find_resource(self, named: str | None) -> str | None:
        """Return our URL that a client names (RFC 8707); None if it names another resource."""
        if named is None:
            return self._resources[0]
        # Some clients add a slash to a URL without a path.
        same = (here for here in self._resources if is_same_resource(named.rstrip("/"), here.rstrip("/")))
        return next(same, None)

    def _find_problem(self, login: PendingLogin, form: Mapping[str, str]) -> tuple[str, str] | None:
        if form.get("response_type") != "code":
            return "unsupported_response_type", "response_type must be code"
        if form.get("response_mode", "query") != "query":
            return "invalid_request", "response_mode must be query"
        if form.get("code_challenge_method") != "S256" or len(login.challenge) != 43:
            return "invalid_request", "PKCE with S256 is required"
        if not login.resource:
            return "invalid_target", "resource is not the URL of this server"
        unknown = [scope for scope in login.scopes if scope not in self._known_scopes]
        if unknown:
            return "invalid_scope", f"unknown scope {unknown[0][:50]}"
        return None

    async def _answer_consent(self, request: LoginRequest) -> LoginResponse:
        """Send the user to the provider, if they agree."""
        cookie = self._browser.read(request.headers)
        form = _read_page_form(request.body.decode("utf-8", "replace"))
        is_same_site = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
        keys = await self._get_keys()
        login = open_request(keys, self.issuer, form.get("request", ""), cookie) if is_same_site else None
        if login is None:
            text = "This page has expired, or this browser has no cookie of it. Start the login again."
            raise _LoginRefusal(text, status=403)
        if form.get("answer") != "allow":
            return self._redirect(login, error="access_denied")
        state = secrets.token_urlsafe(32)
        login.verifier, login.nonce = secrets.token_urlsafe(48), secrets.token_urlsafe(16)
        login.browser = _digest(cookie)
        await self._records.put("login", state, login, LOGIN_LIFETIME)
        try:
            url = await self._upstream.build_login_url(state, hash_s256(login.verifier), login.nonce)
        except MCPError as error:
            raise self._make_failure(login, error) from None
        return LoginResponse(303, _make_redirect_headers(url))

    async def _finish_login(self, request: LoginRequest) -> LoginResponse:
        """Take a user back from the provider, and send them to the client with a code."""
        form = _read_page_form(request.query)
        state = form.get("state", "")
        login = await self._records.get("login", state, PendingLogin)
        cookie = self._browser.read(request.headers)
        # The browser in which a user consented has to come back: an attacker could send a victim there.
        if login is not None and not hmac.compare_digest(login.browser, _digest(cookie)):
            text = "This login was started in another browser. Start it again in this one."
            raise _LoginRefusal(text, status=403)
        if login is None or not await self._records.delete("login", state):
            raise _LoginRefusal("This login has expired, or is already over. Start it again.")
        try:
            await self._upstream.check_issuer(form.get("iss"))
            if "code" not in form:
                logger.warning("the provider refused a login: %.100r", form.get("error"))
                return self._redirect(login, error="access_denied")
            tokens, claims = await self._upstream.redeem(form["code"], login.verifier, login.nonce)
            scopes = await choose_scopes(self._provider, claims, login.scopes)
            code = await self._grants.issue_code(login, tokens, claims, scopes)
        except LoginEnded as error:
            logger.warning("a login failed: %s", error)
            return self._redirect(login, error="access_denied")
        except (MCPError, TokenRejected) as error:
            raise self._make_failure(login, error) from None
        return self._redirect(login, code=code)

    def _make_failure(self, login: PendingLogin, error: MCPError) -> _LoginRefusal:
        """Return the page for a failure that is not the user's, and log its reason."""
        name = self._provider.name
        logger.error("could not log a user in with %s: %s", name, error)
        link = self._build_redirect(login, error="temporarily_unavailable")
        return _LoginRefusal(f"{name} could not be asked who you are. Try again later.", link, 502)

    def _redirect(self, login: PendingLogin, **parameters: str) -> LoginResponse:
        return LoginResponse(303, _make_redirect_headers(self._build_redirect(login, **parameters)))

    def _build_redirect(self, login: PendingLogin, **parameters: str) -> str:
        parameters["iss"] = self.issuer  # RFC 9207
        if login.state is not None:
            parameters["state"] = login.state
        target = login.redirect
        return f"{target}{'&' if urlsplit(target).query else '?'}{urlencode(parameters)}"

    # ----------------------------------------------------------------- registration and tokens

    async def _register(self, request: LoginRequest) -> LoginResponse:
        return _respond_json(await self._clients.register(request.body), 201)

    async def _issue_token(self, request: LoginRequest) -> LoginResponse:
        form = _read_form(request.body.decode("utf-8", "replace"), repeated=("resource",))
        client = await self._clients.find(form.get("client_id", ""))
        kind = form.get("grant_type")
        if kind == "authorization_code":
            given = form.get("code", ""), form.get("code_verifier", ""), form.get("redirect_uri")
            name, grant = await self._grants.redeem(client, *given)
        elif kind == "refresh_token":
            try:
                name, grant = await self._grants.rotate(client, form.get("refresh_token", ""))
            except MCPError as error:  # the login goes on, as soon as the provider is there again
                logger.warning("could not renew the token of the provider: %s", error)
                text = "the login cannot be checked at the moment"
                raise OAuthRefusal("temporarily_unavailable", text, 503) from None
        else:
            raise OAuthRefusal("unsupported_grant_type", "use authorization_code or refresh_token")
        return _respond_json(await self._build_tokens(client, name, grant, form))

    async def _build_tokens(
        self, client: LoginClient, name: str, grant: LoginGrant, form: Mapping[str, str]
    ) -> dict[str, Any]:
        scopes = grant.scopes
        if "scope" in form and form["grant_type"] == "refresh_token":
            fewer = tuple(scope for scope in find_scopes(form["scope"]) if scope not in _IDENTITY_SCOPES)
            if not set(fewer) <= set(scopes):
                raise OAuthRefusal("invalid_scope", "the user did not grant this scope")
            scopes = fewer or scopes
        if "resource" in form and self._find_resource(form["resource"]) != grant.resource:
            raise OAuthRefusal("invalid_target", "the user granted access to another resource")
        await self._clients.keep(client)
        return {
            "access_token": await self.tokens.issue(name, grant, scopes),
            "token_type": "Bearer",
            "expires_in": ACCESS_LIFETIME,
            "refresh_token": await self._grants.make_refresh_token(name, grant.generation),
            "scope": " ".join(scopes),
        }

    async def _revoke(self, request: LoginRequest) -> LoginResponse:
        """End the login that a token belongs to (RFC 7009); an unknown token is as good as revoked."""
        form = _read_form(request.body.decode("utf-8", "replace"))
        client = await self._clients.find(form.get("client_id", ""))
        token = form.get("token", "")
        try:
            if token.count(".") == 2:
                name = (await self.tokens.verify(token, *self._resources)).claims["sid"]
            else:
                name, _ = await self._grants.read_refresh_token(token)
        except (OAuthRefusal, TokenRejected):
            return _respond_json({})
        await self._grants.revoke(client, name)
        return _respond_json({})


def _read_form(text: str, repeated: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the parameters of a request. Only those in `repeated` may come twice (RFC 6749 §3.1)."""
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise OAuthRefusal("invalid_request", f"there are more than {MAX_PARAMETERS} parameters") from None
    for name, value in pairs:
        if name in found and (name not in repeated or value != found[name]):
            raise OAuthRefusal("invalid_request", f"the parameter {name[:50]} is repeated")
        found[name] = value
    return {name: value for name, value in found.items() if value}


def _read_page_form(text: str) -> dict[str, str]:
    try:
        return _read_form(text)
    except OAuthRefusal as error:
        raise _LoginRefusal(f"The request is not valid: {error.text}.") from None


def _respond_json(value: Any, status: int = 200) -> LoginResponse:
    return LoginResponse(status, _JSON_HEADERS, msgspec.json.encode(value))


def _make_redirect_headers(url: str) -> tuple[tuple[bytes, bytes], ...]:
    return (b"location", url.encode()), (b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer")


def _digest(cookie: str) -> str:
    return sha256(cookie.encode()).hexdigest()
