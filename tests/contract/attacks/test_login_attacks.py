"""Attacks on the login with a provider. Each is refused; the sources are next to the tests.

Sources: GHSA-… are published advisories, `fastmcp#…` and `mcp-remote` are reports about other proxies,
RFC 9700 is the security practice of OAuth, and the guide is the one of the specification.
"""

import re
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from fake_providers import FakeGitHub, fake_keycloak, make_challenge
from hosted import run
from login_site import BACK, ISSUER, RESOURCE, LoginSite, Window, ask, logging_in
from toolpost import AuthError, GitHub, Keycloak
from toolpost.testing import TokenIssuer


def with_github(attack, **auth: Any) -> None:
    """Run an attack on a server with GitHub."""

    async def main() -> None:
        fake = FakeGitHub()
        async with logging_in(fake, GitHub("app", "s3cret", http=fake), **auth) as site:
            await attack(site)

    run(main)


def with_keycloak(attack, **options: Any) -> None:
    """Run an attack on a server with Keycloak."""

    async def main() -> None:
        fake = fake_keycloak(**options)
        provider = Keycloak("app", "s3cret", url="https://sso.example.com", realm="staff", http=fake)
        async with logging_in(fake, provider) as site:
            await attack(site)

    run(main)


# --------------------------------------------------------------------- confused deputy


@pytest.mark.requirement("SEC-1", "AUTH-69")
def test_no_client_reaches_the_provider_without_consent():
    """GHSA-c2jp-c369-7pvx, the guide: the provider knows the user and this server, and asks nothing."""

    async def attack(site: LoginSite) -> None:
        window = Window(site.app)
        await site.log_in(await site.make_client(), window)
        evil = await site.make_client("https://evil.example/cb")
        page = await window.open(site.login_url(evil, redirect_uri="https://evil.example/cb"))
        assert (page.status, page.shows("host")) == (200, "evil.example")
        assert "location" not in page.headers

    with_github(attack)


@pytest.mark.requirement("SEC-1")
def test_another_browser_cannot_finish_the_login_of_an_attacker():
    """GHSA-rww4-4w9c-7733 (CVE-2026-27124): the attacker consents, and the victim opens the next page."""

    async def attack(site: LoginSite) -> None:
        client, attacker, victim = await site.make_client(), Window(site.app), Window(site.app)
        away = await attacker.answer(await attacker.open(site.login_url(client)))
        back = await site.upstream.log_in(away.location)
        assert (await victim.open(back)).status == 403
        await victim.open(site.login_url(client))  # now it has a cookie, but of its own
        page = await victim.open(back)
        assert (page.status, "location" in page.headers) == (403, False)
        assert not site.upstream.asked("https://github.com/login/oauth/access_token")

    with_github(attack)


def test_the_consent_of_one_client_is_not_that_of_another():
    """fastmcp#2056: a cookie remembers consent."""

    async def attack(site: LoginSite) -> None:
        window, client = Window(site.app), await site.make_client()
        for _ in range(2):
            page = await window.open(site.login_url(client))
            assert page.status == 200
            await window.answer(page)

    with_github(attack)


# --------------------------------------------------------------------- consent: CSRF, clickjacking, injection


def test_another_site_cannot_consent():
    """CSRF on the consent page."""

    async def attack(site: LoginSite) -> None:
        client, attacker, victim = await site.make_client(), Window(site.app), Window(site.app)
        page = await attacker.open(site.login_url(client))
        await victim.open(site.login_url(client))
        assert (await victim.answer(page)).status == 403  # sealed for the browser of the attacker
        assert (await Window(site.app).answer(page)).status == 403  # no cookie
        assert (await attacker.answer(page, sec_fetch_site="cross-site")).status == 403
        assert (await attacker.answer(page, origin="https://evil.example")).status == 403
        assert (await attacker.open(f"{ISSUER}/oauth/authorize", {"answer": "allow"})).status == 403

    with_github(attack)


def test_the_form_cannot_be_changed():
    async def attack(site: LoginSite) -> None:
        window = Window(site.app)
        page = await window.open(site.login_url(await site.make_client()))
        sealed = re.findall(r'name="request" value="([^"]+)"', page.text)[0]
        for changed in (sealed[:-1], sealed[:-2] + "AA", "x" + sealed[1:], "", "é" * 10):
            form = {"request": changed, "answer": "allow"}
            assert (await window.open(f"{ISSUER}/oauth/authorize", form)).status == 403

    with_github(attack)


