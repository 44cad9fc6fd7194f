"""The authorization code grant with PKCE: the page, the browser that shows it, the listener for its redirect.

Owns what is compared when a user comes back (state, issuer, verifier; OAuth 2.1), and a small HTTP server on
this machine for one login (RFC 8252), bounded in size and time. Requests no token.
"""

import asyncio
import contextlib
import hmac
import secrets
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from toolpost.auth.arguments import call_user_function
from toolpost.auth.client.discovery import AuthorizationServerMetadata
from toolpost.auth.jose import hash_s256
from toolpost.auth.urls import UrlPolicy, is_loopback_host, parse_http_url, redact_url
from toolpost.errors import AuthError, AuthorizationRequired

PKCE_METHOD: Final = "S256"
MAX_REDIRECT_LENGTH: Final = 32 * 1024  # characters of what a user was sent back with

RedirectParameters: TypeAlias = list[tuple[str, str]]

_SINGLE_PARAMETERS: Final = ("code", "error", "iss", "state")
_KNOWN_ERRORS: Final = frozenset({
    "access_denied", "consent_required", "interaction_required", "invalid_request", "invalid_scope",
    "invalid_target", "login_required", "server_error", "temporarily_unavailable", "unauthorized_client",
    "unsupported_response_type",
})  # fmt: skip


def require_authorization_endpoint(issuer: AuthorizationServerMetadata) -> str:
    """Return the authorization endpoint of a server with PKCE (AUTH-64, AUTH-65)."""
    if issuer.authorization_endpoint is None:
        raise AuthError(f"the authorization server {redact_url(issuer.issuer)} has no page to log in")
    if PKCE_METHOD not in (issuer.code_challenge_methods_supported or ()):
        raise AuthError(
            f"the authorization server {redact_url(issuer.issuer)} does not say "
            f"that it can do PKCE with {PKCE_METHOD}",
            hint="without it a code could be stolen, so no login is begun",
        )
    return issuer.authorization_endpoint


class LoginAttempt(msgspec.Struct, frozen=True):
    """One login, as it is noted before the user is sent away (AUTH-34)."""

    issuer: str
    iss_expected: bool  # by the metadata of the issuer
    redirect_uri: str
    state: str  # which the redirect repeats
    verifier: str  # a secret; only its hash is sent

    def __repr__(self) -> str:
        return "LoginAttempt(…)"

    @classmethod
    def begin(cls, issuer: AuthorizationServerMetadata, redirect_uri: str) -> "LoginAttempt":
        """Begin a login with fresh secrets."""
        iss_expected = issuer.authorization_response_iss_parameter_supported is True
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
        return cls(issuer.issuer, iss_expected, redirect_uri, state, verifier)

    def build_authorization_url(
        self, guard: UrlPolicy, endpoint: str, client_id: str, resource: str, scopes: Iterable[str]
    ) -> str:
        """Return the page to send the user to (SEC-14)."""
        parts = guard.check_scheme(endpoint, "the page to log in")
        if parts.fragment:
            raise AuthError("the page to log in has a fragment, which it must not")
        asked = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": self.redirect_uri,
            "state": self.state,
            "code_challenge": hash_s256(self.verifier),
            "code_challenge_method": PKCE_METHOD,
            "resource": resource,
        }
        scope = " ".join(scopes)
        if scope:
            asked["scope"] = scope
            if "offline_access" in scope.split(" "):
                asked["prompt"] = "consent"  # OpenID Connect wants the user to be asked for that
        query = "&".join(part for part in (parts.query, urlencode(asked)) if part)
        return urlunsplit((parts.scheme, parts.netloc, parts.path or "/", query, ""))

    def is_ours(self, parameters: RedirectParameters) -> bool:
        """Whether an answer belongs to this login (AUTH-67)."""
        states = [value for name, value in parameters if name == "state"]
        return len(states) == 1 and hmac.compare_digest(states[0].encode(), self.state.encode())

    def extract_code(self, parameters: RedirectParameters) -> str:
        """Return the code of a redirect that may be used."""
        if not self.is_ours(parameters):
            raise AuthError("the answer to the login does not belong to it: its state is another")
        if any(sum(name == once for name, _ in parameters) > 1 for once in _SINGLE_PARAMETERS):
            raise AuthError("the answer to the login says something twice")
        answer = dict(parameters)
        self._check_issuer(answer.get("iss"))
        # Only now may anything else in it be looked at (AUTH-39).
        error = answer.get("error")
        if error == "access_denied":
            raise AuthorizationRequired("the login was declined", hint="log in again to go on")
        if error is not None:
            problem = error if error in _KNOWN_ERRORS else "an error that we do not know"
            raise AuthorizationRequired(f"the authorization server did not let the user in: {problem}")
        if not answer.get("code"):
            raise AuthError("the answer to the login has no code")
        return answer["code"]

    def _check_issuer(self, iss: str | None) -> None:
        """Check that the server that was asked has answered (AUTH-35, AUTH-36, AUTH-37, AUTH-38)."""
        if iss is None:
            if self.iss_expected:
                raise AuthError("the answer to the login does not say who gave it, though it has to")
        elif iss != self.issuer:
            raise AuthError(
                "the answer to the login is from another authorization server than the one that was asked",
                hint=f"that was {redact_url(self.issuer)}; the answer was not used",
            )


