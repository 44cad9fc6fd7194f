"""The authorization code grant with PKCE: the page that the user is sent to, and what comes back (OAuth 2.1).

Owns what is noted before the user leaves and compared when they come back: state, issuer, verifier. Decides
whether an answer may be used at all, before anything in it is looked at. Opens no page and asks no token.
"""

import hmac
import secrets
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from toolpost.auth.guard import UrlPolicy, redact_url
from toolpost.auth.metadata import AuthorizationServerMetadata
from toolpost.auth.signing import hash_s256
from toolpost.errors import AuthError, AuthorizationRequired

__all__ = ["LoginAttempt", "parse_redirect", "require_authorization_endpoint"]

PKCE_METHOD: Final = "S256"
MAX_REDIRECT_LENGTH: Final = 32 * 1024
"""Characters of what a user was sent back with."""

_SINGLE_PARAMETERS: Final = ("code", "error", "iss", "state")
_KNOWN_ERRORS: Final = frozenset(
    {
        "access_denied",
        "consent_required",
        "interaction_required",
        "invalid_request",
        "invalid_scope",
        "invalid_target",
        "login_required",
        "server_error",
        "temporarily_unavailable",
        "unauthorized_client",
        "unsupported_response_type",
    }
)


def require_authorization_endpoint(issuer: AuthorizationServerMetadata) -> str:
    """The authorization endpoint of a server that can be used.

    Raises:
        AuthError: it has none, or cannot do PKCE with S256 (AUTH-64, AUTH-65).
    """
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
    """One login, as it is noted before the user is sent away (AUTH-34).

    Attributes:
        issuer: who was asked, as its metadata says.
        iss_expected: whether it says that it names itself in each answer.
        redirect_uri: where the user will be sent back to.
        state: what the answer has to repeat.
        verifier: what only we know; its hash is sent.
    """

    issuer: str
    iss_expected: bool
    redirect_uri: str
    state: str
    verifier: str

    def __repr__(self) -> str:
        return "LoginAttempt(…)"

    @classmethod
    def begin(cls, issuer: AuthorizationServerMetadata, redirect_uri: str) -> "LoginAttempt":
        """A login with fresh secrets."""
        return cls(
            issuer=issuer.issuer,
            iss_expected=issuer.authorization_response_iss_parameter_supported is True,
            redirect_uri=redirect_uri,
            state=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
        )

    def build_authorization_url(
        self, guard: UrlPolicy, endpoint: str, client_id: str, resource: str, scopes: Iterable[str]
    ) -> str:
        """The page to send the user to.

        Raises:
            AuthError: it is no page that may be opened (SEC-14).
        """
        parts = urlsplit(guard.check_scheme(endpoint, "the page to log in").url)
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

    def is_ours(self, parameters: list[tuple[str, str]]) -> bool:
        """Whether an answer belongs to this login (AUTH-67)."""
        states = [value for name, value in parameters if name == "state"]
        return len(states) == 1 and hmac.compare_digest(states[0].encode(), self.state.encode())

    def extract_code(self, parameters: list[tuple[str, str]]) -> str:
        """The code in an answer.

        Raises:
            AuthorizationRequired: the user or the authorization server said no.
            AuthError: the answer must not be used, or has no code.
        """
        if not self.is_ours(parameters):
            raise AuthError("the answer to the login does not belong to it: its state is another")
        if any(sum(name == once for name, _ in parameters) > 1 for once in _SINGLE_PARAMETERS):
            raise AuthError("the answer to the login says something twice")
        said = dict(parameters)
        self._check_issuer(said.get("iss"))
        # Only now may anything else in it be looked at (AUTH-39).
        if "error" in said:
            error = said["error"] if said["error"] in _KNOWN_ERRORS else "an error that we do not know"
            if error == "access_denied":
                raise AuthorizationRequired("the login was declined", hint="log in again to go on")
            raise AuthorizationRequired(f"the authorization server did not let the user in: {error}")
        if not said.get("code"):
            raise AuthError("the answer to the login has no code")
        return said["code"]

    def _check_issuer(self, iss: str | None) -> None:
        """Compare who answered with who was asked (AUTH-35, AUTH-36, AUTH-37, AUTH-38)."""
        if iss is None:
            if self.iss_expected:
                raise AuthError("the answer to the login does not say who gave it, though it has to")
        elif iss != self.issuer:
            raise AuthError(
                "the answer to the login is from another authorization server than the one that was asked",
                hint=f"that was {redact_url(self.issuer)}; the answer was not used",
            )


def parse_redirect(answer: str, attempt: LoginAttempt) -> list[tuple[str, str]]:
    """The parameters that a user was sent back with, from the address or from a code that they were shown.

    Raises:
        AuthError: it is neither.
    """
    text = answer.strip()
    if not text or len(text) > MAX_REDIRECT_LENGTH or not text.isprintable():
        raise AuthError("what came back from the login is neither an address nor a code")
    if "://" not in text:
        if attempt.iss_expected:
            raise AuthError(
                "open_url returned a code alone, but this authorization server says beside it who it is, and "
                "that has to be compared",
                hint="return the whole address that the user was sent back to",
            )
        # Whoever types a code has seen the page; that it is for us is shown by the verifier.
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
