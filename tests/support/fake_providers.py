"""Login providers in memory, as recorded from the real ones: each checks every parameter that it gets.

They are ASGI applications for `http=`; `log_in` is their login page, for a user who is logged in there.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from toolpost.testing import TokenIssuer

__all__ = ["FakeGitHub", "FakeOidc", "fake_google", "fake_keycloak", "make_challenge"]

CALLBACK = "https://mcp.example.com/oauth/callback"


def make_challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class FakeProvider:
    """An ASGI application: URL → function of the parameters and headers, which returns status and JSON."""

    client_id = "app"
    client_secret = "s3cret"

    def __init__(self) -> None:
        self.codes: dict[str, dict[str, str]] = {}
        self.shown: list[dict[str, str]] = []
        """The parameters of each visit of the login page."""
        self.heard: list[tuple[str, dict[str, str]]] = []
        """The requests: URL and parameters."""
        self.failures: dict[str, tuple[int, Any]] = {}
        """URL → response instead of the usual."""
        self.user = "ann"
        self.routes: dict[str, Callable[[dict[str, str], dict[str, str]], tuple[int, Any]]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        url = f"{scope['scheme']}://{headers['host']}{scope['path']}"
        body = (await receive()).get("body", b"")
        form = dict(parse_qsl((body or scope["query_string"]).decode(), keep_blank_values=True))
        self.heard.append((url, form))
        if url in self.failures:
            status, said = self.failures[url]
        elif url in self.routes:
            status, said = self.routes[url](form, headers)
        else:
            status, said = 404, {}
        kind = (b"content-type", b"application/json")
        await send({"type": "http.response.start", "status": status, "headers": [kind]})
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})

    def asked(self, url: str) -> list[dict[str, str]]:
        """Return the parameters of the requests to a URL."""
        return [form for place, form in self.heard if place == url]

    def answer_login(self, page: str, url: str, wanted: dict[str, str], **more: str) -> str:
        """Check a visit of the login page; return where it sends the user."""
        assert url.startswith(f"{page}?"), url
        pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True)
        given = dict(pairs)
        assert len(given) == len(pairs)
        state, challenge = given.pop("state"), given.pop("code_challenge")
        usual = {"client_id": self.client_id, "redirect_uri": CALLBACK, "response_type": "code"}
        nonce = {"nonce": given["nonce"]} if "nonce" in wanted else {}
        assert given == usual | {"code_challenge_method": "S256"} | wanted | nonce
        assert len(challenge) == 43
        assert len(state) >= 32
        code = secrets.token_urlsafe(8)
        self.codes[code] = {"challenge": challenge, "user": self.user, **nonce}
        self.shown.append(given)
        return f"{CALLBACK}?{urlencode({'code': code, 'state': state, **more})}"

    def redeem(self, form: dict[str, str]) -> dict[str, str] | None:
        """Return what a code is for; it can be used once, with its verifier."""
        found = self.codes.pop(form["code"], None)
        if found is None or make_challenge(form["code_verifier"]) != found["challenge"]:
            return None
        assert form["redirect_uri"] == CALLBACK
        return found


class FakeGitHub(FakeProvider):
    """GitHub: no metadata, no ID tokens, no expiry; scopes with commas; errors with status 200."""

    def __init__(self, scope: str = "") -> None:
        super().__init__()
        self.scope = scope
        self.valid: dict[str, str] = {}
        self.numbers = {"ann": 583231, "bob": 583232}
        self.routes = {
            "https://github.com/login/oauth/access_token": self._token,
            "https://api.github.com/user": self._user,
        }

    async def log_in(self, url: str) -> str:
        wanted = {"scope": self.scope} if self.scope else {}
        return self.answer_login("https://github.com/login/oauth/authorize", url, wanted)

    def _token(self, form: dict[str, str], headers: dict[str, str]) -> tuple[int, Any]:
        assert "application/json" in headers["accept"]  # otherwise it sends a form
        assert "authorization" not in headers
        assert form.keys() == {
            *("client_id", "client_secret", "code", "code_verifier", "grant_type", "redirect_uri")
        }
        if (form["client_id"], form["client_secret"]) != (self.client_id, self.client_secret):
            return 200, {"error": "incorrect_client_credentials", "error_description": "secret details"}
        found = self.redeem(form)
        if found is None:
            return 200, {"error": "bad_verification_code", "error_description": "secret details"}
        token = f"gho_{secrets.token_hex(18)}"
        self.valid[token] = found["user"]
        return 200, {"access_token": token, "token_type": "bearer", "scope": self.scope.replace(" ", ",")}

    def _user(self, form: dict[str, str], headers: dict[str, str]) -> tuple[int, Any]:
        assert not form
        if "user-agent" not in headers:
            return 403, {"message": "Request forbidden by administrative rules."}
        kind, _, token = headers["authorization"].partition(" ")
        if kind != "Bearer" or token not in self.valid:
            return 401, {"message": "Bad credentials"}
        user = self.valid[token]
        return 200, {"login": user, "id": self.numbers[user], "name": user.title(), "email": None}


class FakeOidc(FakeProvider):
    """A provider of OpenID Connect. `options` differ between products."""

    def __init__(
        self,
        issuer: str,
        *,
        pages: dict[str, str],
        scope: str = "openid profile email",
        parameters: dict[str, str] | None = None,
        basic: bool = False,
        rotates: bool = True,
        names_issuer: bool = False,
        lifetime: int = 3600,
        claims: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.issuer = issuer
        self.pages = pages
        self.scope = scope
        self.parameters = parameters or {}
        self.basic = basic
        self.rotates = rotates
        self.names_issuer = names_issuer
        self.lifetime = lifetime
        self.claims = claims or {}
        self.changes: dict[str, Any] = {}
        """Changes to the claims of the next ID tokens; the keyword arguments of `TokenIssuer.token`."""
        self.mint = TokenIssuer(issuer, algorithm="RS256")
        self.valid: dict[str, str] = {}
        self.refresh_tokens: dict[str, str] = {}
        self.revoked: list[str] = []
        self.routes = {
            f"{issuer.rstrip('/')}/.well-known/openid-configuration": lambda *_: (200, self.metadata),
            pages["jwks_uri"]: lambda *_: (200, self.mint.jwks),
            pages["token_endpoint"]: self._token,
            pages["userinfo_endpoint"]: self._userinfo,
            pages["revocation_endpoint"]: self._revoke,
        }

    @property
    def metadata(self) -> dict[str, Any]:
        named = {"authorization_response_iss_parameter_supported": True} if self.names_issuer else {}
        return {"issuer": self.issuer, "response_types_supported": ["code"], **self.pages, **named}

    async def log_in(self, url: str) -> str:
        wanted = {"scope": self.scope, "nonce": "", **self.parameters}
        more = {"iss": self.issuer} if self.names_issuer else {}
        return self.answer_login(self.pages["authorization_endpoint"], url, wanted, **more)

    def _authenticate(self, form: dict[str, str], headers: dict[str, str]) -> bool:
        if self.basic:
            pair = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
            assert "client_secret" not in form
            return headers.get("authorization") == f"Basic {pair}"
        assert "authorization" not in headers
        return (form.pop("client_id"), form.pop("client_secret")) == (self.client_id, self.client_secret)

    def _token(self, form: dict[str, str], headers: dict[str, str]) -> tuple[int, Any]:
        if not self._authenticate(form, headers):
            return 401, {"error": "invalid_client", "error_description": "secret details"}
        if form["grant_type"] == "authorization_code":
            assert form.keys() == {"grant_type", "code", "code_verifier", "redirect_uri"}
            found = self.redeem(form)
            if found is None:
                return 400, {"error": "invalid_grant", "error_description": "secret details"}
            return 200, self._issue(found["user"], nonce=found["nonce"], is_first=True)
        assert form.keys() == {"grant_type", "refresh_token"}
        user = self.refresh_tokens.get(form["refresh_token"])
        if user is None:
            return 400, {"error": "invalid_grant", "error_description": "secret details"}
        if self.rotates:
            del self.refresh_tokens[form["refresh_token"]]
        return 200, self._issue(user, nonce=None, is_first=self.rotates)

    def _issue(self, user: str, nonce: str | None, *, is_first: bool) -> dict[str, Any]:
        access = secrets.token_urlsafe(16)
        self.valid[access] = user
        about: dict[str, Any] = {
            "subject": f"id-of-{user}",
            "client": self.client_id,
            "headers": {"typ": "JWT"},
            "nonce": nonce,
            "preferred_username": user,
            **self.claims,
            **self.changes,
        }
        audience = about.pop("audience", self.client_id)
        said = {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": self.lifetime,
            "scope": self.scope,
            "id_token": self.mint.token(audience, **about),
        }
        if is_first:
            said["refresh_token"] = refresh = secrets.token_urlsafe(16)
            self.refresh_tokens[refresh] = user
        return said

    def _userinfo(self, form: dict[str, str], headers: dict[str, str]) -> tuple[int, Any]:
        user = self.valid.get(headers["authorization"].removeprefix("Bearer "))
        return (401, {}) if user is None else (200, {"sub": f"id-of-{user}", **self.claims})

    def _revoke(self, form: dict[str, str], headers: dict[str, str]) -> tuple[int, Any]:
        assert self._authenticate(form, headers)
        assert form.pop("token_type_hint") == "refresh_token"
        assert form.keys() == {"token"}
        self.refresh_tokens.pop(form["token"])
        self.revoked.append(form["token"])
        return 200, {}


def fake_google(**options: Any) -> FakeOidc:
    pages = {
        "authorization_endpoint": "https://accounts.google.com/o/oauth2/v2/auth",
        "token_endpoint": "https://oauth2.googleapis.com/token",
        "userinfo_endpoint": "https://openidconnect.googleapis.com/v1/userinfo",
        "revocation_endpoint": "https://oauth2.googleapis.com/revoke",
        "jwks_uri": "https://www.googleapis.com/oauth2/v3/certs",
    }
    usual: dict[str, Any] = {"parameters": {"access_type": "offline", "prompt": "consent"}, "rotates": False}
    return FakeOidc("https://accounts.google.com", pages=pages, **usual | options)


def fake_keycloak(issuer: str = "https://sso.example.com/realms/staff", **options: Any) -> FakeOidc:
    base = f"{issuer.rstrip('/')}/protocol/openid-connect"
    pages = {
        "authorization_endpoint": f"{base}/auth",
        "token_endpoint": f"{base}/token",
        "userinfo_endpoint": f"{base}/userinfo",
        "revocation_endpoint": f"{base}/revoke",
        "jwks_uri": f"{base}/certs",
    }
    usual: dict[str, Any] = {"basic": True, "names_issuer": True}
    return FakeOidc(issuer, pages=pages, **usual | options)
