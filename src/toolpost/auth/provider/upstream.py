"""Requests to the login provider: its metadata, the login page, tokens, the user, revocation.

The quirks of providers end here: errors with status 200, users without ID tokens, tokens without an expiry.
What a provider says is logged, and never repeated to clients.
"""

import logging
import time
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from toolpost.auth.fetch import FORM_TYPE, encode_basic, fetch_json
from toolpost.auth.provider.providers import BASIC, OAuthProvider
from toolpost.auth.server.jwt import Jwt, fetch_issuer_metadata
from toolpost.auth.urls import MAX_QUOTED_LENGTH, check_url
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.types.base import Struct
from toolpost.version import __version__

logger: Final = logging.getLogger("toolpost.auth")

METADATA_LIFETIME: Final = 3600.0  # seconds until the metadata of a provider is fetched again
EXPIRY_MARGIN: Final = 60.0  # seconds before its end in which a token is renewed: a tool will use it
MAX_LIFETIME: Final = 10 * 365 * 86400.0  # seconds of a token; more is not a lifetime

# Of a code or a refresh token. GitHub has its own words; all other errors may pass.
_FINAL_ERRORS: Final = frozenset({"invalid_grant", "bad_verification_code", "bad_refresh_token"})


class UpstreamTokens(Struct):
    """The tokens of a provider; `expires` is None for tokens without an end, as those of GitHub."""

    access: str
    refresh: str = ""
    expires: float | None = None

    def __repr__(self) -> str:
        return "UpstreamTokens(…)"

    @property
    def is_over(self) -> bool:
        """Whether the access token has expired, or soon will."""
        return self.expires is not None and time.time() >= self.expires - EXPIRY_MARGIN


class LoginEnded(Exception):
    """The provider does not accept a code, a token or a user any more; the text is for the log."""


