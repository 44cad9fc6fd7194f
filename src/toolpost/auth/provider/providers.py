"""The settings of a login provider: `OAuthProvider`, and the known ones as presets.

A provider has one registered application, which this server uses for all its clients. Requests to the
provider are in `upstream`.
"""

from collections.abc import Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from toolpost.auth.arguments import check_flag, check_texts
from toolpost.auth.fetch import check_backend
from toolpost.auth.urls import check_issuer, check_url
from toolpost.principal import list_scopes
from toolpost.types.base import Struct

Allow: TypeAlias = Callable[[dict[str, Any]], Any]
"""Takes the claims of a user; returns whether they may log in, or the scopes that they may have."""

OPENID_SCOPES: Final = ("openid", "profile", "email")
OFFLINE_SCOPES: Final = (*OPENID_SCOPES, "offline_access")
BASIC: Final = "client_secret_basic"
POST: Final = "client_secret_post"
ENDPOINTS: Final = (
    "authorization_endpoint", "token_endpoint", "userinfo_endpoint", "revocation_endpoint",
)  # fmt: skip

_CLAIMS: Final = ("name", "email", "email_verified", "preferred_username")
_OWN_PARAMETERS: Final = frozenset({
    "client_id", "redirect_uri", "response_type", "state", "scope", "nonce", "code_challenge",
    "code_challenge_method", "response_mode",
})  # fmt: skip


class OAuthProvider(Struct):
    """A provider that users log in at: any server of OAuth 2.0 or OpenID Connect.

    Register an application there, with the redirect URI `<public URL of your server>/oauth/callback`.

    Attributes:
        client_id: the id of the application.
        client_secret: its secret.
        issuer: the issuer URL of the provider, whose metadata has the endpoints and keys.
        authorization_endpoint: the login page, if there is no metadata.
        token_endpoint: the token endpoint, if there is no metadata.
        userinfo_endpoint: where to read the user with their token, if there is no metadata.
        revocation_endpoint: where to revoke tokens (RFC 7009), if there is no metadata.
        scopes: the scopes to request from the provider. With "openid" the ID token names the user.
        subject: the claim that identifies a user.
        claims: the claims of a user that `ctx.principal.claims` contains. Clients can read them, too.
        parameters: further parameters of the login page, such as {"prompt": "consent"}.
        token_auth: how to send the secret: "client_secret_basic" or "client_secret_post".
        allow: a function, async or not, that takes the claims of a user, and returns whether they may log in,
            or the scopes that they may have. Without it, everyone with an account at the provider may.
        expose_token: whether functions get the token of the provider by `ctx.principal.upstream_token()`.
        name: the name of the provider on the consent page.
        http: the HTTP library, as in `Http(http=…)`.

    Raises:
        TypeError: an argument has the wrong type; the error names it.
        ValueError: an argument is invalid; the error names it.

    Examples:
        >>> login = OAuthProvider("app", "secret", issuer="https://id.example.com")
        >>> auth = Auth(provider=login, scopes=["notes:read"])
    """

    client_id: str
    client_secret: str
    issuer: str | None = None
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    userinfo_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes: Iterable[str] = OPENID_SCOPES
    subject: str = "sub"
    claims: Iterable[str] = _CLAIMS
    parameters: Mapping[str, str] = {}
    token_auth: str = BASIC
    allow: Allow | None = None
    expose_token: bool = False
    name: str = ""
    http: Any = None

    def __post_init__(self) -> None:
        check_texts(client_id=self.client_id, client_secret=self.client_secret, subject=self.subject)
        if self.issuer is not None:
            check_issuer(self.issuer)
        for name, url in self.endpoints.items():
            check_url(url, name)
        missing = [f"{name}=" for name in ENDPOINTS[:3] if name not in self.endpoints]
        if self.issuer is None and missing:
            raise ValueError(f"pass issuer=, or {', '.join(missing)}")
        self.scopes = list_scopes(self.scopes)
        self.claims = frozenset(self.claims)
        reserved = sorted(_OWN_PARAMETERS.intersection(self.parameters))
        if reserved:
            raise ValueError(f"parameters must not contain {', '.join(reserved)}: the server sets them")
        if self.token_auth not in {BASIC, POST}:
            raise ValueError(f"token_auth must be {BASIC!r} or {POST!r}, not {self.token_auth!r}")
        if self.allow is not None and not callable(self.allow):
            raise TypeError("allow must be a function that takes the claims of a user")
        check_flag("expose_token", self.expose_token)
        self.name = self.name or urlsplit(self.issuer or self.authorization_endpoint or "").netloc
        check_backend(self.http)

    def __repr__(self) -> str:
        return f"OAuthProvider({self.name!r}, {self.client_id!r})"

    @property
    def endpoints(self) -> dict[str, str]:
        """The endpoints that are set."""
        given = {name: getattr(self, name) for name in ENDPOINTS}
        return {name: url for name, url in given.items() if url is not None}


