"""The clients of the login: dynamic registration (RFC 7591), and client ID metadata documents.

Also which redirect URIs clients may have. The server cannot vouch for a client, so the consent page shows
where it leads. A document is fetched only from a public host, without redirects, and is kept as long as it
allows.
"""

import re
import secrets
import time
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

import msgspec

from toolpost.auth.fetch import AuthHttpClient, use_backend
from toolpost.auth.provider.records import (
    CLIENT_LIFETIME,
    NEW_CLIENT_LIFETIME,
    ClientRecord,
    EncryptedRecords,
)
from toolpost.auth.urls import UrlPolicy
from toolpost.errors import AuthError
from toolpost.json_schema import as_list
from toolpost.protocol.urls import has_forbidden_characters, is_loopback_host
from toolpost.token_bucket import TokenBucket

MAX_REDIRECTS: Final = 16  # redirect URIs of a client
MAX_REDIRECT_LENGTH: Final = 2048  # characters of one
MAX_NAME_LENGTH: Final = 100  # characters of a name that the consent page shows
MAX_DOCUMENTS: Final = 256  # metadata documents of clients that are kept
DOCUMENT_LIFETIME: Final = 300.0  # seconds for which a document is kept that says nothing about it
MAX_DOCUMENT_LIFETIME: Final = 86400.0  # seconds, whatever it says: a redirect URI may have to be withdrawn
NEW_CLIENT_BURST: Final = 100  # registrations and fetched documents at once: every stranger can ask for them
NEW_CLIENT_RATE: Final = 2.0  # of these per second

PUBLIC: Final = "none"

_SCHEME_PATTERN: Final = re.compile(r"[a-z][a-z0-9+.-]*")
# Browsers run or show these themselves. Apps have schemes of their own, such as cursor: or com.example.app:.
_FORBIDDEN_SCHEMES: Final = frozenset({
    "about", "blob", "chrome", "data", "edge", "file", "filesystem", "ftp", "intent", "javascript", "jar",
    "mailto", "mhtml", "ms-settings", "res", "resource", "search-ms", "sms", "tel", "vbscript",
    "view-source", "ws", "wss",
})  # fmt: skip
_MAX_AGE_PATTERN: Final = re.compile(r"max-age\s*=\s*\"?(\d{1,9})", re.IGNORECASE)


