"""`OAuth`: a person logs in with their browser, and the client gets tokens in their name.

Owns the arguments, the registration at each authorization server (by hand, by a metadata document, or
dynamic; AUTH-20), and that one window is open at a time. The page and its redirect are in `login`, the use of
tokens in `grant`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from toolpost.auth.arguments import check_http_url, check_seconds, check_texts, normalize_scopes
from toolpost.auth.client import login
from toolpost.auth.client.grant import DpopMode, Grant, GrantSettings, TokenRequest
from toolpost.auth.client.login import LoginAttempt, OpenUrl, RedirectListener, RedirectParameters
from toolpost.auth.client.storage import FileTokens, Storage
from toolpost.auth.client.token_endpoint import (
    UNKNOWN_CLIENT_ERRORS,
    ClientIdentity,
    Registration,
    Tokens,
    choose_auth_method,
    decode_record,
    encode_record,
    is_token,
    make_denial_error,
)
from toolpost.auth.fetch import JSON_TYPE
from toolpost.auth.urls import is_loopback_host, redact_url
from toolpost.errors import AuthError, AuthorizationDenied, AuthorizationRequired

LOGIN_TIMEOUT: Final = 300.0  # seconds for a person to log in: they may have to find their telephone first

_REGISTRATION_ENDPOINT: Final = "the registration endpoint"


class OAuth(Grant):
    """Logs a person in with their browser, and keeps the tokens.

    Without arguments it does all by itself: it finds the authorization server, registers the client there,
    opens the browser, listens on a port of this machine, and keeps tokens in files that only you may read.

    Args:
        scopes: what to ask for, besides what the server wants.
        client_id: what the authorization server calls this client, if it was registered by hand.
        client_secret: its secret, if it has one.
        issuer: the authorization server where it was registered. Only that one gets to see the secret;
            without it that is the first one that a server names.
        client_metadata_url: where the client describes itself (a client ID metadata document), for
            authorization servers that read such documents.
        client_name: what people read when they are asked for consent.
        redirect_uri: where the browser is sent back to: `http://127.0.0.1:<port>/…`, where we listen, or an
            https page of yours, if `open_url` tells what came there.
        storage: where tokens are kept: a `FileTokens` (by default in your folder for state), a
            `MemoryTokens`, or an object with `get`, `put` and `delete`.
        open_url: shows a page to the user, instead of their browser. May return the address that they were
            sent back to, or a code that they were shown.
        dpop: whether tokens are bound to a key: "auto" where the server asks for it, True, or False.
        http: what carries requests to authorization servers; as for a client.
        allow_private: let a server name addresses in networks that it is not in itself.
        allow_http: let tokens be sent without encryption to other machines.
        timeout: seconds for a person to log in.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: arguments do not go together.

    Examples:
        >>> client = Client("https://example.com/mcp", auth=OAuth(scopes=["notes:read"]))
    """

    asks_user: ClassVar[bool] = True

    def __init__(
        self,
        scopes: "str | Iterable[str] | None" = None,
        *,
        client_id: str | None = None,
        client_secret: str | None = None,
        issuer: str | None = None,
        client_metadata_url: str | None = None,
        client_name: str = "toolpost",
        redirect_uri: str | None = None,
        storage: Storage | None = None,
        open_url: OpenUrl | None = None,
        dpop: DpopMode = "auto",
        http: object = None,
        allow_private: bool = False,
        allow_http: bool = False,
        timeout: float = LOGIN_TIMEOUT,
    ) -> None:
        check_texts(client_id=client_id, client_secret=client_secret, client_metadata_url=client_metadata_url)
        check_texts(client_name=client_name, redirect_uri=redirect_uri)
        if open_url is not None and not callable(open_url):
            raise TypeError(f"open_url: a function, not a {type(open_url).__name__}")
        check_seconds("timeout", timeout)
        if client_secret is not None and client_id is None:
            raise ValueError("client_secret= goes with client_id=")
        if issuer is not None and client_id is None:
            raise ValueError("issuer= says where client_id= is from; without one it says nothing")
        _check_metadata_url(client_metadata_url)
        self._client_name = client_name
        self._client = client_id, client_secret
        self._metadata_url = client_metadata_url
        self._redirect_uri = _check_redirect_uri(redirect_uri, open_url)
        self._open_url: OpenUrl = open_url or login.open_in_browser
        self._timeout = timeout
        super().__init__(
            GrantSettings(normalize_scopes(scopes), dpop, http, allow_private, allow_http),
            FileTokens() if storage is None else storage,
            who=client_id or client_metadata_url or f"dynamic {client_name}",
            issuer=issuer,
            is_pinned=client_id is not None,
        )

    async def obtain(self, request: TokenRequest) -> Tokens:
        """Have the user log in."""
        endpoint = login.require_authorization_endpoint(request.server.issuer)
        # One window at a time: after one login, the next page often needs none.
        async with self.storage.lock(f"login\n{request.server.issuer.issuer}"):
            try:
                return await self._login(request, endpoint)
            except AuthorizationDenied as error:
                if error.code not in UNKNOWN_CLIENT_ERRORS or await self._load_registration(request) is None:
                    raise
            await self.forget_registration(request)
            return await self._login(request, endpoint)

    async def _login(self, request: TokenRequest, endpoint: str) -> Tokens:
        policy = request.fetch.url_policy
        async with self._open_listener(await self._load_registration(request)) as (listener, redirect_uri):
            who = await self._ensure_registration(request, redirect_uri)
            attempt = LoginAttempt.begin(request.server.issuer, redirect_uri)
            resource = request.server.resource.resource
            await policy.check(endpoint, "the page to log in")
            page = attempt.build_authorization_url(policy, endpoint, who.client_id, resource, request.scopes)
            code = attempt.extract_code(await self._await_redirect(page, attempt, listener))
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
            **request.resource_param,
        }
        return await request.send(form, ClientIdentity(who))

    async def _await_redirect(
        self, page: str, attempt: LoginAttempt, listener: RedirectListener | None
    ) -> RedirectParameters:
        """Return the parameters with which the user came back."""
        if listener is not None:
            listener.accept = attempt.is_ours
        showing = asyncio.get_running_loop().create_task(login.show_to_user(self._open_url, page))
        came = [] if listener is None else [listener.redirect_parameters]
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.wait([showing, *came], return_when=asyncio.FIRST_COMPLETED)
                if listener is not None and listener.redirect_parameters.done():
                    return listener.redirect_parameters.result()
                answer = showing.result()
                if answer is not None:
                    return login.parse_redirect(answer, attempt)
                if listener is not None:
                    return await listener.redirect_parameters
        except TimeoutError:
            problem = f"nobody has logged in within {self._timeout:g} s"
            raise AuthorizationRequired(problem, hint="try again; timeout= gives more time") from None
        finally:
            showing.cancel()
            await asyncio.wait([showing])
        raise AuthorizationRequired("nobody tells what came of the login", hint="open_url= has to return it")

    @asynccontextmanager
    async def _open_listener(
        self, kept: Registration | None
    ) -> AsyncGenerator[tuple[RedirectListener | None, str]]:
        """Wait for the browser, where that comes to this machine; yields the address too."""
        if not is_loopback_host(urlsplit(self._redirect_uri).hostname):
            yield None, self._redirect_uri
            return
        # An authorization server may know the address with its port, so that it should be the same again.
        wanted = self._redirect_uri
        if kept is not None and kept.redirect_uri is not None and urlsplit(wanted).port is None:
            wanted = kept.redirect_uri
        async with AsyncExitStack() as stack:
            try:
                listener = await stack.enter_async_context(RedirectListener(wanted).open())
            except OSError as error:
                if wanted == self._redirect_uri:
                    problem = f"nobody can listen at {wanted}: {error.strerror or type(error).__name__}"
                    hint = "give another redirect_uri=; without a port a free one is taken"
                    raise AuthError(problem, hint=hint) from error
                listener = await stack.enter_async_context(RedirectListener(self._redirect_uri).open())
            yield listener, listener.redirect_uri

    # ----------------------------------------------------------------- registration

    async def identity(self, request: TokenRequest) -> ClientIdentity | None:
        """Return the client at the authorization server."""
        who = self._find_registration(request) or await self._load_registration(request)
        return None if who is None else ClientIdentity(who)

    async def forget_registration(self, request: TokenRequest) -> None:
        """Forget the registration; a new one is made with the next login."""
        await self.storage.delete(self._registration_key(request))

    async def _ensure_registration(self, request: TokenRequest, redirect_uri: str) -> Registration:
        known = self._find_registration(request)
        if known is not None:
            return known
        kept = await self._load_registration(request)
        if kept is not None and kept.redirect_uri == redirect_uri:
            return kept
        made = await self._register(request, redirect_uri)
        await self.storage.put(self._registration_key(request), encode_record(made))
        return made

    def _find_registration(self, request: TokenRequest) -> Registration | None:
        """Return the registration that needs no request; None if the client has to be registered."""
        issuer, (client_id, client_secret) = request.server.issuer, self._client
        if client_id is not None:
            return Registration(issuer.issuer, client_id, client_secret)
        if self._metadata_url is not None and issuer.client_id_metadata_document_supported:
            return Registration(issuer.issuer, self._metadata_url, method="none")
        return None

    async def _load_registration(self, request: TokenRequest) -> Registration | None:
        """Return the stored registration at this authorization server, as long as it lasts."""
        kept = decode_record(await self.storage.get(self._registration_key(request)), Registration)
        if kept is None or kept.issuer != request.server.issuer.issuer:
            return None
        return None if kept.expires_at is not None and kept.expires_at <= time.time() else kept

    def _registration_key(self, request: TokenRequest) -> str:
        return f"client\n{request.server.issuer.issuer}\n{self.client_key}"

    async def _register(self, request: TokenRequest, redirect_uri: str) -> Registration:
        """Register the client at an authorization server (RFC 7591)."""
        issuer = request.server.issuer
        if issuer.registration_endpoint is None:
            raise AuthorizationRequired(
                f"the authorization server {redact_url(issuer.issuer)} "
                "does not know this client, and registers none",
                hint="register it there by hand, and give client_id= (and client_secret=), and issuer=",
            )
        offered = issuer.token_endpoint_auth_methods_supported
        # Without a secret if that is possible, for a program cannot keep one.
        method = "none" if offered is None or "none" in offered else choose_auth_method(offered, secret=True)
        document: dict[str, Any] = {
            "client_name": self._client_name,
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            "application_type": "native" if is_loopback_host(urlsplit(redirect_uri).hostname) else "web",
            **request.scope_param,
        }
        if self.settings.dpop is True:
            document["dpop_bound_access_tokens"] = True
        url, body = issuer.registration_endpoint, msgspec.json.encode(document)
        answer = await request.fetch.post(url, _REGISTRATION_ENDPOINT, body, JSON_TYPE)
        if not answer.ok:
            raise _make_registration_error(make_denial_error(answer, _REGISTRATION_ENDPOINT), redirect_uri)
        return _parse_registration(answer.document, issuer.issuer, method, redirect_uri)


class _RegistrationResponse(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


def _parse_registration(
    document: dict[str, Any] | None, issuer: str, method: str, redirect_uri: str
) -> Registration:
    try:
        given = msgspec.convert(document, _RegistrationResponse)
    except msgspec.ValidationError as error:  # which tells of types and places, not of values
        raise AuthError(
            f"{_REGISTRATION_ENDPOINT} answered with something that is no registration: {error}"
        ) from None
    secret = given.client_secret or None
    if not is_token(given.client_id) or (secret is not None and not is_token(secret)):
        raise AuthError(
            f"{_REGISTRATION_ENDPOINT} gave the client a name or a secret that no request can carry"
        )
    return Registration(
        issuer,
        given.client_id,
        secret,
        method=given.token_endpoint_auth_method or (method if secret is not None else "none"),
        redirect_uri=redirect_uri,
        expires_at=given.client_secret_expires_at or None,
        dynamic=True,
    )


def _make_registration_error(error: AuthError, redirect_uri: str) -> AuthError:
    """Return the error for a registration that was refused, with what can be done (AUTH-27, AUTH-28)."""
    if not isinstance(error, AuthorizationDenied):
        return error  # it may be granted later
    if error.code == "invalid_redirect_uri":
        hint = f"it does not like {redact_url(redirect_uri)}: give another redirect_uri="
    else:
        hint = "register the client there by hand, and give client_id= and issuer="
    return AuthError(f"the client could not be registered: {error.message}", hint=hint)


def _check_metadata_url(url: str | None) -> None:
    """Check where the client describes itself (CIMD)."""
    if url is not None:
        parts = check_http_url(url, "client_metadata_url")
        if parts.scheme != "https" or parts.path in {"", "/"} or parts.fragment:
            raise ValueError("client_metadata_url is an https URL with a path")


def _check_redirect_uri(redirect_uri: str | None, open_url: OpenUrl | None) -> str:
    """Return where the browser is sent back to: this machine, or https (AUTH-66)."""
    if redirect_uri is None:
        return login.DEFAULT_REDIRECT_URI
    parts = check_http_url(redirect_uri, "redirect_uri")
    if parts.fragment or parts.query:
        raise ValueError("redirect_uri has no query and no fragment")
    if is_loopback_host(parts.hostname):
        if parts.scheme != "http":
            raise ValueError(
                "redirect_uri: this machine is reached by http://127.0.0.1, without a certificate"
            )
        return redirect_uri
    if parts.scheme != "https":
        raise ValueError("redirect_uri is on this machine (http://127.0.0.1/…) or starts with https://")
    if open_url is None:
        raise ValueError("redirect_uri is elsewhere: open_url= has to tell what came there")
    return redirect_uri