def parse_redirect(answer: str, attempt: LoginAttempt) -> RedirectParameters:
    """Return the parameters of a redirect, from its address or from a code that the user was shown."""
    text = answer.strip()
    if not text or len(text) > MAX_REDIRECT_LENGTH or not text.isprintable():
        raise AuthError("what came back from the login is neither an address nor a code")
    if "://" not in text:
        if attempt.iss_expected:
            problem = "this authorization server says beside it who it is, and that has to be compared"
            hint = "return the whole address that the user was sent back to"
            raise AuthError(f"open_url returned a code alone, but {problem}", hint=hint)
        # A user who types a code has seen the page; the verifier shows that the code is for us.
        return [("code", text), ("state", attempt.state)]
    try:
        parts = urlsplit(text)
        parameters = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=32)
    except ValueError:
        raise AuthError("what came back from the login cannot be read") from None
    wanted = urlsplit(attempt.redirect_uri)
    if (parts.scheme, parts.netloc, parts.path) != (wanted.scheme, wanted.netloc, wanted.path):
        raise AuthError("the user was sent back to another address than was asked for")
    return parameters


# --------------------------------------------------------------------- browser

OpenUrl: TypeAlias = Callable[[str], "str | Awaitable[str | None] | None"]
"""Shows a page to the user. Returns where they were sent back to, or the code they were shown; None if they
will be sent to where the client listens. Sync or async; a sync one runs in a thread."""

NO_BROWSER_HINT: Final = (
    "give OAuth an open_url= that shows the page elsewhere, and returns the address that the user is sent "
    "back to; a program that acts for itself takes ClientCredentials"
)


def open_in_browser(url: str) -> None:
    """Open a page in the user's browser; where there is none, say on the terminal what to open."""
    import webbrowser  # noqa: PLC0415 - looks for browsers; few need it

    parse_http_url(url, "the page to log in")
    # It starts programs with a list of arguments, and a URL of these characters is one argument everywhere.
    if webbrowser.open(url, new=1):
        return
    if not (sys.stderr and sys.stderr.isatty()):  # otherwise all would wait for an unread line
        problem = "there is no browser to log in with, and no terminal"
        raise AuthorizationRequired(problem, hint=NO_BROWSER_HINT)
    page = f"Open this page in a browser on this machine to log in:\n{url}\nWithout one: {NO_BROWSER_HINT}"
    print(page, file=sys.stderr, flush=True)  # noqa: T201 - there is no other way


async def show_to_user(open_url: OpenUrl, url: str) -> str | None:
    """Show a page to the user; return where they were sent back to, if `open_url` says it."""
    try:
        answer = await call_user_function(open_url, url)
    except AuthError:
        raise
    except Exception as error:
        problem = f"the page to log in could not be opened: {type(error).__name__}"
        raise AuthorizationRequired(problem, hint="see open_url=") from error
    if answer is not None and not isinstance(answer, str):
        hint = "return the address that the user was sent back to, or None if their browser comes here"
        raise AuthorizationRequired(f"open_url returned a {type(answer).__name__}", hint=hint)
    return answer


