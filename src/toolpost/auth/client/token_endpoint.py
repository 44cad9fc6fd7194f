"""Requests to the token endpoint of an authorization server: client authentication, forms, and the tokens.

Defines the stored records (tokens, registrations), whose `repr` shows no secret. A form is sent once, and
again only if the server requires a nonce.
"""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode

import msgspec

from toolpost.auth.client.discovery import AuthorizationServerMetadata
from toolpost.auth.fetch import FORM_TYPE, AuthHttpClient, AuthHttpResponse, S, convert_document, encode_basic
from toolpost.auth.jose import DpopProver, PrivateKey, import_jose
from toolpost.auth.urls import redact_url
from toolpost.errors import AuthError, AuthorizationDenied
from toolpost.principal import find_scopes
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.urls import has_secret

REFRESH_MARGIN: Final = 30.0
"""Seconds before its expiry at which a token is refreshed: clocks differ, and a request takes time. For a
token with a short life it is a quarter of that."""
MAX_TOKEN_LENGTH: Final = 64 * 1024  # characters; no header holds more
_TOKEN_TYPES: Final = frozenset({"bearer", "dpop"})


class SecretRecord(msgspec.Struct, frozen=True):
    """A record with secrets, whose `repr` shows its kind only."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[Any]:
        return []


class Tokens(SecretRecord, frozen=True):
    """The tokens for one resource."""

    access: str
    kind: str = "bearer"  # or "dpop"
    expires_at: float | None = None  # in seconds since 1970; None if unknown
    early: float = REFRESH_MARGIN  # how many seconds before that it is refreshed
    refresh: str | None = None  # the refresh token, if any
    scopes: tuple[str, ...] = ()  # the granted scopes, as far as known
    asked: tuple[str, ...] = ()  # the requested scopes, of all steps together (AUTH-56)
    key: dict[str, str] | None = None  # the private key that the token is bound to, as a JWK

    @property
    def is_expired(self) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and time.time() >= self.expires_at

    @property
    def is_stale(self) -> bool:
        """Whether it has expired, or soon will."""
        return self.expires_at is not None and time.time() >= self.expires_at - self.early


class Registration(SecretRecord, frozen=True):
    """The registration of a client at one authorization server (AUTH-29)."""

    issuer: str
    client_id: str
    client_secret: str | None = None  # None for a public client
    method: str | None = None  # how it authenticates at the token endpoint; None if not agreed
    redirect_uri: str | None = None  # None if not agreed
    expires_at: float | None = None  # of the secret, in seconds since 1970; None if never
    dynamic: bool = False  # whether we made it, and can make it again


def encode_record(record: msgspec.Struct) -> str:
    """Return a record as a string for the storage."""
    return msgspec.json.encode(record).decode()


def decode_record(text: str | None, kind: type[S]) -> S | None:
    """Return a stored record; None if it is missing, unreadable, or its tokens are unusable."""
    try:
        record = JSONReader(kind)((text or "").encode())
    except InvalidJSONValue:
        return None
    return None if isinstance(record, Tokens) and not _is_usable(record) else record


def _is_usable(tokens: Tokens) -> bool:
    """Return whether stored tokens are complete."""
    if not is_token(tokens.access) or (tokens.refresh is not None and not is_token(tokens.refresh)):
        return False
    if tokens.key is None or tokens.kind not in _TOKEN_TYPES:
        return tokens.kind == "bearer"
    import_jose()  # raises if it is not installed
    try:
        DpopProver(tokens.key)
    except AuthError:
        return False
    return True


def is_token(text: str) -> bool:
    """Return whether headers and forms can carry a string as a token."""
    return 0 < len(text) <= MAX_TOKEN_LENGTH and text.isascii() and text.isprintable() and " " not in text


class _TokenResponse(msgspec.Struct):
    access_token: str
    token_type: str
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


def parse_token_response(
    document: Mapping[str, Any] | None, asked: tuple[str, ...], before: Tokens | None
) -> Tokens:
    """Return the tokens in a response; `before` are those that were refreshed. Errors do not quote it."""
    problem = "the authorization server sent an invalid token response"
    given = convert_document(document, _TokenResponse, problem)
    kind = given.token_type.lower()
    if kind not in _TOKEN_TYPES:
        raise AuthError("the authorization server issued a token of an unsupported type")
    if not is_token(given.access_token) or (given.refresh_token and not is_token(given.refresh_token)):
        raise AuthError("the authorization server issued a token that cannot be sent in a header")
    before = before or Tokens("", scopes=asked)
    seconds = _parse_expires_in(given.expires_in)
    return Tokens(
        given.access_token,
        kind,
        expires_at=None if seconds is None else time.time() + seconds,
        early=REFRESH_MARGIN if seconds is None else min(REFRESH_MARGIN, seconds / 4),
        refresh=given.refresh_token or before.refresh,
        scopes=before.scopes if given.scope is None else find_scopes(given.scope),
        asked=asked,
        key=before.key,
    )


def _parse_expires_in(expires_in: float | str | None) -> float | None:
    """Return the lifetime of a token. Some servers send it as a string, and some send nonsense."""
    try:
        seconds = float("nan" if expires_in is None else expires_in)
    except ValueError:
        return None
    return seconds if 0 <= seconds < 1e10 else None


# --------------------------------------------------------------------- endpoint

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
MAX_DESCRIPTION_LENGTH: Final = 300  # characters of a server's description that an error repeats

_ENDPOINT_NAME: Final = "the token endpoint"
_PUBLIC_FIELDS: Final = frozenset({  # fields of a form that an error may repeat; all others are secrets
    "audience", "client_assertion_type", "client_id", "grant_type", "redirect_uri", "requested_token_type",
    "resource", "scope", "subject_token_type",
})  # fmt: skip
UNKNOWN_CLIENT_ERRORS: Final = frozenset({"invalid_client", "unauthorized_client"})
_PERMANENT_ERRORS: Final = UNKNOWN_CLIENT_ERRORS | {"invalid_grant"}
_TRANSIENT_ERRORS: Final = frozenset({"server_error", "temporarily_unavailable"})
_CODE_PATTERN: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")


class ClientIdentity(NamedTuple):
    """A client at one authorization server, and how it authenticates."""

    registration: Registration
    key: PrivateKey | None = None

    @property
    def secrets(self) -> list[str]:
        """The secret, plain and encoded, as an error must not show it."""
        secret = self.registration.client_secret
        return [] if secret is None else [secret, quote_plus(secret, safe="")]

    def build_credentials(self, issuer: AuthorizationServerMetadata) -> tuple[dict[str, str], dict[str, str]]:
        """Return the form fields and headers that authenticate the client (AUTH-19, AUTH-30)."""
        client = self.registration
        if client.issuer != issuer.issuer:
            theirs, ours = redact_url(issuer.issuer), redact_url(client.issuer)
            raise AuthError(f"the credentials are for {ours}, not for {theirs}")
        method = client.method or choose_auth_method(
            issuer.token_endpoint_auth_methods_supported,
            secret=client.client_secret is not None,
            key=self.key,
        )
        if method == "private_key_jwt":
            if self.key is None:
                raise AuthError("the authorization server requires private_key_jwt, but no key is set")
            assertion = self.key.sign_assertion(client.client_id, issuer.issuer)
            return {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}, {}
        if method == "none" or client.client_secret is None:
            return {"client_id": client.client_id}, {}
        if method == "client_secret_post":
            return {"client_id": client.client_id, "client_secret": client.client_secret}, {}
        if method == "client_secret_basic":
            return {}, {"authorization": encode_basic(client.client_id, client.client_secret)}
        problem = "the authorization server requires an unsupported authentication method"
        raise AuthError(f"{problem}: {method[:60]!r}")


def choose_auth_method(supported: Iterable[str] | None, *, secret: bool, key: object = None) -> str:
    """Return an authentication method that both sides support."""
    offered = ("client_secret_basic", "none") if supported is None else tuple(supported)
    ours = ["private_key_jwt"] if key is not None else []
    ours += ["client_secret_basic", "client_secret_post"] if secret else []
    ours += ["none"] if key is None else []
    for method in ours:
        if method in offered or (supported is None and method == "private_key_jwt"):
            return method
    if not secret and key is None:
        return "none"  # many servers accept public clients without listing it
    raise AuthError(
        "the authorization server supports no authentication method of this client",
        hint=f"it supports {', '.join(word[:40] for word in offered[:10])}",
    )


async def request_token(
    fetch: AuthHttpClient,
    issuer: AuthorizationServerMetadata,
    fields: Mapping[str, str],
    identity: ClientIdentity | None,
    proofs: DpopProver | None = None,
) -> dict[str, Any] | None:
    """Send a form to the token endpoint; return the document in the response."""
    url = issuer.token_endpoint
    if url is None:
        raise AuthError(f"the authorization server {redact_url(issuer.issuer)} has no token endpoint")
    extra, headers = ({}, {}) if identity is None else identity.build_credentials(issuer)
    form = {**fields, **extra}
    body = urlencode(form).encode()
    secrets = [value for name, value in form.items() if name not in _PUBLIC_FIELDS]
    secrets += [] if identity is None else identity.secrets
    is_repeated = False
    while True:
        proof = {} if proofs is None else proofs.build_header("POST", url)
        sent = {"content-type": FORM_TYPE, **headers, **proof}
        answer = await fetch.send(url, _ENDPOINT_NAME, sent, body)
        fresh = proofs is not None and proofs.store_nonce(url, answer.headers)
        if answer.ok:
            return answer.document
        secrets += [value.rpartition(" ")[2] for value in (*headers.values(), *proof.values())]
        error = make_denial_error(answer, _ENDPOINT_NAME, secrets)
        wants_nonce = isinstance(error, AuthorizationDenied) and error.code == "use_dpop_nonce"
        if is_repeated or not fresh or not wants_nonce:
            raise error
        is_repeated = True


def make_denial_error(
    answer: AuthHttpResponse, endpoint: str, secrets: Iterable[str] = ()
) -> AuthorizationDenied | AuthError:
    """Return the error for a refusal; a transient one may be retried."""
    document = answer.document or {}
    code, text = document.get("error"), document.get("error_description")
    hidden = [*secrets]
    if not isinstance(code, str) or _CODE_PATTERN.fullmatch(code) is None or has_secret(code, hidden):
        code = ""
    description = _sanitize_description(text, hidden) if isinstance(text, str) else ""
    reason = f"{code or f'HTTP {answer.status}'}{description and f': {description}'}"
    if (answer.is_transient or code in _TRANSIENT_ERRORS) and code not in _PERMANENT_ERRORS:
        problem = f"{endpoint} is temporarily unavailable: {reason}"
        return AuthError(problem, hint="try again later", retry_safe=True)
    return AuthorizationDenied(f"{endpoint} denied the request: {reason}", code)


def _sanitize_description(text: str, secrets: list[str]) -> str:
    line = " ".join(text[: 4 * MAX_DESCRIPTION_LENGTH].split())
    line = "".join(character for character in line if character.isprintable())
    if has_secret(line, secrets):
        return ""  # it repeats a secret of the request, which must not get into logs
    return line if len(line) <= MAX_DESCRIPTION_LENGTH else f"{line[: MAX_DESCRIPTION_LENGTH - 1]}…"
