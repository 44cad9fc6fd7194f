"""An independent authorization server: authlib's, in a small Starlette application.

Grants, client authentication, PKCE and tokens are authlib's; only what it leaves to its users is here.
"""

import json
import secrets
from typing import Any
from urllib.parse import parse_qsl

from authlib.oauth2.rfc6749 import AuthorizationServer, ClientMixin, OAuth2Request
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, ClientCredentialsGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

__all__ = ["Authlib"]


class _Client(ClientMixin):
    secret = "s3cret"

    def __init__(self, redirect: str) -> None:
        self.redirect = redirect

    def get_client_id(self):
        return "app"

    def get_default_redirect_uri(self):
        return self.redirect

    def get_allowed_scope(self, scope) -> Any:
        return scope

    def check_redirect_uri(self, redirect_uri):
        return redirect_uri == self.redirect

    def check_client_secret(self, client_secret):
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method, endpoint):
        return method == "client_secret_basic"

    def check_response_type(self, response_type):
        return response_type == "code"

    def check_grant_type(self, grant_type):
        return grant_type in {"authorization_code", "client_credentials"}


class _User:
    def get_user_id(self):
        return "alice"


class _Code:
    def __init__(self, request: Any) -> None:
        data = request.payload.data
        self.redirect_uri, self.scope, self.resource = data["redirect_uri"], data["scope"], data["resource"]
        self.code_challenge = data["code_challenge"]
        self.code_challenge_method = data["code_challenge_method"]

    def get_redirect_uri(self):
        return self.redirect_uri

    def get_scope(self):
        return self.scope


class _CodeGrant(AuthorizationCodeGrant):
    def save_authorization_code(self, code, request):
        self.server.codes[code] = _Code(request)

    def query_authorization_code(self, code, client):
        return self.server.codes.get(code)

    def delete_authorization_code(self, authorization_code):
        self.server.codes = {k: v for k, v in self.server.codes.items() if v is not authorization_code}

    def authenticate_user(self, authorization_code):
        return _User()


class _Tokens(JWTBearerTokenGenerator):
    """authlib's tokens for a resource; `claims` has the changes of a test."""

    def __init__(self, issuer: str) -> None:
        super().__init__(issuer, expires_generator=lambda client, grant: self.lifetime)
        self.lifetime = 300
        self.audience: Any = None
        self.claims: dict[str, Any] = {}
        self.keys: list[Any] = []

    def get_jwks(self):
        return KeySet(self.keys[:1])

    def get_audiences(self, client, user, scope):
        return self.audience

    def get_extra_claims(self, client, grant_type, user, scope):
        return self.claims


class _Request(OAuth2Request):
    @property
    def form(self) -> Any:
        payload: Any = self.payload
        return payload.data

    @property
    def args(self) -> Any:
        return self.form


class _Server(AuthorizationServer):
    def __init__(self) -> None:
        super().__init__()
        self.codes: dict[str, Any] = {}
        self.redirect = "http://127.0.0.1:3000/cb"
        self.issued: list[str] = []

    def query_client(self, client_id) -> Any:
        return _Client(self.redirect) if client_id == "app" else None

    def save_token(self, token, request):
        self.issued.append(str(token["access_token"]))

    def create_oauth2_request(self, request):
        made = _Request(request["method"], request["uri"], headers=request["headers"])
        made.payload = BasicOAuth2Payload(request["data"])
        return made

    def handle_response(self, status, body, headers):
        text = json.dumps(body) if isinstance(body, dict) else body
        return Response(text, status, dict(headers))

    def send_signal(self, name, *args, **kwargs):
        pass


class Authlib:
    """The application, and the settings that a test may change."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.fetched = 0
        self.tokens = _Tokens(issuer)
        self.rotate()
        self._server = _Server()
        self._server.register_token_generator("default", self.tokens)
        self._server.register_grant(ClientCredentialsGrant)
        self._server.register_grant(_CodeGrant, [CodeChallenge(required=True)])
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/jwks", self._jwks),
                Route("/token", self._token, methods=["POST"]),
                Route("/authorize", self._authorize),
                Route("/userinfo", self._userinfo),
            ]
        )

    def rotate(self, *, forget: bool = False) -> None:
        """Sign with a new key."""
        key = RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})
        self.tokens.keys = [key, *([] if forget else self.tokens.keys)]

    def redirect_to(self, url: str) -> None:
        """Change the redirect URI of the client."""
        self._server.redirect = url

    async def _userinfo(self, request: Request) -> Response:
        scheme, _, token = request.headers["authorization"].partition(" ")
        is_known = scheme == "Bearer" and token in self._server.issued
        return JSONResponse({"sub": "alice"}) if is_known else JSONResponse({}, 401)

    async def _metadata(self, request: Request) -> Response:
        endpoints = {name: f"{self.issuer}/{path}" for name, path in _ENDPOINTS.items()}
        return JSONResponse({"issuer": self.issuer, **endpoints})

    async def _jwks(self, request: Request) -> Response:
        self.fetched += 1
        return JSONResponse({"keys": [key.as_dict(private=False) for key in self.tokens.keys]})

    def _asked(self, request: Request, data: dict[str, str]) -> dict[str, Any]:
        headers = {name.title(): value for name, value in request.headers.items()}
        return {"method": request.method, "uri": f"{self.issuer}/x", "headers": headers, "data": data}

    async def _token(self, request: Request) -> Any:
        data = dict(parse_qsl((await request.body()).decode()))
        self.tokens.audience = data.get("resource")
        return self._server.create_token_response(self._asked(request, data))

    async def _authorize(self, request: Request) -> Any:
        asked = self._asked(request, dict(request.query_params))
        return self._server.create_authorization_response(asked, grant_user=_User(), grant=self._grant(asked))

    def _grant(self, asked: dict[str, Any]) -> Any:
        return self._server.get_consent_grant(asked, end_user=_User())


_ENDPOINTS = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