def test_both_of_two_open_pages_work():
    """fastmcp: two loads of the page race, and the second invalidates the first."""

    async def attack(site: LoginSite) -> None:
        window, client = Window(site.app), await site.make_client()
        await window.open(site.login_url(client))
        pages = [await window.open(site.login_url(client)) for _ in range(2)]
        assert [(await window.answer(page)).status for page in pages] == [303, 303]

    with_github(attack)


def test_the_consent_page_cannot_be_framed_and_runs_nothing():
    """Clickjacking. A form-action would stop the redirect to the client in Chromium (fastmcp#2302, #3369)."""

    async def attack(site: LoginSite) -> None:
        window = Window(site.app)
        for page in (
            await window.open(site.login_url(await site.make_client())),
            await window.open(f"{ISSUER}/oauth/callback?state=x"),
        ):
            assert page.headers["x-frame-options"] == "DENY"
            policy = page.headers["content-security-policy"].split("; ")
            assert policy == ["default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"]
            assert page.headers["cache-control"] == "no-store"
            assert page.headers["x-content-type-options"] == "nosniff"
            assert (
                page.headers["referrer-policy"] == "same-origin"
            )  # no URL of ours leaks, and forms have an origin
        assert window.cookies.keys() == {"__Host-toolpost-login"}

    with_github(attack)


def test_the_cookie_is_for_this_server_only():
    async def attack(site: LoginSite) -> None:
        page = await Window(site.app).open(site.login_url(await site.make_client()))
        _, *attributes = page.headers["set-cookie"].split("; ")
        assert {"Path=/", "HttpOnly", "SameSite=Lax", "Secure"} < {*attributes}
        assert not any(each.lower().startswith("domain") for each in attributes)

    with_github(attack)


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "Claude\u202eedulc"]
)
def test_the_name_of_a_client_is_text(name):
    async def attack(site: LoginSite) -> None:
        client = (await site.register(client_name=name)).json["client_id"]
        page = await Window(site.app).open(site.login_url(client))
        assert "<script" not in page.text
        assert "<img" not in page.text
        assert "\u202e" not in page.text

    with_github(attack)


# --------------------------------------------------------------------- redirects


@pytest.mark.requirement("AS-11")
@pytest.mark.parametrize(
    "redirect",
    [
        "http://evil.example/cb",
        "javascript:alert(1)",
        "javascript://x/%0aalert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "vbscript:x",
        "https://good.example@evil.example/cb",
        "http://localhost:80@evil.example/cb",  # punkpeye/fastmcp#346
        "https://good.example\\@evil.example/cb",
        "https://good.example/cb#fragment",
        "https:///cb",
        "/cb",
        "//evil.example/cb",
        "https://good.example/\r\nSet-Cookie: a=b",
        "https://good.example/<script>",
        "myapp:callback",
        "https://[::1/cb",
        "",
        7,
        "https://good.example/" + "x" * 3000,
    ],
)
def test_a_dangerous_redirect_cannot_be_registered(redirect):
    async def attack(site: LoginSite) -> None:
        page = await site.register(redirect)
        assert (page.status, page.json["error"]) == (400, "invalid_redirect_uri")

    with_github(attack)


@pytest.mark.requirement("AS-11")
@pytest.mark.parametrize(
    "redirect",
    [
        "https://evil.example/cb",
        BACK + "/more",
        BACK + "?more=1",
        "http://localhost:3000/callback",
        "http://127.0.0.2:3000/callback",
        "http://127.0.0.1.evil.example:3000/callback",
        "http://127.0.0.1:3000@evil.example/callback",
        "https://127.0.0.1:3000/callback",
        "http://127.0.0.1:3000/callback/../evil",
        "http://127.0.0.1:port/callback",
    ],
)
def test_a_client_has_only_the_redirects_that_it_registered(redirect):
    """workers-oauth-provider: the redirect is checked when the code is redeemed, which is too late."""

    async def attack(site: LoginSite) -> None:
        client = await site.make_client()
        page = await Window(site.app).open(site.login_url(client, redirect_uri=redirect))
        assert (page.status, "location" in page.headers) == (400, False)
        assert "evil" not in page.text

    with_github(attack)