# --------------------------------------------------------------------- listener

DEFAULT_REDIRECT_URI: Final = "http://127.0.0.1/callback"  # with a free port
MAX_REQUEST_BYTES: Final = 32 * 1024  # bytes of a request: a code is short, and a browser adds a few headers
MAX_PARAMETERS: Final = 32  # how many parameters are read
REQUEST_TIMEOUT: Final = 10.0  # seconds for a request to arrive
MAX_CONNECTIONS: Final = 32  # at a time: a browser opens a few. The oldest makes room for a new one

_RESPONSE_HEADERS: Final = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
)
_DONE_TEXT: Final = "You can close this window and go back to the program."
_NOT_FOUND_TEXT: Final = "There is nothing here."
_WRONG_LOGIN_TEXT: Final = "This is not the login that was begun here. Go back to the program."


class RedirectListener:
    """A small HTTP server that waits for the browser at an address of this machine."""

    def __init__(self, wanted: str) -> None:
        parts = urlsplit(wanted)
        self._host = parts.hostname or "127.0.0.1"
        self._path = parts.path or "/"
        self._port = parts.port or 0  # 0 takes a free one
        self.redirect_uri = ""
        self.accept: Callable[[RedirectParameters], bool] = lambda _: False  # until a login was begun
        self.redirect_parameters: asyncio.Future[RedirectParameters] = asyncio.Future()
        self._connections: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["RedirectListener"]:
        """Listen; OSError if the port is taken."""
        servers = [await self._listen("::1" if self._host == "::1" else "127.0.0.1")]
        self._port = servers[0].sockets[0].getsockname()[1]
        if self._host == "localhost":  # a browser may try either
            with contextlib.suppress(OSError):
                servers.append(await self._listen("::1"))
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.redirect_uri = f"http://{host}:{self._port}{self._path}"
        try:
            yield self
        finally:
            for one in servers:
                one.close()
            self.redirect_parameters.cancel()
            for writer in self._connections:
                writer.transport.abort()
            if self._tasks:
                await asyncio.wait([*self._tasks])

    async def _listen(self, address: str) -> asyncio.Server:
        return await asyncio.start_server(
            self._accept_connection, address, self._port, limit=MAX_REQUEST_BYTES
        )

    def _accept_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            self._connections.pop(0).transport.abort()
        self._connections.append(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._choose_response(head)
                body = f"<!doctype html><title>toolpost</title><p>{text}</p>".encode()
                line = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{_RESPONSE_HEADERS}\r\n"
                writer.write(line.encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it was not the browser with the redirect
        finally:
            if writer in self._connections:
                self._connections.remove(writer)
            writer.close()

    def _choose_response(self, head: bytes) -> tuple[str, str]:
        """Return status and text for a request."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or words[0] != "GET" or not words[1].startswith("/"):
            return "405 Method Not Allowed", _NOT_FOUND_TEXT
        hosts = [line[5:].strip().lower() for line in lines[1:] if line.lower().startswith("host:")]
        if len(hosts) != 1 or not _is_own_host(hosts[0], self._port):
            return "421 Misdirected Request", _NOT_FOUND_TEXT  # a name that leads here is not ours
        path, _, query = words[1].partition("?")
        if path != self._path or self.redirect_parameters.done():
            return "404 Not Found", _NOT_FOUND_TEXT
        try:
            parameters = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
        except ValueError:
            parameters = []
        if not self.accept(parameters):
            return "400 Bad Request", _WRONG_LOGIN_TEXT
        self.redirect_parameters.set_result(parameters)
        return "200 OK", _DONE_TEXT


def _is_own_host(host: str, port: int) -> bool:
    name, _, number = host.rpartition(":")
    return number == str(port) and is_loopback_host(name.strip("[]"))