class ProviderClient:
    """The provider, for the server whose callback has this URL."""

    def __init__(self, provider: OAuthProvider, callback: str) -> None:
        self.provider = provider
        self._callback = callback
        self._metadata: Mapping[str, Any] = provider.endpoints
        self._fetched_at = float("-inf")
        self._id_tokens: Jwt | None = None

    async def _get_metadata(self) -> Mapping[str, Any]:
        provider = self.provider
        if provider.issuer is None or monotonic() - self._fetched_at < METADATA_LIFETIME:
            return self._metadata
        try:
            found = await fetch_issuer_metadata(provider.http, provider.issuer)
            wanted = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint", "revocation_endpoint")
            found |= {name: check_url(found[name], name) for name in wanted if name in found}
            self._metadata = {**found, **provider.endpoints}
            uri = check_url(found.get("jwks_uri"), "jwks_uri") if self._has_id_tokens else None
        except ValueError as error:
            raise MCPError(f"the metadata of {provider.issuer} is invalid: {error}") from None
        if uri is not None:
            self._id_tokens = Jwt(
                provider.issuer, jwks_uri=uri, audience=provider.client_id, http=provider.http
            )
        self._fetched_at = monotonic()
        return self._metadata

    @property
    def _has_id_tokens(self) -> bool:
        return self.provider.issuer is not None and "openid" in self.provider.scopes

    async def build_login_url(self, state: str, challenge: str, nonce: str) -> str:
        """Return the URL of the login page."""
        provider, metadata = self.provider, await self._get_metadata()
        parameters = {
            **provider.parameters,
            "response_type": "code",
            "client_id": provider.client_id,
            "redirect_uri": self._callback,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        if provider.scopes:
            parameters["scope"] = " ".join(provider.scopes)
        if self._has_id_tokens:
            parameters["nonce"] = nonce
        page = _get_endpoint(metadata, "authorization_endpoint")
        return f"{page}{'&' if urlsplit(page).query else '?'}{urlencode(parameters)}"

    async def check_issuer(self, named: str | None) -> None:
        """Check the `iss` of a redirect (RFC 9207). Raises LoginEnded if another provider sent it."""
        metadata, issuer = await self._get_metadata(), self.provider.issuer
        is_required = metadata.get("authorization_response_iss_parameter_supported") is True
        if (named is None and is_required) or (named is not None and issuer not in {None, named}):
            raise LoginEnded(f"the response is from another issuer: {str(named)[:MAX_QUOTED_LENGTH]}")

    async def redeem(self, code: str, verifier: str, nonce: str) -> tuple[UpstreamTokens, dict[str, Any]]:
        """Return the tokens for a code, and the claims of the user."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "code_verifier": verifier,
        }
        answer = await self._request_tokens(form)
        tokens = _read_tokens(answer)
        claims = await self._read_user(tokens, answer, nonce)
        return tokens, claims

    async def refresh(self, old: UpstreamTokens) -> tuple[UpstreamTokens, dict[str, Any] | None]:
        """Return new tokens, and the claims of the user if the provider names them."""
        if not old.refresh:
            raise LoginEnded("the token of the provider has expired, and there is no refresh token")
        answer = await self._request_tokens({"grant_type": "refresh_token", "refresh_token": old.refresh})
        tokens = _read_tokens(answer, old.refresh)
        claims = None
        if self._id_tokens is not None and "id_token" in answer:
            claims = await self._verify_id_token(answer["id_token"], None)
        return tokens, claims

    async def fetch_user(self, access: str) -> dict[str, Any] | None:
        """Return the claims of the user of a token; None if the provider has no such endpoint."""
        url = (await self._get_metadata()).get("userinfo_endpoint")
        if url is None:
            return None
        headers = {"authorization": f"Bearer {access}", **_HEADERS}
        status, claims = await fetch_json(self.provider.http, url, headers)
        if status == 401:
            raise LoginEnded("the provider does not accept its own token any more")
        if status != 200:
            raise RequestFailed(f"{url} responded with {status} instead of a user")
        return self._check_subject(claims)

    async def revoke(self, tokens: UpstreamTokens) -> None:
        """Revoke tokens, if the provider can (RFC 7009)."""
        url = (await self._get_metadata()).get("revocation_endpoint")
        if url is not None:
            kind = "refresh_token" if tokens.refresh else "access_token"
            form = {"token": tokens.refresh or tokens.access, "token_type_hint": kind}
            status, _ = await self._post(url, form)
            if status >= 400:
                raise RequestFailed(f"{url} responded with {status} to a revocation")

    async def _read_user(self, tokens: UpstreamTokens, answer: dict[str, Any], nonce: str) -> dict[str, Any]:
        if self._id_tokens is not None:
            return await self._verify_id_token(answer.get("id_token"), nonce)
        claims = await self.fetch_user(tokens.access)
        if claims is None:
            raise MCPError(
                "the provider does not say who a user is: it has no userinfo_endpoint",
                hint="request the scope openid, or pass userinfo_endpoint=",
            )
        return claims

    async def _verify_id_token(self, token: object, nonce: str | None) -> dict[str, Any]:
        assert self._id_tokens is not None, "the caller has checked it"
        if not isinstance(token, str):
            raise MCPError("the provider sent no ID token, although the scope openid was requested")
        try:
            claims = (await self._id_tokens.verify(token)).claims
        except TokenRejected as error:
            raise LoginEnded(f"the ID token is not valid: {error.message}") from None
        if nonce is not None and claims.get("nonce") != nonce:
            raise LoginEnded("the ID token has the nonce of another login")
        if claims.get("azp", self.provider.client_id) != self.provider.client_id:
            raise LoginEnded("the ID token is for another application")
        return self._check_subject(claims)

    def _check_subject(self, claims: dict[str, Any]) -> dict[str, Any]:
        """Return the claims with the subject as a string in `sub`."""
        subject: Any = claims.get(self.provider.subject)
        if isinstance(subject, bool) or not isinstance(subject, str | int) or subject == "":
            raise MCPError(f"the provider named no user: {self.provider.subject} is missing")
        return {**claims, "sub": str(subject)}

    async def _request_tokens(self, form: dict[str, str]) -> dict[str, Any]:
        url = _get_endpoint(await self._get_metadata(), "token_endpoint")
        status, answer = await self._post(url, form)
        problem = answer.get("error")
        if status == 200 and problem is None:
            return answer
        shown = f"{url} responded with {status}: {str(problem)[:MAX_QUOTED_LENGTH]}"
        if problem in _FINAL_ERRORS and status < 500:
            raise LoginEnded(shown)
        raise RequestFailed(shown)

    async def _post(self, url: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        provider = self.provider
        headers = {"content-type": FORM_TYPE, **_HEADERS}
        if provider.token_auth == BASIC:
            headers["authorization"] = encode_basic(provider.client_id, provider.client_secret)
        else:
            form |= {"client_id": provider.client_id, "client_secret": provider.client_secret}
        return await fetch_json(provider.http, url, headers, urlencode(form).encode())


_HEADERS: Final = {"user-agent": f"toolpost/{__version__}"}  # GitHub refuses requests without one


def _get_endpoint(metadata: Mapping[str, Any], name: str) -> str:
    url = metadata.get(name)
    if url is None:
        raise MCPError(f"the metadata of the provider has no {name}", hint=f"pass {name}=")
    return url


def _read_tokens(answer: dict[str, Any], old_refresh: str = "") -> UpstreamTokens:
    access, kind = answer.get("access_token"), answer.get("token_type", "bearer")
    if not isinstance(access, str) or not access or str(kind).lower() != "bearer":
        raise MCPError("the provider sent no access token of the type Bearer")
    refresh = answer.get("refresh_token")
    try:  # some providers send a string
        seconds = float(answer.get("expires_in") or 0)
    except (TypeError, ValueError):
        seconds = 0.0
    expires = time.time() + seconds if 0 < seconds < MAX_LIFETIME else None
    return UpstreamTokens(access, refresh if isinstance(refresh, str) and refresh else old_refresh, expires)