def GitHub(  # noqa: N802 - the name of a provider
    client_id: str, client_secret: str, *, url: str = "https://github.com", **options: Any
) -> OAuthProvider:
    """Login with GitHub. The subject is the number of the user, which never changes; `login` is a claim.

    Args:
        client_id: the id of the OAuth app or GitHub App.
        client_secret: its secret.
        url: the URL of a GitHub Enterprise server.
        options: other arguments of `OAuthProvider`. The login needs none of GitHub's `scopes`.

    Examples:
        >>> auth = Auth(provider=GitHub("Iv1.abc", "secret", allow=lambda user: user["login"] == "ann"))
    """
    base = check_url(url, "url").rstrip("/")
    api = "https://api.github.com" if base == "https://github.com" else f"{base}/api/v3"
    preset: dict[str, Any] = {
        "authorization_endpoint": f"{base}/login/oauth/authorize",
        "token_endpoint": f"{base}/login/oauth/access_token",
        "userinfo_endpoint": f"{api}/user",
        "scopes": (),
        "subject": "id",
        "claims": ("login", "name", "email"),
        "token_auth": POST,
        "name": "GitHub",
    }
    return OAuthProvider(client_id, client_secret, **preset | options)


def Google(  # noqa: N802 - as above
    client_id: str, client_secret: str, *, domain: str | None = None, **options: Any
) -> OAuthProvider:
    """Login with Google.

    Args:
        client_id: the id of the OAuth client.
        client_secret: its secret.
        domain: the Google Workspace domain of the users; without it, every Google account may log in.
        options: other arguments of `OAuthProvider`.

    Examples:
        >>> auth = Auth(provider=Google("app", "secret", domain="example.com"))
    """
    check_texts(domain=domain)
    # Without these two, Google gives no refresh token, or only at the first login.
    parameters = {"access_type": "offline", "prompt": "consent", **options.pop("parameters", {})}
    if domain is not None:
        parameters["hd"] = domain  # a hint only: a user can remove it from the URL
        options["allow"] = _allow_domain(domain, options.get("allow"))
    preset: dict[str, Any] = {
        "issuer": "https://accounts.google.com",
        "claims": (*_CLAIMS, "hd"),
        "token_auth": POST,
        "name": "Google",
        "parameters": parameters,
    }
    return OAuthProvider(client_id, client_secret, **preset | options)


def _allow_domain(domain: str, allow: Allow | None) -> Allow:
    async def allow_user(claims: dict[str, Any]) -> Any:
        if claims.get("hd") != domain:
            return False
        allowed = True if allow is None else allow(claims)
        return await allowed if isawaitable(allowed) else allowed

    return allow_user


def EntraID(client_id: str, client_secret: str, *, tenant: str, **options: Any) -> OAuthProvider:  # noqa: N802 - as above
    """Login with Microsoft Entra ID.

    Args:
        client_id: the id of the application.
        client_secret: its secret.
        tenant: the id of the directory, a GUID: only its users may log in.
        options: other arguments of `OAuthProvider`.

    Examples:
        >>> tenant = "72f988bf-86f1-41af-91ab-2d7cd011db47"
        >>> auth = Auth(provider=EntraID("app", "secret", tenant=tenant))
    """
    if len(tenant) != 36 or tenant.count("-") != 4:
        raise ValueError(f"tenant must be the id of one directory, a GUID, not {tenant!r}: tokens name it")
    preset: dict[str, Any] = {
        "issuer": f"https://login.microsoftonline.com/{tenant.lower()}/v2.0",
        "scopes": OFFLINE_SCOPES,
        "claims": (*_CLAIMS, "oid", "tid"),
        "token_auth": POST,
        "name": "Microsoft",
    }
    return OAuthProvider(client_id, client_secret, **preset | options)


def Auth0(client_id: str, client_secret: str, *, domain: str, **options: Any) -> OAuthProvider:  # noqa: N802 - as above
    """Login with Auth0.

    Args:
        client_id: the id of the application, a regular web application.
        client_secret: its secret.
        domain: the domain of the tenant, such as "example.eu.auth0.com".
        options: other arguments of `OAuthProvider`.

    Examples:
        >>> auth = Auth(provider=Auth0("app", "secret", domain="example.eu.auth0.com"))
    """
    preset: dict[str, Any] = {
        "issuer": f"https://{domain}/",
        "scopes": OFFLINE_SCOPES,
        "token_auth": POST,
        "name": "Auth0",
    }
    return OAuthProvider(client_id, client_secret, **preset | options)


def Okta(  # noqa: N802 - as above
    client_id: str, client_secret: str, *, domain: str, server: str | None = "default", **options: Any
) -> OAuthProvider:
    """Login with Okta.

    Args:
        client_id: the id of the application, an OIDC web application.
        client_secret: its secret.
        domain: the domain of the organization, such as "example.okta.com".
        server: the id of its authorization server; None for that of the organization itself.
        options: other arguments of `OAuthProvider`.

    Examples:
        >>> auth = Auth(provider=Okta("app", "secret", domain="example.okta.com"))
    """
    issuer = f"https://{domain}" if server is None else f"https://{domain}/oauth2/{server}"
    preset: dict[str, Any] = {"issuer": issuer, "scopes": OFFLINE_SCOPES, "name": "Okta"}
    return OAuthProvider(client_id, client_secret, **preset | options)


def Keycloak(client_id: str, client_secret: str, *, url: str, realm: str, **options: Any) -> OAuthProvider:  # noqa: N802 - as above
    """Login with Keycloak.

    Args:
        client_id: the id of the client.
        client_secret: its secret.
        url: the URL of Keycloak, such as "https://sso.example.com".
        realm: the realm of the users.
        options: other arguments of `OAuthProvider`.

    Examples:
        >>> auth = Auth(provider=Keycloak("app", "secret", url="https://sso.example.com", realm="staff"))
    """
    preset: dict[str, Any] = {"issuer": f"{url.rstrip('/')}/realms/{realm}", "name": "Keycloak"}
    return OAuthProvider(client_id, client_secret, **preset | options)
