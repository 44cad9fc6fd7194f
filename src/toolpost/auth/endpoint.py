"""The token endpoint of an authorization server: who asks, how that is proven, and what comes back.

Owns client authentication (none, basic, post, private-key JWT) and the words for a refusal. Which grant is
asked for is not known here. A form is sent to one address, once; only a nonce makes it be sent again.
"""

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote_plus

from toolpost.auth.dpop import DpopProver
from toolpost.auth.fetch import AuthHttpClient, AuthHttpResponse
from toolpost.auth.guard import redact_url
from toolpost.auth.metadata import AuthorizationServerMetadata
from toolpost.auth.signing import PrivateKey
from toolpost.auth.tokens import Registration
from toolpost.errors import AuthError, AuthorizationDenied
from toolpost.secret import has_secret

__all__ = ["ClientIdentity", "choose_auth_method", "is_client_unknown", "make_denial_error", "request_token"]

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
MAX_DESCRIPTION_LENGTH: Final = 300
"""Characters of what a server says about a refusal that an error repeats."""

_ENDPOINT_NAME: Final = "the token endpoint"
_PUBLIC_FIELDS: Final = frozenset(
    {
        "audience",
        "client_assertion_type",
        "client_id",
        "grant_type",
        "redirect_uri",
        "requested_token_type",
        "resource",
        "scope",
        "subject_token_type",
    }
)
"""Fields of a form that a refusal may repeat. All others are secrets."""

_UNKNOWN_CLIENT_ERRORS: Final = frozenset({"invalid_client", "unauthorized_client"})
_PERMANENT_ERRORS: Final = _UNKNOWN_CLIENT_ERRORS | {"invalid_grant"}
_TRANSIENT_ERRORS: Final = frozenset({"server_error", "temporarily_unavailable"})
_CODE_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def is_client_unknown(error: AuthorizationDenied) -> bool:
    """Whether the authorization server does not know the client any more."""
    return error.code in _UNKNOWN_CLIENT_ERRORS


class ClientIdentity:
    """Who asks, and how that is proven.

    Args:
        registration: who we are there.
        key: signs a statement of who we are, instead of a secret.
    """

    def __init__(self, registration: Registration, key: PrivateKey | None = None) -> None:
        self.registration = registration
        self._key = key

    def __repr__(self) -> str:
        return f"ClientIdentity({self.registration.client_id!r})"

    @property
    def secrets(self) -> list[str]:
        """What only we know, in each form in which it may be sent; never to be shown."""
        secret = self.registration.client_secret
        return [] if secret is None else [secret, quote_plus(secret, safe="")]

    def build_credentials(self, issuer: AuthorizationServerMetadata) -> tuple[dict[str, str], dict[str, str]]:
        """What a request to the token endpoint needs: fields of the form, and headers.

        Raises:
            AuthError: the credentials are of another authorization server (AUTH-19, AUTH-30).
        """
        who = self.registration
        if who.issuer != issuer.issuer:
            raise AuthError(
                f"the credentials are those of {redact_url(who.issuer)}, "
                f"and not of {redact_url(issuer.issuer)}"
            )
        method = who.method or choose_auth_method(
            issuer.token_endpoint_auth_methods_supported, secret=who.client_secret is not None, key=self._key
        )
        if method == "private_key_jwt":
            if self._key is None:
                raise AuthError("the authorization server wants a signed statement, and we have no key")
            assertion = self._key.sign_assertion(who.client_id, issuer.issuer)
            return {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}, {}
        if method == "none" or who.client_secret is None:
            return {"client_id": who.client_id}, {}
        if method == "client_secret_post":
            return {"client_id": who.client_id, "client_secret": who.client_secret}, {}
        if method == "client_secret_basic":
            return {}, {"authorization": _encode_basic(who.client_id, who.client_secret)}
        raise AuthError(
            f"the authorization server wants a way to authenticate that we do not know: {method[:60]!r}"
        )


