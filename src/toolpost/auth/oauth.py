"""`OAuth`: a person logs in, in their browser, and the client gets tokens in their name.

Owns what a user may say about that, who the client is at each authorization server, and that one window is
open at a time. The page and its answer are told in `flow`, what happens to tokens in `account`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import ClassVar, Final
from urllib.parse import urlsplit

from toolpost.auth import given
from toolpost.auth import registration as registering
from toolpost.auth.browser import OpenUrl, open_in_browser, shown_to_user
from toolpost.auth.endpoint import Identity, ask, forgets
from toolpost.auth.flow import Attempt, check, parameters_of
from toolpost.auth.grant import Dpop, Grant, Settings, Visit
from toolpost.auth.guard import is_loopback_host, parts_of
from toolpost.auth.listener import DEFAULT_REDIRECT, Listener, listening
from toolpost.auth.registration import Client
from toolpost.auth.storage import FileTokens, Storage
from toolpost.auth.tokens import Registration, Tokens, issued, read, written
from toolpost.errors import AuthError, AuthorizationDenied, AuthorizationRequired

__all__ = ["OAuth"]

LOGIN_WAIT: Final = 300.0
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
        dpop: Dpop = "auto",
        http: object = None,
        allow_private: bool = False,
        allow_http: bool = False,
        timeout: float = LOGIN_WAIT,
    ) -> None:
        texts = {
            "client_id": client_id,
            "client_secret": client_secret,
            "client_metadata_url": client_metadata_url,
            "client_name": client_name,
            "redirect_uri": redirect_uri,
        }
        for name, value in texts.items():
            given.text(name, value)
        given.function("open_url", open_url)
        given.seconds("timeout", timeout)
        self._client = Client(client_name, client_id, client_secret, issuer, client_metadata_url)
        self._client.check()
        self._redirect = _checked(redirect_uri, open_url)
        self._open_url: OpenUrl = open_url or open_in_browser
        self._timeout = timeout
        super().__init__(
            Settings(given.words("scopes", scopes), dpop, http, allow_private, allow_http),
            storage=FileTokens() if storage is None else storage,
            who=client_id or client_metadata_url or f"dynamic {client_name}",
            issuer=issuer,
            pinned=client_id is not None,
        )

    # ----------------------------------------------------------------- new tokens

    async def obtain(self, visit: Visit) -> Tokens:
        """Have the user log in."""
        issuer = visit.found.issuer
        endpoint = check(issuer)
        # One window at a time: whoever is logged in at one page is let in at the next without a word.
        async with visit.vault.lock(f"login\n{issuer.issuer}"):
            try:
                return await self._login(visit, endpoint)
            except AuthorizationDenied as error:
                if not forgets(error) or await self._kept(visit) is None:
                    raise
            await self.forgotten(visit)
            return await self._login(visit, endpoint)

    async def _login(self, visit: Visit, endpoint: str) -> Tokens:
        issuer = visit.found.issuer
        async with self._waiting(await self._kept(visit)) as (listener, redirect_uri):
            who = await self._registered(visit, redirect_uri)
            attempt = Attempt.begin(issuer, redirect_uri)
            resource = visit.found.resource.resource
            await visit.fetch.guard.check(endpoint, "the page to log in")
            page = attempt.page(visit.fetch.guard, endpoint, who.client_id, resource, visit.scopes)
            code = attempt.code(await self._answer(page, attempt, listener))
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
            **visit.resource,
        }
        document = await ask(visit.fetch, issuer, form, Identity(who), visit.proofs)
        return issued(document, visit.scopes, None)

    async def _answer(self, page: str, attempt: Attempt, listener: Listener | None) -> list[tuple[str, str]]:
        """The parameters with which the user came back."""
        if listener is not None:
            listener.accept = attempt.is_ours
        showing = asyncio.get_running_loop().create_task(shown_to_user(self._open_url, page))
        came = [] if listener is None else [listener.came]
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.wait([showing, *came], return_when=asyncio.FIRST_COMPLETED)
                if listener is not None and listener.came.done():
                    return listener.came.result()
                said = showing.result()
                if said is not None:
                    return parameters_of(said, attempt)
                if listener is not None:
                    return await listener.came
        except TimeoutError:
            raise AuthorizationRequired(
                f"nobody has logged in within {self._timeout:g} s", hint="try again; timeout= gives more time"
            ) from None
        finally:
            showing.cancel()
            await asyncio.wait([showing])
        raise AuthorizationRequired("nobody tells what came of the login", hint="open_url= has to return it")

    @asynccontextmanager
    async def _waiting(self, kept: Registration | None) -> AsyncGenerator[tuple[Listener | None, str]]:
        """Somebody who waits for the browser, where that comes to this machine; and the address."""
        if not is_loopback_host(urlsplit(self._redirect).hostname):
            yield None, self._redirect
            return
        # An authorization server may know the address with its port, so that it should be the same again.
        wanted = self._redirect
        if kept is not None and kept.redirect_uri is not None and urlsplit(wanted).port is None:
            wanted = kept.redirect_uri
        try:
            waiting = listening(wanted)
            listener = await waiting.__aenter__()
        except OSError as error:
            if wanted == self._redirect:
                raise AuthError(
                    f"nobody can listen at {wanted}: {error.strerror or type(error).__name__}",
                    hint="give another redirect_uri=; without a port a free one is taken",
                ) from error
            waiting = listening(self._redirect)
            listener = await waiting.__aenter__()
        try:
            yield listener, listener.redirect_uri
        finally:
            await waiting.__aexit__(None, None, None)

    # ----------------------------------------------------------------- who the client is

    async def identity(self, visit: Visit) -> Identity | None:
        """Who the client is at the authorization server."""
        who = registering.known(self._client, visit.found.issuer) or await self._kept(visit)
        return None if who is None else Identity(who)

    async def forgotten(self, visit: Visit) -> None:
        """Forget the registration; a new one is made with the next login."""
        await visit.vault.delete(self._client_key(visit))

    async def _registered(self, visit: Visit, redirect_uri: str) -> Registration:
        issuer = visit.found.issuer
        known = registering.known(self._client, issuer)
        if known is not None:
            return known
        kept = await self._kept(visit)
        if kept is not None and kept.redirect_uri == redirect_uri:
            return kept
        made = await registering.register(
            visit.fetch, self._client, issuer, redirect_uri, visit.scopes, dpop=self.settings.dpop is True
        )
        await visit.vault.put(self._client_key(visit), written(made))
        return made

    async def _kept(self, visit: Visit) -> Registration | None:
        """The registration that was made at this authorization server, as long as it lasts."""
        text = await visit.vault.get(self._client_key(visit))
        kept = None if text is None else read(text, Registration)
        if kept is None or kept.issuer != visit.found.issuer.issuer:
            return None
        return None if kept.expires_at is not None and kept.expires_at <= time.time() else kept

    def _client_key(self, visit: Visit) -> str:
        return f"client\n{visit.found.issuer.issuer}\n{self.who}"


def _checked(redirect_uri: str | None, open_url: OpenUrl | None) -> str:
    """Where the browser is sent back to: this machine, or https (AUTH-66).

    Raises:
        ValueError: it is neither.
    """
    if redirect_uri is None:
        return DEFAULT_REDIRECT
    try:
        parts = parts_of(redirect_uri, "redirect_uri")
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
