"""Login with a provider, from the registration of a client to a call with its token."""

from typing import Any
from urllib.parse import urlsplit

import pytest

from fake_providers import FakeGitHub, fake_google, fake_keycloak
from hosted import run
from login_site import BACK, ISSUER, RESOURCE, LoginSite, Window, ask, logging_in
from toolpost import Auth, Auth0, EntraID, GitHub, Google, Keycloak, OAuthProvider, Okta

TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
OFFLINE = "openid profile email offline_access"


def github(**options: Any):
    fake = FakeGitHub(options.get("scopes", ""))
    return fake, GitHub("app", "s3cret", http=fake, **options)


def google(**options: Any):
    fake = fake_google()
    return fake, Google("app", "s3cret", http=fake, **options)


def entra(**options: Any):
    issuer = f"https://login.microsoftonline.com/{TENANT}/v2.0"
    fake = fake_keycloak(issuer, basic=False, scope=OFFLINE, names_issuer=False)
    return fake, EntraID("app", "s3cret", tenant=TENANT, http=fake, **options)


def auth0(**options: Any):
    fake = fake_keycloak("https://notes.eu.auth0.com/", basic=False, scope=OFFLINE, names_issuer=False)
    return fake, Auth0("app", "s3cret", domain="notes.eu.auth0.com", http=fake, **options)


def okta(**options: Any):
    fake = fake_keycloak("https://notes.okta.com/oauth2/default", scope=OFFLINE)
    return fake, Okta("app", "s3cret", domain="notes.okta.com", http=fake, **options)


def keycloak(**options: Any):
    fake = fake_keycloak()
    return fake, Keycloak(
        "app", "s3cret", url="https://sso.example.com/", realm="staff", http=fake, **options
    )


def generic(**options: Any):
    fake = fake_keycloak("https://id.example.com")
    return fake, OAuthProvider("app", "s3cret", issuer="https://id.example.com", http=fake, **options)


PROVIDERS = {
    "GitHub": (github, "583231", {"login": "ann", "name": "Ann"}),
    "Google": (google, "id-of-ann", {"preferred_username": "ann"}),
    "Microsoft": (entra, "id-of-ann", {"preferred_username": "ann"}),
    "Auth0": (auth0, "id-of-ann", {"preferred_username": "ann"}),
    "Okta": (okta, "id-of-ann", {"preferred_username": "ann"}),
    "Keycloak": (keycloak, "id-of-ann", {"preferred_username": "ann"}),
    "id.example.com": (generic, "id-of-ann", {"preferred_username": "ann"}),
}


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.requirement("AS-1", "AS-10", "AS-12", "SEC-1")
def test_a_user_logs_in_with_a_provider(name):
    make, subject, claims = PROVIDERS[name]
    fake, provider = make()

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            client = await site.make_client()
            window = Window(site.app)
            page = await window.open(site.login_url(client))
            assert (page.shows("client"), page.shows("server")) == ("Desk", "notes")
            assert page.shows("host") == urlsplit(BACK).netloc
            assert page.shows("scopes") == "<li>read</li>"
            assert f"Continue to {name}" in page.text
            assert not fake.heard  # nothing happens before the user agrees
            away = await window.answer(page)
            back = await window.open(await fake.log_in(away.location))
            assert back.location.startswith(f"{BACK}?")
            assert back.sent.keys() == {"code", "state", "iss"}
            assert (back.sent["state"], back.sent["iss"]) == ("client-state", ISSUER)
            tokens = (await site.redeem(client, back.sent["code"])).json
            assert (tokens["token_type"], tokens["scope"]) == ("Bearer", "read")
            assert 0 < tokens["expires_in"] <= 900
            told = await site.call(tokens["access_token"])
            assert (told["subject"], told["scopes"]) == (subject, ["read"])
            assert told["claims"]["iss"] == ISSUER
            assert {key: told["claims"][key] for key in claims} == claims

    run(main)