def test_the_operator_can_limit_the_hosts_of_redirects():
    """fastmcp#3037: registration bypasses the list."""

    async def attack(site: LoginSite) -> None:
        assert (await site.register("https://claude.ai/cb")).status == 201
        page = await site.register("https://evil.example/cb")
        assert page.json["error"] == "invalid_redirect_uri"
        url = "https://evil.example/client.json"
        document = {"client_id": url, "client_name": "x", "redirect_uris": ["https://evil.example/cb"]}
        site.upstream.routes[url] = lambda *_: (200, document)
        page = await Window(site.app).open(site.login_url(url, redirect_uri="https://evil.example/cb"))
        assert page.status == 400

    with_github(attack, redirect_hosts=["claude.ai", "127.0.0.1"])


@pytest.mark.parametrize(
    "changes",
    [
        {"response_type": "token"},
        {"code_challenge": None},
        {"code_challenge_method": "plain"},
        {"code_challenge_method": None},
        {"scope": "admin"},
        {"resource": "https://other.example/mcp"},
        {"response_mode": "form_post"},
    ],
    ids=str,
)
def test_a_wrong_request_is_no_open_redirect(changes):
    """RFC 9700 §4.11.2: an attacker registers a client, and links to a request that is refused."""

    async def attack(site: LoginSite) -> None:
        client = await site.make_client("https://evil.example/cb")
        url = site.login_url(client, **{"redirect_uri": "https://evil.example/cb", **changes})
        page = await Window(site.app).open(url)
        assert (page.status, "location" in page.headers) == (400, False)
        assert "Return to evil.example" in page.text  # the user decides

    with_github(attack)


@pytest.mark.parametrize("name", ["client_id", "redirect_uri", "state", "scope", "code_challenge"])
def test_no_parameter_is_repeated(name):
    async def attack(site: LoginSite) -> None:
        url = site.login_url(await site.make_client())
        page = await Window(site.app).open(f"{url}&{name}=https://evil.example/cb")
        assert page.status == 400

    with_github(attack)


def test_the_login_page_of_the_provider_comes_from_its_settings():
    """mcp-remote (CVE-2025-6514): an endpoint in metadata is run as a command or opened as a page."""

    async def main() -> None:
        for url in ("file:///bin/sh", "javascript:alert(1)", "http://evil.example/auth", "$(calc)", ""):
            fake = fake_keycloak()
            fake.pages = {**fake.pages, "authorization_endpoint": url}
            provider = Keycloak("app", "s3cret", url="https://sso.example.com", realm="staff", http=fake)
            async with logging_in(fake, provider) as site:
                window = Window(site.app)
                page = await window.answer(await window.open(site.login_url(await site.make_client())))
                assert (page.status, "location" in page.headers) == (502, False)

    run(main)


# --------------------------------------------------------------------- codes


def test_a_code_is_used_once_and_its_replay_ends_the_login():
    """RFC 6749 §4.1.2: the second may be the client, and the first the thief."""

    async def attack(site: LoginSite) -> None:
        client = await site.make_client()
        code = (await site.log_in(client)).sent["code"]
        tokens = (await site.redeem(client, code)).json
        for _ in range(2):
            page = await site.redeem(client, code)
            assert (page.status, page.json["error"]) == (400, "invalid_grant")
        page = await site.refresh(client, tokens["refresh_token"])
        assert page.json["error"] == "invalid_grant"

    with_github(attack)


def test_a_stolen_or_injected_code_is_useless():
    """Code injection: the code belongs to one client, one redirect, one verifier."""

    async def attack(site: LoginSite) -> None:
        client, other = await site.make_client(), await site.make_client()
        code = (await site.log_in(client)).sent["code"]
        for page in (
            await site.redeem(other, code),
            await site.redeem(client, code, code_verifier="w" * 64),
            await site.redeem(client, code, code_verifier=""),
            await site.redeem(client, code, redirect_uri="https://evil.example/cb"),
            await site.redeem(client, "guess"),
        ):
            assert (page.status, page.json["error"]) == (400, "invalid_grant")
        assert (await site.redeem("unknown", code)).json["error"] == "invalid_client"
        assert (await site.redeem(client, code)).status == 200  # no failed attempt used it up

    with_github(attack)


