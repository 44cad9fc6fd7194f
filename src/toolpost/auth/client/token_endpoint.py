"""The token endpoint of an authorization server: client authentication, the request, and the tokens.

Owns the records that are stored (tokens, registrations), which show no secret when they are printed. A form
is sent to one address, once; only a nonce makes it be sent again.
"""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote_plus, urlencode

import msgspec

from toolpost.auth.arguments import split_scopes
from toolpost.auth.client.discovery import AuthorizationServerMetadata, ServerRecord
from toolpost.auth.client.signing import DpopProver, PrivateKey
from toolpost.auth.fetch import FORM_TYPE, AuthHttpClient, AuthHttpResponse, encode_basic
from toolpost.auth.jose import import_jose
from toolpost.auth.urls import redact_url
from toolpost.errors import AuthError, AuthorizationDenied
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.urls import has_secret

REFRESH_MARGIN: Final = 30.0
"""Seconds before its end from which on a token is refreshed: clocks differ, and a request takes time. For a
token that does not last long it is a quarter of its life."""
MAX_TOKEN_LENGTH: Final = 64 * 1024  # characters of a token: no header carries more
_TOKEN_TYPES: Final = frozenset({"bearer", "dpop"})

S = TypeVar("S", bound=msgspec.Struct)


class _SecretRecord(msgspec.Struct, frozen=True):
    """A record that holds secrets: printed, it shows its kind only."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[Any]:
        return []


class Tokens(_SecretRecord, frozen=True):
    """The tokens for one resource."""

    access: str
    kind: str = "bearer"  # or "dpop"
    expires_at: float | None = None  # in seconds since 1970; None if that is not known
    early: float = REFRESH_MARGIN  # how many seconds before that it is refreshed
    refresh: str | None = None  # the refresh token, if there is one
    scopes: tuple[str, ...] = ()  # what it is good for, as far as known
    asked: tuple[str, ...] = ()  # the scopes that were asked for, all steps together (AUTH-56)
    key: dict[str, str] | None = None  # the private key that the token is bound to, as a JWK

    @property
    def is_expired(self) -> bool:
        """Whether it is over."""
        return self.expires_at is not None and time.time() >= self.expires_at

    @property
    def is_stale(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.expires_at is not None and time.time() >= self.expires_at - self.early


class Registration(_SecretRecord, frozen=True):
    """The client at one authorization server (AUTH-29)."""

    issuer: str
    client_id: str
    client_secret: str | None = None  # None for a public client
    method: str | None = None  # how it authenticates at the token endpoint; None if that was not agreed
    redirect_uri: str | None = None  # None if that was not agreed
    expires_at: float | None = None  # when the secret ends, in seconds since 1970; None if never
    dynamic: bool = False  # whether we made it, and can make it again


_RECORD_READERS: Final[dict[type[Any], JSONReader[Any]]] = {
    kind: JSONReader(kind) for kind in (Tokens, Registration, ServerRecord)
}


def encode_record(record: msgspec.Struct) -> str:
    """Return a record as a string to be stored."""
    return msgspec.json.encode(record).decode()


def decode_record(text: str | None, kind: type[S]) -> S | None:
    """Return a stored record; None if there is none, it cannot be read, or its tokens cannot be used."""
    try:
        record: S = _RECORD_READERS[kind]((text or "").encode())
    except InvalidJSONValue:
        return None
    return None if isinstance(record, Tokens) and not _is_usable(record) else record


def _is_usable(tokens: Tokens) -> bool:
    """Whether stored tokens are complete."""
    if not is_token(tokens.access) or (tokens.refresh is not None and not is_token(tokens.refresh)):
        return False
    if tokens.key is None or tokens.kind not in _TOKEN_TYPES:
        return tokens.kind == "bearer"
    import_jose()  # if it is missing, raise now
    try:
        DpopProver(tokens.key)
    except AuthError:
        return False
    return True


def is_token(text: str) -> bool:
    """Whether a header can carry a text as a token, and a form."""
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
    """Return the tokens in a response; `before` are those that were refreshed. Errors repeat none of it."""
    try:
        given = msgspec.convert(document, _TokenResponse)
    except msgspec.ValidationError as error:  # which tells of types and places, not of values
        raise AuthError(
            f"the authorization server answered with something that is no token: {error}"
        ) from None
    kind = given.token_type.lower()
    if kind not in _TOKEN_TYPES:
        raise AuthError("the authorization server issued a token of a kind that we cannot use")
    if not is_token(given.access_token) or (given.refresh_token and not is_token(given.refresh_token)):
        raise AuthError("the authorization server issued a token that no header can carry")
    before = before or Tokens("", scopes=asked)
    seconds = _parse_expires_in(given.expires_in)
    return Tokens(
        given.access_token,
        kind,
        expires_at=None if seconds is None else time.time() + seconds,
        early=REFRESH_MARGIN if seconds is None else min(REFRESH_MARGIN, seconds / 4),
        refresh=given.refresh_token or before.refresh,
        scopes=before.scopes if given.scope is None else split_scopes(given.scope),
        asked=asked,
        key=before.key,
    )


def _parse_expires_in(expires_in: float | str | None) -> float | None:
    """Return how long a token lasts; some servers write that as a string, and some write nonsense."""
    try:
        seconds = float("nan" if expires_in is None else expires_in)
    except ValueError:
        return None
    return seconds if 0 <= seconds < 1e10 else None


# --------------------------------------------------------------------- endpoint

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
MAX_DESCRIPTION_LENGTH: Final = 300  # characters of what a server says about a refusal that an error repeats

_ENDPOINT_NAME: Final = "the token endpoint"
_PUBLIC_FIELDS: Final = frozenset({  # fields of a form that a refusal may repeat; all others are secrets
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
        """The secret in each form in which it may be sent; never to be shown."""
        secret = self.registration.client_secret
        return [] if secret is None else [secret, quote_plus(secret, safe="")]

    def build_credentials(self, issuer: AuthorizationServerMetadata) -> tuple[dict[str, str], dict[str, str]]:
        """Return what a request needs: fields of the form, and headers (AUTH-19, AUTH-30)."""
        who = self.registration
        if who.issuer != issuer.issuer:
            theirs, ours = redact_url(issuer.issuer), redact_url(who.issuer)
            raise AuthError(f"the credentials are those of {ours}, and not of {theirs}")
        method = who.method or choose_auth_method(
            issuer.token_endpoint_auth_methods_supported, secret=who.client_secret is not None, key=self.key
        )
        if method == "private_key_jwt":
            if self.key is None:
                raise AuthError("the authorization server wants a signed statement, and we have no key")
            assertion = self.key.sign_assertion(who.client_id, issuer.issuer)
            return {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}, {}
        if method == "none" or who.client_secret is None:
            return {"client_id": who.client_id}, {}
        if method == "client_secret_post":
            return {"client_id": who.client_id, "client_secret": who.client_secret}, {}
        if method == "client_secret_basic":
            return {}, {"authorization": encode_basic(who.client_id, who.client_secret)}
        raise AuthError(
            f"the authorization server wants a way to authenticate that we do not know: {method[:60]!r}"
        )


def choose_auth_method(supported: Iterable[str] | None, *, secret: bool, key: object = None) -> str:
    """Return the way to authenticate that both sides know."""
    offered = ("client_secret_basic", "none") if supported is None else tuple(supported)
    ours = ["private_key_jwt"] if key is not None else []
    ours += ["client_secret_basic", "client_secret_post"] if secret else []
    ours += ["none"] if key is None else []
    for method in ours:
        if method in offered or (supported is None and method == "private_key_jwt"):
            return method
    if not secret and key is None:
        return "none"  # many servers do not list it, and take public clients all the same
    raise AuthError(
        "the authorization server accepts none of the ways in which this client can authenticate",
        hint=f"it lists {', '.join(word[:40] for word in offered[:10])}",
    )


async def request_token(
    fetch: AuthHttpClient,
    issuer: AuthorizationServerMetadata,
    fields: Mapping[str, str],
    identity: ClientIdentity | None,
    proofs: DpopProver | None = None,
) -> dict[str, Any] | None:
    """Return the document that the token endpoint sends for a grant."""
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
        answer = await fetch.post(url, _ENDPOINT_NAME, body, FORM_TYPE, {**headers, **proof})
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
    answer: AuthHttpResponse, what: str, secrets: Iterable[str] = ()
) -> AuthorizationDenied | AuthError:
    """Return the error for a refusal, which is not final if it is transient."""
    document = answer.document or {}
    code, text = document.get("error"), document.get("error_description")
    hidden = [*secrets]
    if not isinstance(code, str) or _CODE_PATTERN.fullmatch(code) is None or has_secret(code, hidden):
        code = ""
    description = _sanitize_description(text, hidden) if isinstance(text, str) else ""
    reason = f"{code or f'HTTP {answer.status}'}{description and f': {description}'}"
    if (answer.is_transient or code in _TRANSIENT_ERRORS) and code not in _PERMANENT_ERRORS:
        return AuthError(
            f"{what} cannot say anything at the moment: {reason}", hint="try again later", retry_safe=True
        )
    return AuthorizationDenied(f"{what} says no: {reason}", code)


def _sanitize_description(text: str, secrets: list[str]) -> str:
    line = " ".join(text[: 4 * MAX_DESCRIPTION_LENGTH].split())
    line = "".join(character for character in line if character.isprintable())
    if has_secret(line, secrets):
        return ""  # a server that repeats what it was sent would put it into our logs
    return line if len(line) <= MAX_DESCRIPTION_LENGTH else f"{line[: MAX_DESCRIPTION_LENGTH - 1]}…"
