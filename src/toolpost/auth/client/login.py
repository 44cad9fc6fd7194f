"""The login of the authorization code grant with PKCE: the page, the browser, the listener for the redirect.

Checks state, issuer and verifier of the redirect (OAuth 2.1). The listener is a small HTTP server on this
machine for one login (RFC 8252), bounded in size and time. Requests no token.
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

from msgspec import field

from toolpost.auth.client.discovery import AuthorizationServerMetadata
from toolpost.auth.client.token_endpoint import SecretRecord
from toolpost.auth.jose import hash_s256
from toolpost.auth.urls import UrlPolicy, parse_http_url, redact_url
from toolpost.errors import AuthError, AuthorizationRequired
from toolpost.protocol.urls import is_loopback_host
from toolpost.threads import ThreadPool

PKCE_METHOD: Final = "S256"
MAX_REDIRECT_LENGTH: Final = 32 * 1024  # characters of a redirect

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
        raise AuthError(f"the authorization server {redact_url(issuer.issuer)} has no login page")
    if PKCE_METHOD not in (issuer.code_challenge_methods_supported or ()):
        raise AuthError(
            f"the authorization server {redact_url(issuer.issuer)} does not declare PKCE with {PKCE_METHOD}",
            hint="without PKCE a code could be stolen, so the login was not started",
        )
    return issuer.authorization_endpoint


class LoginAttempt(SecretRecord, frozen=True):
    """One login, recorded before the user leaves for the login page (AUTH-34)."""

    issuer: AuthorizationServerMetadata
    redirect_uri: str
    state: str = field(default_factory=lambda: secrets.token_urlsafe(32))  # the redirect repeats it
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))  # only its hash is sent

    def build_login_url(
        self, guard: UrlPolicy, endpoint: str, client_id: str, resource: str, scopes: Iterable[str]
    ) -> str:
        """Return the URL of the login page (SEC-14)."""
        parts = guard.check_scheme(endpoint, "the login page")
        if parts.fragment:
            raise AuthError("the login page must not have a fragment")
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
                asked["prompt"] = "consent"  # OpenID Connect requires it
        query = "&".join(part for part in (parts.query, urlencode(asked)) if part)
        return urlunsplit((parts.scheme, parts.netloc, parts.path or "/", query, ""))

    def is_ours(self, parameters: RedirectParameters) -> bool:
        """Return whether a redirect belongs to this login (AUTH-67)."""
        states = [value for name, value in parameters if name == "state"]
        return len(states) == 1 and hmac.compare_digest(states[0].encode(), self.state.encode())

    def extract_code(self, parameters: RedirectParameters) -> str:
        """Return the code of a valid redirect."""
        if not self.is_ours(parameters):
            raise AuthError("the login response has the wrong state")
        if any(sum(name == once for name, _ in parameters) > 1 for once in _SINGLE_PARAMETERS):
            raise AuthError("the login response repeats a parameter")
        answer = dict(parameters)
        self._check_issuer(answer.get("iss"))
        # Nothing else may be read before the issuer is checked (AUTH-39).
        error = answer.get("error")
        if error == "access_denied":
            raise AuthorizationRequired("the login was declined", hint="log in again to continue")
        if error is not None:
            problem = error if error in _KNOWN_ERRORS else "unknown error"
            raise AuthorizationRequired(f"the authorization server rejected the login: {problem}")
        if not answer.get("code"):
            raise AuthError("the login response has no code")
        return answer["code"]

    def _check_issuer(self, iss: str | None) -> None:
        """Check that the redirect is by the right issuer (AUTH-35, AUTH-36, AUTH-37, AUTH-38)."""
        if iss is None:
            if self.issuer.authorization_response_iss_parameter_supported:
                raise AuthError("the login response has no iss, which this authorization server must send")
        elif iss != self.issuer.issuer:
            raise AuthError(
                "the login response is from a different authorization server",
                hint=f"expected {redact_url(self.issuer.issuer)}; the response was ignored",
            )


def parse_redirect(answer: str, attempt: LoginAttempt) -> RedirectParameters:
    """Return the parameters of a redirect, from its address or from a code that the page has shown."""
    text = answer.strip()
    if not text or len(text) > MAX_REDIRECT_LENGTH or not text.isprintable():
        raise AuthError("the login returned neither a URL nor a code")
    if "://" not in text:
        if attempt.issuer.authorization_response_iss_parameter_supported:
            problem = "this authorization server also sends iss, which must be checked"
            hint = "return the whole URL of the redirect"
            raise AuthError(f"open_url returned only a code, but {problem}", hint=hint)
        # A user who types a code has seen the page; the verifier proves that the code is for us.
        return [("code", text), ("state", attempt.state)]
    try:
        parts = urlsplit(text)
        parameters = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise AuthError("the URL that the login returned cannot be parsed") from None
    wanted = urlsplit(attempt.redirect_uri)
    if (parts.scheme, parts.netloc, parts.path) != (wanted.scheme, wanted.netloc, wanted.path):
        raise AuthError("the login redirected to a different URL than requested")
    return parameters


# --------------------------------------------------------------------- browser

OpenUrl: TypeAlias = Callable[[str], "str | Awaitable[str | None] | None"]
"""Shows a page to the user. Returns the address of the redirect, or the code that the page has shown; None if
the redirect leads to the listener. Sync or async; a sync one runs in a thread."""

NO_BROWSER_HINT: Final = (
    "pass OAuth an open_url= that shows the page elsewhere and returns the URL of the redirect; "
    "without a user, use ClientCredentials"
)


def open_in_browser(url: str) -> None:
    """Open a page in the user's browser; without one, print the URL on the terminal."""
    import webbrowser  # noqa: PLC0415 - it searches for browsers

    parse_http_url(url, "the login page")
    # It starts a program with a list of arguments; a URL of these characters is one argument everywhere.
    if webbrowser.open(url, new=1):
        return
    if not (sys.stderr and sys.stderr.isatty()):  # otherwise no user would see the URL
        problem = "cannot log in: no browser and no terminal found"
        raise AuthorizationRequired(problem, hint=NO_BROWSER_HINT)
    page = f"Open this page in a browser on this machine to log in:\n{url}\nNo browser? {NO_BROWSER_HINT}"
    print(page, file=sys.stderr, flush=True)  # noqa: T201 - there is no other way