def test_the_challenge_cannot_be_left_out_at_the_end():
    """PKCE downgrade (RFC 9700 §4.8): a login with a challenge, and a redemption without a verifier."""

    async def attack(site: LoginSite) -> None:
        client = await site.make_client()
        code = (await site.log_in(client)).sent["code"]
        page = await site.token(client, grant_type="authorization_code", code=code)
        assert page.json["error"] == "invalid_grant"

    with_github(attack)


@pytest.mark.parametrize("kind", ["password", "client_credentials", "implicit", ""])
def test_no_other_grant_is_accepted(kind):
    async def attack(site: LoginSite) -> None:
        page = await site.token(await site.make_client(), grant_type=kind, username="a", password="b")
        assert (page.status, page.json["error"]) == (400, "unsupported_grant_type")

    with_github(attack)


# --------------------------------------------------------------------- the callback


def test_the_state_of_a_callback_is_used_once():
    async def attack(site: LoginSite) -> None:
        client, window = await site.make_client(), Window(site.app)
        away = await window.answer(await window.open(site.login_url(client)))
        back = await site.upstream.log_in(away.location)
        assert (await window.open(back)).status == 303
        for url in (back, f"{ISSUER}/oauth/callback?code=x&state=y", f"{ISSUER}/oauth/callback?code=x"):
            assert (await window.open(url)).status == 400

    with_github(attack)


def test_a_code_of_another_login_cannot_be_injected_into_the_callback():
    """The upstream code of the attacker in the login of the victim: the upstream PKCE does not fit."""

    async def attack(site: LoginSite) -> None:
        client, attacker, victim = await site.make_client(), Window(site.app), Window(site.app)
        stolen = await attacker.answer(await attacker.open(site.login_url(client)))
        code = parse_qs(urlsplit(await site.upstream.log_in(stolen.location)).query)["code"][0]
        away = await victim.answer(await victim.open(site.login_url(client)))
        state = parse_qs(urlsplit(away.location).query)["state"][0]
        page = await victim.open(f"{ISSUER}/oauth/callback?{urlencode({'code': code, 'state': state})}")
        assert page.sent["error"] == "access_denied"

    with_github(attack)


@pytest.mark.parametrize("named", [None, "https://evil.example", "https://sso.example.com/realms/other"])
def test_a_response_of_another_issuer_is_refused(named):
    """Mix-up (RFC 9207)."""

    async def attack(site: LoginSite) -> None:
        client, window = await site.make_client(), Window(site.app)
        away = await window.answer(await window.open(site.login_url(client)))
        back = await site.upstream.log_in(away.location)
        wrong = back.partition("&iss=")[0] + ("" if named is None else f"&{urlencode({'iss': named})}")
        assert (await window.open(wrong)).sent["error"] == "access_denied"
        assert not site.upstream.asked("https://sso.example.com/realms/staff/protocol/openid-connect/token")

    with_keycloak(attack)


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": "of another login"},
        {"audience": "another-app"},
        {"azp": "another-app"},
        {"iss": "https://evil.example"},
        {"lifetime": -60},
        {"subject": None},
        {"headers": {"typ": "dpop+jwt"}},
    ],
    ids=str,
)
def test_an_id_token_of_another_login_is_refused(changes):
    async def attack(site: LoginSite) -> None:
        site.upstream.changes = changes
        client, window = await site.make_client(), Window(site.app)
        away = await window.answer(await window.open(site.login_url(client)))
        page = await window.open(await site.upstream.log_in(away.location))
        assert page.status == 502 or page.sent["error"] == "access_denied"

    with_keycloak(attack)


def test_an_id_token_that_is_signed_by_another_key_is_refused():
    async def attack(site: LoginSite) -> None:
        site.upstream.mint = TokenIssuer(site.upstream.issuer, algorithm="RS256")
        known = TokenIssuer(site.upstream.issuer, algorithm="RS256").jwks
        site.upstream.routes[site.upstream.pages["jwks_uri"]] = lambda *_: (200, known)
        client, window = await site.make_client(), Window(site.app)
        away = await window.answer(await window.open(site.login_url(client)))
        page = await window.open(await site.upstream.log_in(away.location))
        assert page.status == 502 or page.sent["error"] == "access_denied"

    with_keycloak(attack)


