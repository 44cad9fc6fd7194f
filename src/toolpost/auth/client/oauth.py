"""`OAuth`: a person logs in with their browser, and the client gets tokens in their name.

Owns the arguments, the registration at each authorization server, and that one window is open at a time. The
page and its redirect are in `login`, the use of tokens in `token_provider`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ClassVar, Final
from urllib.parse import urlsplit

from toolpost.auth.arguments import check_callable, check_seconds, check_texts, normalize_scopes
from toolpost.auth.client.grant import DpopMode, Grant, GrantSettings, TokenRequest
from toolpost.auth.client.login import (
    DEFAULT_REDIRECT_URI,
    LoginAttempt,
    OpenUrl,
    RedirectListener,
    open_in_browser,
    parse_redirect,
    require_authorization_endpoint,
    show_to_user,
)
from toolpost.auth.client.registration import ClientSettings, find_registration, register_client
from toolpost.auth.client.storage import FileTokens, Storage
from toolpost.auth.client.token_endpoint import (
    ClientIdentity,
    Registration,
    Tokens,
    decode_record,
    encode_record,
    is_client_unknown,
    parse_token_response,
    request_token,
)
from toolpost.auth.urls import is_loopback_host, parse_http_url
from toolpost.errors import AuthError, AuthorizationDenied, AuthorizationRequired

LOGIN_TIMEOUT: Final = 300.0
"""Seconds for a person to log in: they may have to find their telephone first."""


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
        check_texts(
            client_id=client_id,
            client_secret=client_secret,
            client_metadata_url=client_metadata_url,
            client_name=client_name,
            redirect_uri=redirect_uri,
        )
        check_callable("open_url", open_url)
        check_seconds("timeout", timeout)
        self._client = ClientSettings(client_name, client_id, client_secret, issuer, client_metadata_url)
        self._client.check()
        self._redirect_uri = _check_redirect_uri(redirect_uri, open_url)
        self._open_url: OpenUrl = open_url or open_in_browser
        self._timeout = timeout
        super().__init__(
            GrantSettings(normalize_scopes("scopes", scopes), dpop, http, allow_private, allow_http),
            storage=FileTokens() if storage is None else storage,
            who=client_id or client_metadata_url or f"dynamic {client_name}",
            issuer=issuer,
            pinned=client_id is not None,
        )

    # ----------------------------------------------------------------- new tokens

    async def obtain(self, visit: TokenRequest) -> Tokens:
        """Have the user log in."""
        issuer = visit.server.issuer
        endpoint = require_authorization_endpoint(issuer)
        # One window at a time: after one login, the next page often needs none.
        async with visit.storage.lock(f"login\n{issuer.issuer}"):
            try:
                return await self._login(visit, endpoint)
            except AuthorizationDenied as error:
                if not is_client_unknown(error) or await self._load_registration(visit) is None:
                    raise
            await self.forget_registration(visit)
            return await self._login(visit, endpoint)

    async def _login(self, visit: TokenRequest, endpoint: str) -> Tokens:
        issuer = visit.server.issuer
        async with self._open_listener(await self._load_registration(visit)) as (listener, redirect_uri):
            who = await self._ensure_registration(visit, redirect_uri)
            attempt = LoginAttempt.begin(issuer, redirect_uri)
            resource = visit.server.resource.resource
            await visit.fetch.url_policy.check(endpoint, "the page to log in")
            page = attempt.build_authorization_url(
                visit.fetch.url_policy, endpoint, who.client_id, resource, visit.scopes
            )
            code = attempt.extract_code(await self._await_redirect(page, attempt, listener))
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
            **visit.resource_param,
        }
        document = await request_token(visit.fetch, issuer, form, ClientIdentity(who), visit.proofs)
        return parse_token_response(document, visit.scopes, None)

    async def _await_redirect(
        self, page: str, attempt: LoginAttempt, listener: RedirectListener | None
    ) -> list[tuple[str, str]]:
        """Return the parameters with which the user came back."""
        if listener is not None:
            listener.accept = attempt.is_ours
        showing = asyncio.get_running_loop().create_task(show_to_user(self._open_url, page))
        came = [] if listener is None else [listener.redirect_parameters]
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.wait([showing, *came], return_when=asyncio.FIRST_COMPLETED)
                if listener is not None and listener.redirect_parameters.done():
                    return listener.redirect_parameters.result()
                said = showing.result()
                if said is not None:
                    return parse_redirect(said, attempt)
                if listener is not None:
                    return await listener.redirect_parameters
        except TimeoutError:
            raise AuthorizationRequired(
                f"nobody has logged in within {self._timeout:g} s", hint="try again; timeout= gives more time"
            ) from None
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
                    raise AuthError(
                        f"nobody can listen at {wanted}: {error.strerror or type(error).__name__}",
                        hint="give another redirect_uri=; without a port a free one is taken",
                    ) from error
                listener = await stack.enter_async_context(RedirectListener(self._redirect_uri).open())
            yield listener, listener.redirect_uri

    # ----------------------------------------------------------------- who the client is

    async def identity(self, visit: TokenRequest) -> ClientIdentity | None:
        """Return the client at the authorization server."""
        who = find_registration(self._client, visit.server.issuer) or await self._load_registration(visit)
        return None if who is None else ClientIdentity(who)

    async def forget_registration(self, visit: TokenRequest) -> None:
        """Forget the registration; a new one is made with the next login."""
        await visit.storage.delete(self._registration_key(visit))

    async def _ensure_registration(self, visit: TokenRequest, redirect_uri: str) -> Registration:
        issuer = visit.server.issuer
        known = find_registration(self._client, issuer)
        if known is not None:
            return known
        kept = await self._load_registration(visit)
        if kept is not None and kept.redirect_uri == redirect_uri:
            return kept
        made = await register_client(
            visit.fetch, self._client, issuer, redirect_uri, visit.scopes, dpop=self.settings.dpop is True
        )
        await visit.storage.put(self._registration_key(visit), encode_record(made))
        return made

    async def _load_registration(self, visit: TokenRequest) -> Registration | None:
        """Return the stored registration at this authorization server, as long as it lasts."""
        text = await visit.storage.get(self._registration_key(visit))
        kept = None if text is None else decode_record(text, Registration)
        if kept is None or kept.issuer != visit.server.issuer.issuer:
            return None
        return None if kept.expires_at is not None and kept.expires_at <= time.time() else kept

    def _registration_key(self, visit: TokenRequest) -> str:
        return f"client\n{visit.server.issuer.issuer}\n{self.client_key}"


def _check_redirect_uri(redirect_uri: str | None, open_url: OpenUrl | None) -> str:
    """Return where the browser is sent back to: this machine, or https (AUTH-66)."""
    if redirect_uri is None:
        return DEFAULT_REDIRECT_URI
    try:
        parts = parse_http_url(redirect_uri, "redirect_uri")
    except AuthError as error:
        raise ValueError(error.message) from None
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
