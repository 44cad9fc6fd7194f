"""`OAuth`: a user logs in with their browser, and the client gets tokens on their behalf.

Registers the client at each authorization server (manually, by a metadata document, or dynamically; AUTH-20).
The login page and its redirect are in `login`, the use of tokens in `grant`.
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from toolpost.auth.arguments import check_http_url, check_seconds, check_texts
from toolpost.auth.client import login
from toolpost.auth.client.grant import DpopMode, Grant, TokenRequest
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
from toolpost.auth.fetch import JSON_TYPE, convert_document
from toolpost.auth.urls import redact_url
from toolpost.errors import AuthError, AuthorizationDenied, AuthorizationRequired
from toolpost.protocol.urls import is_loopback_host

LOGIN_TIMEOUT: Final = 300.0  # seconds for a user to log in, which may need a second device

_REGISTRATION_ENDPOINT: Final = "the registration endpoint"


class OAuth(Grant):
    """Logs a user in with their browser, and stores the tokens.

    Without arguments it finds the authorization server, registers the client there, opens the browser,
    listens on a port of this machine, and stores tokens in files that only you may read.

    Args:
        scopes: the scopes to request, in addition to those that the server asks for.
        client_id: the id of this client at the authorization server, if it was registered manually.
        client_secret: its secret, if it has one.
        issuer: the authorization server where it is registered. The secret is sent only there. By default it
            is the first one that a server names.
        client_metadata_url: the URL of the client ID metadata document, for authorization servers that
            support such documents.
        client_name: the name that the consent page shows.
        redirect_uri: where the browser returns after the login: `http://127.0.0.1:<port>/…`, where we
            listen, or an https page of yours, if `open_url` returns the address.
        storage: where tokens are stored: a `FileTokens` (by default in your folder for state), a
            `MemoryTokens`, or an object with `get`, `put` and `delete`.
        open_url: a function that shows a page to the user instead of opening the browser. It may return the
            address that the page redirects to, or a code that it shows.
        dpop: whether tokens are bound to a key: "auto" (if the server asks for it), True or False.
        http: the HTTP library for requests to authorization servers, as for a client.
        allow_private: allow metadata of public servers to point to addresses in private networks.
        allow_http: allow tokens to be sent to other machines without encryption.
        timeout: seconds for the user to log in.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is invalid, or arguments contradict each other.

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
            raise TypeError(f"open_url must be a function, not {type(open_url).__name__}")
        check_seconds("timeout", timeout)
        if client_secret is not None and client_id is None:
            raise ValueError("client_secret= requires client_id=")
        if issuer is not None and client_id is None:
            raise ValueError("issuer= requires client_id=")
        if client_metadata_url is not None:
            parts = check_http_url(client_metadata_url, "client_metadata_url")
            if parts.scheme != "https" or parts.path in {"", "/"} or parts.fragment:
                raise ValueError("client_metadata_url must be an https URL with a path")
        self._client_name = client_name
        self._client = client_id, client_secret
        self._metadata_url = client_metadata_url
        self._redirect_uri = _check_redirect_uri(redirect_uri, open_url)
        self._open_url: OpenUrl = open_url or login.open_in_browser
        self._timeout = timeout
        super().__init__(
            client_id or client_metadata_url or f"dynamic {client_name}",
            issuer=issuer,
            scopes=scopes,
            storage=FileTokens() if storage is None else storage,
            dpop=dpop,
            http=http,
            allow_private=allow_private,
            allow_http=allow_http,
            is_pinned=client_id is not None,
        )

    async def obtain(self, request: TokenRequest) -> Tokens:
        """Let the user log in."""
        endpoint = login.require_authorization_endpoint(request.server.issuer)
        # One window at a time: after one login, the next page often needs none.
        async with self.storage.lock(f"login\n{request.server.issuer.issuer}"):
            try:
                return await self._login(request, endpoint)
            except AuthorizationDenied as error:
                known = await self._get_registration(request)
                if error.code not in UNKNOWN_CLIENT_ERRORS or known is None or not known.dynamic:
                    raise
            await self.forget_registration(request)
            return await self._login(request, endpoint)

    async def _login(self, request: TokenRequest, endpoint: str) -> Tokens:
        policy, listener, redirect_uri = request.fetch.url_policy, None, self._redirect_uri
        async with AsyncExitStack() as stack:
            if is_loopback_host(urlsplit(redirect_uri).hostname):
                known = await self._get_registration(request)
                last_port = 0 if known is None else urlsplit(known.redirect_uri or "").port or 0
                listener = await stack.enter_async_context(RedirectListener(redirect_uri, last_port).open())
                redirect_uri = listener.redirect_uri
            client = await self._ensure_registration(request, redirect_uri)
            attempt = LoginAttempt(request.server.issuer, redirect_uri)
            await policy.check(endpoint, "the login page")
            resource = request.server.resource.resource
            page = attempt.build_login_url(policy, endpoint, client.client_id, resource, request.scopes)
            code = attempt.extract_code(await self._await_redirect(page, attempt, listener))
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
            **request.resource_param,
        }
        return await request.send(form, ClientIdentity(client))

    async def _await_redirect(
        self, page: str, attempt: LoginAttempt, listener: RedirectListener | None
    ) -> RedirectParameters:
        """Show the login page; return the parameters of the redirect."""
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
            problem = f"the user did not log in within {self._timeout:g} s"
            raise AuthorizationRequired(problem, hint="try again, or pass a longer timeout=") from None
        finally:
            showing.cancel()
            await asyncio.wait([showing])
        raise AuthorizationRequired("open_url returned nothing", hint="return the URL of the redirect")

    # ----------------------------------------------------------------- registration

    async def identity(self, request: TokenRequest) -> ClientIdentity | None:
        """Return the client at the authorization server."""
        client = await self._get_registration(request)
        return None if client is None else ClientIdentity(client)

    async def forget_registration(self, request: TokenRequest) -> None:
        """Delete the registration; the next login makes a new one."""
        await self.storage.delete(self._registration_key(request))

    async def _ensure_registration(self, request: TokenRequest, redirect_uri: str) -> Registration:
        known = await self._get_registration(request)
        if known is not None and (not known.dynamic or known.redirect_uri == redirect_uri):
            return known
        made = await self._register(request, redirect_uri)
        await self.storage.put(self._registration_key(request), encode_record(made))
        return made

    async def _get_registration(self, request: TokenRequest) -> Registration | None:
        """Return the registration that the user gave, or a stored one that has not expired."""
        issuer, (client_id, client_secret) = request.server.issuer, self._client
        if client_id is not None:
            return Registration(issuer.issuer, client_id, client_secret)
        if self._metadata_url is not None and issuer.client_id_metadata_document_supported:
            return Registration(issuer.issuer, self._metadata_url, method="none")
        kept = decode_record(await self.storage.get(self._registration_key(request)), Registration)
        if kept is None or kept.issuer != issuer.issuer:
            return None
        return None if kept.expires_at is not None and kept.expires_at <= time.time() else kept

    def _registration_key(self, request: TokenRequest) -> str:
        return f"client\n{request.server.issuer.issuer}\n{self.client_key}"

    async def _register(self, request: TokenRequest, redirect_uri: str) -> Registration:
        """Register the client at an authorization server (RFC 7591, AUTH-27, AUTH-28)."""
        issuer = request.server.issuer
        if issuer.registration_endpoint is None:
            raise AuthorizationRequired(
                f"the authorization server {redact_url(issuer.issuer)} "
                "does not know this client and does not register clients",
                hint="register it there manually, and pass client_id= (and client_secret=) and issuer=",
            )
        offered = issuer.token_endpoint_auth_methods_supported
        # Without a secret if possible: a program on a user's machine cannot keep one.
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
        if self.dpop is True:
            document["dpop_bound_access_tokens"] = True
        url, headers = issuer.registration_endpoint, {"content-type": JSON_TYPE}
        body = msgspec.json.encode(document)
        answer = await request.fetch.send(url, _REGISTRATION_ENDPOINT, headers, body)
        if not answer.ok:
            error = make_denial_error(answer, _REGISTRATION_ENDPOINT)
            if not isinstance(error, AuthorizationDenied):
                raise error  # it is transient
            hint = "register the client there manually, and pass client_id= and issuer="
            if error.code == "invalid_redirect_uri":
                hint = f"it does not accept {redact_url(redirect_uri)}: pass another redirect_uri="
            raise AuthError(f"the client could not be registered: {error.message}", hint=hint)
        return _parse_registration(answer.document, issuer.issuer, method, redirect_uri)