def _encode_basic(name: str, secret: str) -> str:
    """Basic authentication as RFC 6749 (2.3.1) wants it: each part is form-encoded before they are joined."""
    pair = f"{quote_plus(name, safe='')}:{quote_plus(secret, safe='')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def choose_auth_method(supported: Iterable[str] | None, *, secret: bool, key: object = None) -> str:
    """The way to authenticate that both sides know.

    Args:
        supported: what the authorization server lists; None if it lists nothing, which means basic.
        secret: whether we have a secret.
        key: a private key, if we have one.

    Raises:
        AuthError: there is none.
    """
    offered = ("client_secret_basic", "none") if supported is None else tuple(supported)
    ours = (
        (["private_key_jwt"] if key is not None else [])
        + (["client_secret_basic", "client_secret_post"] if secret else [])
        + (["none"] if key is None else [])
    )
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
    """What the token endpoint answers to a grant.

    Args:
        fetch: carries the request.
        issuer: whose token endpoint it is.
        fields: the grant.
        identity: who asks; None for a grant that tells by itself.
        proofs: proves that the token will be used by us.

    Raises:
        AuthorizationDenied: the authorization server says no.
        AuthError: it cannot be asked, or not at the moment; then it is `retry_safe`.
    """
    url = issuer.token_endpoint
    if url is None:
        raise AuthError(f"the authorization server {redact_url(issuer.issuer)} has no token endpoint")
    extra, headers = ({}, {}) if identity is None else identity.build_credentials(issuer)
    form = {**fields, **extra}
    nonces = 1
    while True:
        proof = {} if proofs is None else proofs.build_header("POST", url)
        answer = await fetch.post_form(url, _ENDPOINT_NAME, form, {**headers, **proof})
        fresh = proofs is not None and proofs.store_nonce(url, answer.headers)
        if answer.ok:
            return answer.document
        secrets = [value for name, value in form.items() if name not in _PUBLIC_FIELDS]
        secrets += [value.rpartition(" ")[2] for value in (*headers.values(), *proof.values())]
        if identity is not None:
            secrets += identity.secrets
        error = make_denial_error(answer, _ENDPOINT_NAME, secrets)
        wants_nonce = isinstance(error, AuthorizationDenied) and error.code == "use_dpop_nonce"
        if not nonces or not fresh or not wants_nonce:
            raise error
        nonces -= 1


def make_denial_error(
    answer: AuthHttpResponse, what: str, secrets: Iterable[str] = ()
) -> AuthorizationDenied | AuthError:
    """The error for a refusal of an authorization server; one that passes is no word about us.

    Args:
        answer: the refusal.
        what: who refused.
        secrets: what was sent; none of it is repeated.
    """
    document = answer.document or {}
    code, text = document.get("error"), document.get("error_description")
    hidden = [*secrets]
    code = code if isinstance(code, str) and len(code) <= 60 and _CODE_CHARACTERS.issuperset(code) else ""
    code = "" if has_secret(code, hidden) else code
    said = _sanitize_description(text, hidden) if isinstance(text, str) else ""
    why = code or f"HTTP {answer.status}"
    told = f"{why}{f': {said}' if said else ''}"
    if (answer.is_transient or code in _TRANSIENT_ERRORS) and code not in _PERMANENT_ERRORS:
        return AuthError(
            f"{what} cannot say anything at the moment: {told}", hint="try again later", retry_safe=True
        )
    return AuthorizationDenied(f"{what} says no: {told}", code)


def _sanitize_description(text: str, secrets: list[str]) -> str:
    line = " ".join(text[: 4 * MAX_DESCRIPTION_LENGTH].split())
    line = "".join(character for character in line if character.isprintable())
    if has_secret(line, secrets):
        return ""  # a server that repeats what it was sent would put it into our logs
    return line if len(line) <= MAX_DESCRIPTION_LENGTH else f"{line[: MAX_DESCRIPTION_LENGTH - 1]}…"