def test_what_the_provider_says_is_not_repeated():
    """fastmcp#5002: error descriptions of the provider reach clients."""

    async def attack(site: LoginSite) -> None:
        for status, said in (
            (200, {"error": "bad_verification_code", "error_description": "secret details"}),
            (500, {"error": "secret", "error_description": "secret details"}),
            (200, {"access_token": 7}),
            (200, []),
        ):
            site.upstream.failures["https://github.com/login/oauth/access_token"] = status, said
            client, window = await site.make_client(), Window(site.app)
            away = await window.answer(await window.open(site.login_url(client)))
            page = await window.open(await site.upstream.log_in(away.location))
            assert "secret" not in str(page)
            assert page.status in {303, 502}

    with_github(attack)


# --------------------------------------------------------------------- tokens


@pytest.mark.requirement("SEC-2")
def test_only_own_tokens_are_accepted():
    """The guide: token passthrough. CVE-2025-69196: tokens for the base URL and not for the resource."""

    async def attack(site: LoginSite) -> None:
        tokens = await site.obtain(await site.make_client())
        (upstream,) = site.upstream.valid
        other = TokenIssuer(ISSUER).token(RESOURCE, subject="583231", scopes=["read"])
        secret = TokenIssuer("https://evil.example").token(RESOURCE, scopes=["read"])
        for token in (upstream, other, secret, tokens["refresh_token"], tokens["access_token"] + "x"):
            with pytest.raises(AuthError):
                await site.call(token)
        assert (await site.call(tokens["access_token"]))["claims"]["aud"] == RESOURCE

    with_github(attack)


def test_a_token_of_another_server_is_not_accepted():
    """Two servers with the same keys: each has its own issuer and audience."""

    async def main() -> None:
        from toolpost import KeyRing  # noqa: PLC0415 - for this test only

        keys, fake = KeyRing(["k" * 32]), FakeGitHub()
        provider = GitHub("app", "s3cret", http=fake)
        here = logging_in(fake, provider, options={"keys": keys})
        there = logging_in(
            fake,
            provider,
            options={"keys": keys},
            issuer="https://other.example",
            resource="https://other.example/mcp",
        )
        async with here as site, there as other:
            client = await site.make_client()
            tokens = await site.obtain(client)
            headers = {"authorization": f"Bearer {tokens['access_token']}", "host": "mcp.example.com"}
            assert (await ask(other.app, "POST", RESOURCE, headers=headers)).status == 401
            page = await other.refresh(client, tokens["refresh_token"])
            assert page.json["error"] in {"invalid_client", "invalid_grant"}

    run(main)


def test_scopes_do_not_grow():
    """Scope escalation: beyond the known ones, the consent, or the grant."""

    async def attack(site: LoginSite) -> None:
        client = await site.make_client()
        assert (await Window(site.app).open(site.login_url(client, scope="read admin"))).status == 400
        code = (await site.log_in(client)).sent["code"]
        tokens = (await site.redeem(client, code, scope="read write")).json
        assert tokens["scope"] == "read"
        page = await site.refresh(client, tokens["refresh_token"], scope="read write")
        assert page.json["error"] == "invalid_scope"
        page = await site.redeem(
            client, (await site.log_in(client)).sent["code"], resource="https://evil.example"
        )
        assert page.json["error"] == "invalid_target"

    with_github(attack)


def test_a_refresh_token_belongs_to_its_client():
    async def attack(site: LoginSite) -> None:
        client, other = await site.make_client(), await site.make_client()
        tokens = await site.obtain(client)
        page = await site.refresh(other, tokens["refresh_token"])
        assert page.json["error"] == "invalid_grant"
        form = urlencode({"client_id": other, "token": tokens["refresh_token"]})
        assert (await site.post("revoke", form)).status == 200
        assert (await site.refresh(client, tokens["refresh_token"])).status == 200

    with_github(attack)


@pytest.mark.requirement("AS-13")
def test_a_stolen_refresh_token_ends_the_login():
    """RFC 9700 §4.14: of thief and client, the second to refresh presents an old token."""

    async def attack(site: LoginSite) -> None:
        client = await site.make_client()
        stolen = (await site.obtain(client))["refresh_token"]
        second = (await site.refresh(client, stolen)).json["refresh_token"]
        third = (await site.refresh(client, second)).json["refresh_token"]
        page = await site.refresh(client, stolen)
        assert (page.status, page.json["error"]) == (400, "invalid_grant")
        assert (await site.refresh(client, third)).json["error"] == "invalid_grant"  # for both of them

    with_github(attack)


# --------------------------------------------------------------------- clients