@pytest.mark.requirement("AS-3", "AS-4", "AS-6")
def test_the_metadata_describes_the_login():
    fake, provider = github()

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            page = await ask(site.app, "GET", f"{ISSUER}/.well-known/oauth-authorization-server")
            assert page.headers["access-control-allow-origin"] == "*"
            assert page.json == {
                "issuer": ISSUER,
                "authorization_endpoint": f"{ISSUER}/oauth/authorize",
                "token_endpoint": f"{ISSUER}/oauth/token",
                "registration_endpoint": f"{ISSUER}/oauth/register",
                "revocation_endpoint": f"{ISSUER}/oauth/revoke",
                "scopes_supported": ["read", "write"],
                "response_types_supported": ["code"],
                "response_modes_supported": ["query"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
                "revocation_endpoint_auth_methods_supported": ["none"],
                "authorization_response_iss_parameter_supported": True,
                "client_id_metadata_document_supported": True,
            }
            page = await ask(site.app, "GET", f"{ISSUER}/.well-known/oauth-protected-resource/mcp")
            assert page.json["authorization_servers"] == [ISSUER]
            assert page.json["resource"] == RESOURCE

    run(main)


def test_a_login_without_scopes_gets_those_that_every_request_needs():
    fake, provider = github()

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            client = await site.make_client()
            assert (await site.obtain(client, scope=None))["scope"] == "read"
            # Some clients always ask for scopes about the user.
            assert (await site.obtain(client, scope="openid offline_access"))["scope"] == "read"
            assert (await site.obtain(client, scope="read write openid"))["scope"] == "read write"

    run(main)


def test_an_older_client_names_no_resource():
    fake, provider = github()

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            client = await site.make_client()
            tokens = await site.obtain(client, resource=None)
            assert (await site.call(tokens["access_token"]))["claims"]["aud"] == RESOURCE

    run(main)


# --------------------------------------------------------------------- who may log in


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_decides_who_may_log_in(is_async):
    seen = []

    def allow(user):
        seen.append(user)
        return user["login"] == "ann"

    async def allow_later(user):
        return allow(user)

    fake, provider = github(allow=allow_later if is_async else allow)

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            client = await site.make_client()
            assert "code" in (await site.log_in(client)).sent
            assert (seen[0]["id"], seen[0]["sub"]) == (583231, "583231")
            fake.user = "bob"
            sent = (await site.log_in(client)).sent
            assert sent == {"error": "access_denied", "state": "client-state", "iss": ISSUER}

    run(main)


def test_a_function_limits_the_scopes_of_a_user():
    fake, provider = github(allow=lambda user: ["read", "write"] if user["login"] == "ann" else ["read"])

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            client = await site.make_client()
            assert (await site.obtain(client, scope="read write"))["scope"] == "read write"
            fake.user = "bob"
            assert (await site.obtain(client, scope="read write"))["scope"] == "read"

    run(main)


def test_google_users_must_belong_to_the_domain():
    # A user can remove `hd` from the URL of the login page.
    fake = fake_google(parameters={"access_type": "offline", "prompt": "consent", "hd": "example.com"})
    provider = Google("app", "s3cret", domain="example.com", http=fake)

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            client = await site.make_client()
            assert (await site.log_in(client)).sent["error"] == "access_denied"
            fake.claims = {"hd": "evil.example"}
            assert (await site.log_in(client)).sent["error"] == "access_denied"
            fake.claims = {"hd": "example.com"}
            assert "code" in (await site.log_in(client)).sent

    run(main)


# --------------------------------------------------------------------- the token of the provider


def test_functions_get_the_token_of_the_provider_if_it_is_exposed():
    fake, provider = github(scopes="read:user repo", expose_token=True)

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            tokens = await site.obtain(await site.make_client())
            (upstream,) = fake.valid
            assert await site.call(tokens["access_token"], "upstream") == upstream
            assert upstream not in str(tokens)

    run(main)


def test_functions_get_no_token_of_the_provider_by_default():
    fake, provider = github()

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            tokens = await site.obtain(await site.make_client())
            with pytest.raises(Exception, match="failed unexpectedly"):
                await site.call(tokens["access_token"], "upstream")

    run(main)


def test_an_expired_token_of_the_provider_is_renewed():
    fake = fake_keycloak(lifetime=1)  # ends within the margin: it has to be renewed before each use
    provider = Keycloak(
        "app", "s3cret", url="https://sso.example.com", realm="staff", http=fake, expose_token=True
    )

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            tokens = await site.obtain(await site.make_client())
            first = await site.call(tokens["access_token"], "upstream")
            second = await site.call(tokens["access_token"], "upstream")
            assert first != second
            assert {first, second} < fake.valid.keys()
            assert len(fake.refresh_tokens) == 1

    run(main)


# --------------------------------------------------------------------- clients


@pytest.mark.requirement("AS-2", "AS-7", "AS-8")
def test_a_client_is_known_by_its_metadata_document():
    url = "https://desk.example/oauth/client.json"
    document = {"client_id": url, "client_name": "Desk", "redirect_uris": ["http://127.0.0.1/callback"]}
    fake, provider = github()
    fake.routes[url] = lambda *_: (200, document)

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            page = await Window(site.app).open(site.login_url(url))  # with a port that the document lacks
            assert (page.shows("client"), page.shows("publisher")) == ("Desk", "desk.example")
            tokens = await site.obtain(url)
            assert (await site.call(tokens["access_token"]))["claims"]["client_id"] == url
            assert len(fake.asked(url)) == 1

    run(main)


def test_a_registration_gives_a_public_client():
    fake, provider = github()

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            page = await site.register(BACK, token_endpoint_auth_method="client_secret_post", logo_uri="x:")
            assert page.status == 201
            told = page.json
            assert told.pop("client_id")
            assert told.pop("client_id_issued_at")
            assert told == {
                "client_name": "Desk",
                "redirect_uris": [BACK],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
            }

    run(main)


@pytest.mark.parametrize(
    "redirect",
    [
        "https://claude.ai/api/mcp/auth_callback",
        "http://127.0.0.1:3000/callback",
        "http://localhost/callback",
        "http://[::1]:3000/callback",
        "cursor://anysphere.cursor-mcp/oauth/user-notes/callback",
        "com.example.app:/oauth",
    ],
)
def test_a_client_may_have_a_redirect_uri(redirect):
    fake, provider = github()

    async def main() -> None:
        async with logging_in(fake, provider) as site:
            client = await site.make_client(redirect)
            back = await site.log_in(client, redirect_uri=redirect)
            assert back.location.startswith(f"{redirect}?code=")

    run(main)


def test_a_server_below_a_path_has_its_login_there():
    fake, provider = github()

    async def main() -> None:
        from login_site import make_server  # noqa: PLC0415 - for this test only

        app = make_server(Auth(provider=provider, scopes=["read"])).asgi(public_url=f"{ISSUER}/api/mcp")
        async with app.lifespan():
            site = LoginSite(app, fake)
            path = "/.well-known/oauth-authorization-server/api"
            page = await ask(app.metadata, "GET", f"{ISSUER}{path}")
            assert page.json["issuer"] == f"{ISSUER}/api"
            assert page.json["token_endpoint"] == f"{ISSUER}/api/oauth/token"
            assert (await site.register()).status == 201

    run(main)


# --------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OAuthProvider("app", "secret"), "pass issuer=, or authorization_endpoint="),
        (lambda: OAuthProvider("", "secret", issuer="https://a.example"), "client_id is empty"),
        (lambda: OAuthProvider("app", "secret", issuer="http://a.example"), "https"),
        (lambda: GitHub("app", "secret", parameters={"state": "x"}), "must not contain state"),
        (lambda: GitHub("app", "secret", token_auth="none"), "token_auth must be"),
        (lambda: GitHub("app", "secret", allow="ann"), "allow must be a function"),
        (lambda: GitHub("app", "secret", expose_token="yes"), "expose_token must be"),
        (lambda: EntraID("app", "secret", tenant="common"), "tenant must be the id of one directory"),
        (lambda: Auth(provider=GitHub("app", "secret"), dpop=True), "provider= cannot be used with"),
        (lambda: Auth("https://a.example", optional_scopes=["a"]), "require provider="),
        (Auth, "issuer is empty"),
    ],
)
def test_a_wrong_argument_is_reported(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_secrets_are_not_shown():
    assert "s3cret" not in repr(GitHub("app", "s3cret"))
    assert repr(GitHub("app", "s3cret")) == "OAuthProvider('GitHub', 'app')"