class OAuthRefusal(Exception):
    """An error response of OAuth: its code, a text for developers, and the status."""

    def __init__(self, code: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.status = status


class LoginClient(NamedTuple):
    """A client; `host` is where its metadata document is, if it has one."""

    id: str
    name: str
    redirects: tuple[str, ...]
    host: str = ""

    def has_redirect(self, redirect: str) -> bool:
        """Return whether a redirect URI is one of the client. Loopback allows any port (RFC 8252 §7.3)."""
        if redirect in self.redirects:
            return True
        here = _split(redirect)
        return is_loopback_host(here.hostname) and any(
            here._replace(netloc="") == each._replace(netloc="") and here.hostname == each.hostname
            for each in map(_split, self.redirects)
        )


class LoginClients:
    """The clients of one issuer. `hosts` are those that redirects may lead to; None for all."""

    def __init__(
        self, issuer: str, records: EncryptedRecords, http: object, hosts: frozenset[str] | None
    ) -> None:
        self._records = records
        self._http = http
        self._hosts = hosts
        self._policy = UrlPolicy(issuer)
        self._documents: dict[str, tuple[LoginClient, float]] = {}
        self._bucket = TokenBucket(NEW_CLIENT_BURST, NEW_CLIENT_RATE, monotonic)

    async def register(self, body: bytes) -> dict[str, Any]:
        """Register a client; return its metadata, with its id."""
        try:
            given = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise OAuthRefusal("invalid_client_metadata", "the body must be a JSON object") from None
        client = self._read_metadata(given)
        self._take_turn()
        client_id = secrets.token_urlsafe(16)
        record = ClientRecord(client.redirects, client.name)
        await self._records.put("client", client_id, record, NEW_CLIENT_LIFETIME)
        return {
            "client_id": client_id,
            "client_id_issued_at": int(time.time()),
            "redirect_uris": client.redirects,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": PUBLIC,  # whatever it asked for: PKCE protects it, not a secret
            "client_name": client.name,
        }

    async def find(self, client_id: str) -> LoginClient:
        """Return a client. Raises OAuthRefusal if there is no such client."""
        if client_id.startswith("https://"):
            return await self._find_document(client_id)
        found = await self._records.get("client", client_id, ClientRecord)
        if found is None:
            raise OAuthRefusal("invalid_client", "the client is not registered, or no longer", 401)
        return LoginClient(client_id, found.name, found.redirects)

    async def keep(self, client: LoginClient) -> None:
        """Keep a registration for longer, because a user has logged in with it."""
        if not client.host:
            await self._records.touch("client", client.id, CLIENT_LIFETIME)

    def can_redirect(self, client: LoginClient, redirect: str) -> bool:
        """Return whether a client may send users to a redirect URI, by the rules that hold now."""
        return client.has_redirect(redirect) and self._explain_redirect(redirect) is None

    # ----------------------------------------------------------------- metadata

    def _read_metadata(self, given: Mapping[str, Any]) -> LoginClient:
        redirects = as_list(given.get("redirect_uris"))
        if not 0 < len(redirects) <= MAX_REDIRECTS:
            text = f"redirect_uris must be a list of 1 to {MAX_REDIRECTS} URIs"
            raise OAuthRefusal("invalid_redirect_uri", text)
        for each in redirects:
            problem = self._explain_redirect(each)
            if problem is not None:
                raise OAuthRefusal("invalid_redirect_uri", f"a redirect URI {problem}")
        name = given.get("client_name")
        name = "".join(filter(str.isprintable, name))[:MAX_NAME_LENGTH] if isinstance(name, str) else ""
        return LoginClient("", name.strip(), tuple(cast("list[str]", redirects)))

    def _explain_redirect(self, redirect: Any) -> str | None:
        """Return what is wrong with a redirect URI; None if nothing is."""
        if not isinstance(redirect, str) or len(redirect) > MAX_REDIRECT_LENGTH:
            return f"must be a string of at most {MAX_REDIRECT_LENGTH} characters"
        try:
            parts = urlsplit(redirect)
            _ = parts.port
        except ValueError:
            return "is not a URI"
        if not redirect.isascii() or has_forbidden_characters(redirect) or "#" in redirect:
            return "must not have a fragment, or characters that no URI has"
        if "@" in parts.netloc:
            return "must not have a user name"
        if parts.scheme in {"http", "https"}:
            if not parts.hostname or (parts.scheme == "http" and not is_loopback_host(parts.hostname)):
                return "must use https; http is only allowed on the machine of the user"
        elif parts.scheme in _FORBIDDEN_SCHEMES or not _SCHEME_PATTERN.fullmatch(parts.scheme):
            return "has a scheme that is not allowed"
        elif "." not in parts.scheme and not redirect.startswith(f"{parts.scheme}://"):
            return "has a scheme that no app has"
        if self._hosts is not None and (parts.hostname or "") not in self._hosts:
            return "leads to a host that this server does not allow (redirect_hosts=)"
        return None

    # ----------------------------------------------------------------- metadata documents

    async def _find_document(self, url: str) -> LoginClient:
        client, until = self._documents.get(url, (None, 0.0))
        if client is not None and monotonic() < until:
            return client
        parts = _split(url)
        has_dots = any(part in {".", ".."} for part in parts.path.split("/"))
        if parts.path in {"", "/"} or has_dots or "#" in url or "@" in parts.netloc:
            raise OAuthRefusal("invalid_client", "this URL cannot be the id of a client", 401)
        self._take_turn()
        try:
            async with use_backend(self._http) as backend:
                answer = await AuthHttpClient(backend, self._policy).send(url, "the metadata of the client")
        except AuthError as error:
            raise OAuthRefusal("invalid_client", error.message, 401) from None
        given = answer.document
        if answer.status != 200 or given is None:
            text = f"the metadata of the client cannot be read: its server responded with {answer.status}"
            raise OAuthRefusal("invalid_client", text, 401)
        if given.get("client_id") != url or not isinstance(given.get("client_name"), str):
            text = "the metadata of the client must have its URL as client_id, and a client_name"
            raise OAuthRefusal("invalid_client", text, 401)
        if given.get("token_endpoint_auth_method", PUBLIC) != PUBLIC:
            text = "the metadata of the client demands an authentication other than none"
            raise OAuthRefusal("invalid_client", text, 401)
        read = self._read_metadata(given)
        client = LoginClient(url, read.name, read.redirects, host=parts.netloc)
        lifetime = _read_lifetime(answer.headers.get("cache-control", ""))
        if lifetime > 0:
            self._documents.pop(url, None)
            self._documents[url] = client, monotonic() + lifetime
            if len(self._documents) > MAX_DOCUMENTS:
                del self._documents[next(iter(self._documents))]
        return client

    def _take_turn(self) -> None:
        if not self._bucket.take():
            text = "too many new clients; try again in a few seconds"
            raise OAuthRefusal("temporarily_unavailable", text, 429)


def _read_lifetime(cache_control: str) -> float:
    """Return for how long a document may be kept (AS-7)."""
    if "no-store" in cache_control.lower() or "no-cache" in cache_control.lower():
        return 0.0
    found = _MAX_AGE_PATTERN.search(cache_control)
    return DOCUMENT_LIFETIME if found is None else min(float(found[1]), MAX_DOCUMENT_LIFETIME)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