async def show_to_user(open_url: OpenUrl, url: str) -> str | None:
    """Show a page to the user; return the address of the redirect, if `open_url` returns it."""
    try:
        answer = await ThreadPool(1).call_function(open_url, url)
    except AuthError:
        raise
    except Exception as error:
        problem = f"the login page could not be opened: {type(error).__name__}"
        raise AuthorizationRequired(problem, hint="see open_url=") from error
    if answer is not None and not isinstance(answer, str):
        hint = "return the URL of the redirect, or None if the browser is redirected to this program"
        raise AuthorizationRequired(f"open_url returned {type(answer).__name__}", hint=hint)
    return answer


# --------------------------------------------------------------------- listener

DEFAULT_REDIRECT_URI: Final = "http://127.0.0.1/callback"  # with a free port
MAX_REQUEST_BYTES: Final = 32 * 1024  # a code is short, and a browser adds a few headers
MAX_PARAMETERS: Final = 32  # of a redirect
REQUEST_TIMEOUT: Final = 10.0  # seconds for a request to arrive
MAX_CONNECTIONS: Final = 32  # at a time: a browser opens a few. A new one closes the oldest

_RESPONSE_HEADERS: Final = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
)
_NOT_FOUND_TEXT: Final = "Not found."


class RedirectListener:
    """A small HTTP server on this machine that receives the redirect.

    If the address has no port, `last_port` is tried before a free one: the client may be registered with it.
    """

    def __init__(self, wanted: str, last_port: int = 0) -> None:
        parts = urlsplit(wanted)
        self._wanted = wanted
        self._host = parts.hostname or "127.0.0.1"
        self._path = parts.path or "/"
        self._port = parts.port or last_port  # 0 is a free one
        self._has_spare_port = parts.port is None and last_port != 0
        self.redirect_uri = ""
        self.accept: Callable[[RedirectParameters], bool] = lambda _: False  # until a login starts
        self.redirect_parameters: asyncio.Future[RedirectParameters] = asyncio.Future()
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}  # the oldest first

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["RedirectListener"]:
        """Listen; AuthError if the port is taken."""
        address = "::1" if self._host == "::1" else "127.0.0.1"
        try:
            servers = [await self._listen(address)]
        except OSError as error:
            if not self._has_spare_port:
                problem = f"cannot listen at {self._wanted}: {error.strerror or type(error).__name__}"
                hint = "pass another redirect_uri=; without a port, a free one is chosen"
                raise AuthError(problem, hint=hint) from error
            self._port = 0
            servers = [await self._listen(address)]
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
            await asyncio.gather(*self._connections.values())

    async def _listen(self, address: str) -> asyncio.Server:
        return await asyncio.start_server(self._on_connection, address, self._port, limit=MAX_REQUEST_BYTES)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones = [each for each in self._connections if not each.is_closing()]
        if len(open_ones) >= MAX_CONNECTIONS:
            open_ones[0].transport.abort()
        self._connections[writer] = asyncio.create_task(self._serve(reader, writer))

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
            del self._connections[writer]
            writer.close()

    def _choose_response(self, head: bytes) -> tuple[str, str]:
        """Return status and text of the response to a request."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or words[0] != "GET" or not words[1].startswith("/"):
            return "405 Method Not Allowed", _NOT_FOUND_TEXT
        hosts = [line[5:].strip().lower() for line in lines[1:] if line.lower().startswith("host:")]
        name, _, port = "".join(hosts).rpartition(":")
        if len(hosts) != 1 or port != str(self._port) or not is_loopback_host(name.strip("[]")):
            return "421 Misdirected Request", _NOT_FOUND_TEXT  # another name for us (DNS rebinding)
        path, _, query = words[1].partition("?")
        if path != self._path or self.redirect_parameters.done():
            return "404 Not Found", _NOT_FOUND_TEXT
        try:
            parameters = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
        except ValueError:
            parameters = []
        if not self.accept(parameters):
            return "400 Bad Request", "This login was not started here. Return to the program."
        self.redirect_parameters.set_result(parameters)
        return "200 OK", "You can close this window and return to the program."