@pytest.mark.requirement("AS-8", "AS-9")
@pytest.mark.parametrize(
    ("url", "changes", "status"),
    [
        ("https://desk.example/c.json", {"client_id": "https://other.example/c.json"}, 200),
        ("https://desk.example/c.json", {"client_name": None}, 200),
        ("https://desk.example/c.json", {"redirect_uris": []}, 200),
        ("https://desk.example/c.json", {"redirect_uris": ["javascript:alert(1)"]}, 200),
        ("https://desk.example/c.json", {"redirect_uris": ["https://other.example/cb"]}, 200),
        ("https://desk.example/c.json", {"token_endpoint_auth_method": "private_key_jwt"}, 200),
        ("https://desk.example/c.json", {}, 302),
        ("https://desk.example/c.json", {}, 404),
        ("https://desk.example/", {}, 200),
        ("https://desk.example/a/../c.json", {}, 200),
        ("https://desk.example/c.json#x", {}, 200),
        ("https://ann@desk.example/c.json", {}, 200),
        ("http://desk.example/c.json", {}, 200),
        ("https://127.0.0.1/c.json", {}, 200),
        ("https://10.0.0.1/c.json", {}, 200),
        ("https://169.254.169.254/latest/meta-data", {}, 200),
        ("https://[::ffff:127.0.0.1]/c.json", {}, 200),
        ("https://localhost/c.json", {}, 200),
    ],
)
def test_a_metadata_document_is_checked(url, changes, status):
    """Documents that lie, and server-side request forgery (fastmcp#2871, #3720)."""

    async def attack(site: LoginSite) -> None:
        document = {"client_id": url, "client_name": "Desk", "redirect_uris": [BACK], **changes}
        said = {name: value for name, value in document.items() if value is not None}
        site.upstream.routes[url] = lambda *_: (status, said)
        page = await Window(site.app).open(site.login_url(url))
        assert (page.status, "location" in page.headers) == (400, False)

    with_github(attack)


def test_registration_is_limited():
    async def attack(site: LoginSite) -> None:
        pages = [await site.register() for _ in range(120)]
        assert {page.status for page in pages} == {201, 429}
        assert pages[-1].json["error"] == "temporarily_unavailable"
        assert (await site.post("register", '{"redirect_uris": ' + "[" * 100_000)).status in {400, 413, 429}

    with_github(attack)


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", "null", "{", '{"redirect_uris": "https://a.example/cb"}', "\udcff"]
)
def test_a_malformed_registration_is_refused(body):
    async def attack(site: LoginSite) -> None:
        page = await site.post("register", body.encode("utf-8", "replace").decode())
        assert page.status == 400
        assert page.json["error"] in {"invalid_client_metadata", "invalid_redirect_uri"}

    with_github(attack)


def test_an_unknown_client_is_no_redirect():
    async def attack(site: LoginSite) -> None:
        for client in ("unknown", "", "x" * 5000):
            page = await Window(site.app).open(site.login_url(client, redirect_uri="https://evil.example/cb"))
            assert (page.status, "location" in page.headers) == (400, False)

    with_github(attack)


def test_the_host_of_a_request_changes_nothing():
    """DNS rebinding, and URLs that are built from the `Host` header."""

    async def attack(site: LoginSite) -> None:
        url = site.login_url(await site.make_client())
        page = await ask(site.app, "GET", url, headers={"host": "evil.example"})
        assert page.status == 403
        page = await ask(
            site.app,
            "GET",
            f"{ISSUER}/.well-known/oauth-authorization-server",
            headers={"host": "evil.example"},
        )
        assert "evil" not in page.text

    with_github(attack)


def test_a_long_request_is_refused():
    async def attack(site: LoginSite) -> None:
        client = await site.make_client()
        assert (await Window(site.app).open(site.login_url(client, state="s" * 9000))).status == 400
        assert (await Window(site.app).open(site.login_url(client) + "&a=1" * 100)).status == 400
        assert (await site.post("token", "a=" + "b" * 40_000)).status == 413

    with_github(attack)


def test_a_challenge_has_the_length_of_a_digest():
    async def attack(site: LoginSite) -> None:
        client = await site.make_client()
        for challenge in ("short", make_challenge("v") + "x"):
            page = await Window(site.app).open(site.login_url(client, code_challenge=challenge))
            assert page.status == 400

    with_github(attack)