class _RegistrationResponse(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


def _parse_registration(
    document: dict[str, Any] | None, issuer: str, method: str, redirect_uri: str
) -> Registration:
    problem = f"{_REGISTRATION_ENDPOINT} sent an invalid response"
    given = convert_document(document, _RegistrationResponse, problem)
    secret = given.client_secret or None
    if not is_token(given.client_id) or (secret is not None and not is_token(secret)):
        raise AuthError(f"{_REGISTRATION_ENDPOINT} sent a client id or secret with invalid characters")
    return Registration(
        issuer,
        given.client_id,
        secret,
        method=given.token_endpoint_auth_method or (method if secret is not None else "none"),
        redirect_uri=redirect_uri,
        expires_at=given.client_secret_expires_at or None,
        dynamic=True,
    )


def _check_redirect_uri(redirect_uri: str | None, open_url: OpenUrl | None) -> str:
    """Check the redirect URI and return it: on this machine, or https (AUTH-66)."""
    if redirect_uri is None:
        return login.DEFAULT_REDIRECT_URI
    parts = check_http_url(redirect_uri, "redirect_uri")
    if parts.fragment or parts.query:
        raise ValueError("redirect_uri must have no query and no fragment")
    if is_loopback_host(parts.hostname):
        if parts.scheme != "http":
            raise ValueError("redirect_uri: use http, not https, for a URI on this machine")
        return redirect_uri
    if parts.scheme != "https":
        raise ValueError("redirect_uri must be on this machine (http://127.0.0.1/…) or start with https://")
    if open_url is None:
        raise ValueError("redirect_uri is not on this machine: pass an open_url= that returns the redirect")
    return redirect_uri
