"""Tokens of a login with a provider: refresh, rotation, revocation, and outages of the provider."""

import asyncio
import logging
from typing import Any
from urllib.parse import urlencode

import pytest

from fake_providers import FakeGitHub, fake_google, fake_keycloak
from hosted import run
from login_site import ISSUER, RESOURCE, LoginSite, Window, ask, logging_in
from toolpost import GitHub, Google, Keycloak, KeyRing, MemoryStore
from toolpost.errors import MCPError, ToolError

TOKENS = "https://sso.example.com/realms/staff/protocol/openid-connect/token"
USERINFO = "https://sso.example.com/realms/staff/protocol/openid-connect/userinfo"
REVOKE = "https://sso.example.com/realms/staff/protocol/openid-connect/revoke"


def keycloak(lifetime: int = 3600, **options: Any):
    fake = fake_keycloak(lifetime=lifetime)
    settings = {"url": "https://sso.example.com", "realm": "staff", "http": fake}
    return fake, Keycloak("app", "s3cret", **settings, **options)


def with_login(work, lifetime: int = 3600, **options: Any) -> None:
    """Run a test with a client and its tokens."""

    async def main() -> None:
        fake, provider = keycloak(lifetime, **options)
        async with logging_in(fake, provider) as site:
            client = await site.make_client()
            await work(site, client, await site.obtain(client, scope="read write"))

    run(main)


# --------------------------------------------------------------------- refresh


@pytest.mark.requirement("AS-13")
def test_a_refresh_rotates_the_token():
    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        seen = {tokens["refresh_token"]}
        for _ in range(3):
            page = await site.refresh(client, tokens["refresh_token"])
            tokens = page.json
            assert page.headers["cache-control"] == "no-store"
            assert tokens["scope"] == "read write"
            assert (await site.call(tokens["access_token"]))["scopes"] == ["read", "write"]
            seen.add(tokens["refresh_token"])
        assert len(seen) == 4

    with_login(work)


def test_a_refresh_may_ask_for_fewer_scopes():
    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        fewer = (await site.refresh(client, tokens["refresh_token"], scope="read")).json
        assert fewer["scope"] == "read"
        assert (await site.call(fewer["access_token"]))["scopes"] == ["read"]
        again = (await site.refresh(client, fewer["refresh_token"])).json
        assert again["scope"] == "read write"

    with_login(work)


def test_a_response_to_a_refresh_may_be_lost():
    """fastmcp#4264, #4901: the client sends the same refresh token once more."""

    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        lost = (await site.refresh(client, tokens["refresh_token"])).json
        again = await site.refresh(client, tokens["refresh_token"])
        assert again.status == 200
        for each in (lost, again.json):  # both are the latest
            assert (await site.refresh(client, each["refresh_token"])).status == 200

    with_login(work)


def test_concurrent_refreshes_do_not_end_the_login():
    """Some clients refresh from several places at once."""

    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        pages = await asyncio.gather(*(site.refresh(client, tokens["refresh_token"]) for _ in range(8)))
        assert {page.status for page in pages} == {200}
        # The provider rotates its refresh tokens too, and would end the login at a reuse.
        assert (
            len([form for form in site.upstream.asked(TOKENS) if form["grant_type"] == "refresh_token"]) <= 1
        )
        assert (await site.refresh(client, pages[-1].json["refresh_token"])).status == 200

    with_login(work, lifetime=90)


def test_the_token_of_the_provider_is_renewed_with_ours():
    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        for count in (1, 2, 3):
            tokens = (await site.refresh(client, tokens["refresh_token"])).json
            grants = [form["grant_type"] for form in site.upstream.asked(TOKENS)]
            assert grants.count("refresh_token") == count
        assert len(site.upstream.refresh_tokens) == 1

    with_login(work, lifetime=1)


def test_a_provider_may_keep_its_refresh_token():
    """Google sends none at a refresh."""

    async def main() -> None:
        fake = fake_google(lifetime=1)
        async with logging_in(fake, Google("app", "s3cret", http=fake)) as site:
            client = await site.make_client()
            tokens = await site.obtain(client)
            for _ in range(3):
                tokens = (await site.refresh(client, tokens["refresh_token"])).json
            assert len(fake.asked("https://oauth2.googleapis.com/token")) == 4

    run(main)


def test_a_provider_without_expiry_and_refresh_tokens():
    """fastmcp#2534: the tokens of GitHub never end, and users had to log in every hour."""

    async def main() -> None:
        fake = FakeGitHub()
        async with logging_in(fake, GitHub("app", "s3cret", http=fake)) as site:
            client = await site.make_client()
            tokens = await site.obtain(client)
            for _ in range(3):
                tokens = (await site.refresh(client, tokens["refresh_token"])).json
                assert (await site.call(tokens["access_token"]))["subject"] == "583231"
            fake.valid.clear()  # the user has removed the app from their account
            page = await site.refresh(client, tokens["refresh_token"])
            assert (page.status, page.json["error"]) == (400, "invalid_grant")

    run(main)


def test_calls_do_not_ask_the_provider():
    """fastmcp#3581: the token of the provider is checked at each call, and its end ends the session."""

    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        site.upstream.valid.clear()
        site.upstream.heard.clear()
        for _ in range(3):
            await site.call(tokens["access_token"])
        assert not site.upstream.heard

    with_login(work, lifetime=1)


# --------------------------------------------------------------------- the provider ends a login, or is away


def test_the_provider_can_end_a_login():
    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        site.upstream.refresh_tokens.clear()
        for _ in range(2):
            page = await site.refresh(client, tokens["refresh_token"])
            assert (page.status, page.json["error"]) == (400, "invalid_grant")
            assert "secret" not in page.text

    with_login(work, lifetime=1)


@pytest.mark.parametrize(
    "failure",
    [
        (503, {}),
        (400, {"error": "temporarily_unavailable", "error_description": "secret details"}),
        (401, {"error": "invalid_client"}),  # the operator has to change the secret; users need not log in
        (200, {"no": "token"}),
        (502, []),
    ],
    ids=str,
)
def test_an_outage_of_the_provider_ends_no_login(failure):
    """fastmcp#5002: every failure is invalid_grant, and clients forget their tokens."""

    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        site.upstream.failures[TOKENS] = failure
        page = await site.refresh(client, tokens["refresh_token"])
        assert (page.status, page.json["error"]) == (503, "temporarily_unavailable")
        assert "secret" not in page.text
        del site.upstream.failures[TOKENS]
        assert (await site.refresh(client, tokens["refresh_token"])).status == 200

    with_login(work, lifetime=1)


def test_a_login_goes_on_while_the_user_cannot_be_read():
    async def main() -> None:
        fake = FakeGitHub()
        async with logging_in(fake, GitHub("app", "s3cret", http=fake)) as site:
            client = await site.make_client()
            tokens = await site.obtain(client)
            for failure in ((503, {}), (403, {"message": "rate limit"}), (200, {}), (200, [])):
                fake.failures["https://api.github.com/user"] = failure
                page = await site.refresh(client, tokens["refresh_token"])
                assert page.status == 200
                tokens = page.json

    run(main)


def test_a_token_that_ends_is_not_tried_out():
    """It may be for another API, and the userinfo endpoint of some providers then answers 401."""

    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        site.upstream.failures[USERINFO] = 401, {}
        assert (await site.refresh(client, tokens["refresh_token"])).status == 200
        assert not site.upstream.asked(USERINFO)

    with_login(work, allow=lambda user: user["preferred_username"] == "ann")


def test_another_user_never_takes_over_a_login():
    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        site.upstream.changes = {"subject": "id-of-bob"}
        page = await site.refresh(client, tokens["refresh_token"])
        assert page.json["error"] == "invalid_grant"

    with_login(work, lifetime=1)


def test_a_user_who_may_no_longer_log_in_is_refused_at_the_next_refresh():
    allowed = {"id-of-ann"}

    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        tokens = (await site.refresh(client, tokens["refresh_token"])).json
        allowed.clear()
        page = await site.refresh(client, tokens["refresh_token"])
        assert page.json["error"] == "invalid_grant"

    with_login(work, lifetime=1, allow=lambda user: user["sub"] in allowed)


def test_a_provider_that_is_away_is_a_page_with_a_way_back(caplog):
    async def main() -> None:
        fake, provider = keycloak()
        fake.failures[f"{fake.issuer}/.well-known/openid-configuration"] = 503, {}
        async with logging_in(fake, provider) as site:
            window, client = Window(site.app), await site.make_client()
            page = await window.answer(await window.open(site.login_url(client)))
            assert page.status == 502
            assert "Keycloak could not be asked who you are" in page.text
            assert "Return to 127.0.0.1:3000" in page.text
            fake.failures.clear()
            assert "code" in (await site.log_in(client, window)).sent

    with caplog.at_level(logging.ERROR, "toolpost.auth"):
        run(main)
    assert "could not log a user in with Keycloak" in caplog.text


def test_the_token_of_the_provider_is_gone_with_the_login():
    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        site.upstream.refresh_tokens.clear()
        with pytest.raises(ToolError, match="failed unexpectedly"):
            await site.call(tokens["access_token"], "upstream")

    with_login(work, lifetime=1, expose_token=True)


# --------------------------------------------------------------------- revocation


@pytest.mark.parametrize("kind", ["refresh_token", "access_token"])
def test_a_revoked_login_is_over_here_and_at_the_provider(kind):
    """fastmcp#5120: the provider gets our token instead of its own."""

    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        (upstream,) = site.upstream.refresh_tokens
        form = urlencode({"client_id": client, "token": tokens[kind], "token_type_hint": kind})
        page = await site.post("revoke", form)
        assert page.status == 200
        assert site.upstream.revoked == [upstream]
        page = await site.refresh(client, tokens["refresh_token"])
        assert page.json["error"] == "invalid_grant"
        assert (await site.post("revoke", form)).status == 200  # it is not there any more, which is as good

    with_login(work)


def test_an_unknown_token_is_as_good_as_revoked():
    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        for token in ("", "unknown", "a.b.c", tokens["access_token"] + "x"):
            assert (await site.post("revoke", urlencode({"client_id": client, "token": token}))).status == 200
        assert (await site.post("revoke", urlencode({"client_id": "x", "token": "y"}))).status == 401
        assert (await site.refresh(client, tokens["refresh_token"])).status == 200

    with_login(work)


def test_a_login_is_revoked_even_if_the_provider_is_away():
    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        site.upstream.failures[REVOKE] = 503, {}
        form = urlencode({"client_id": client, "token": tokens["refresh_token"]})
        assert (await site.post("revoke", form)).status == 200
        page = await site.refresh(client, tokens["refresh_token"])
        assert page.json["error"] == "invalid_grant"

    with_login(work)


# --------------------------------------------------------------------- the store


class WatchedStore(MemoryStore):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        records, written = self.records, self.written
        put, swap = records.put, records.swap

        async def watched_put(key, value, ttl):
            written.append(key.encode() + value)
            await put(key, value, ttl)

        async def watched_swap(key, old, new, ttl):
            written.append(key.encode() + (new or b""))
            return await swap(key, old, new, ttl)

        records.put, records.swap = watched_put, watched_swap  # pyright: ignore[reportAttributeAccessIssue] - a spy


def test_the_store_sees_no_secret():
    async def main() -> None:
        store = WatchedStore()
        fake, provider = keycloak()
        keys = KeyRing(["k" * 32])
        async with logging_in(fake, provider, options={"store": store, "keys": keys}) as site:
            client = await site.make_client()
            back = await site.log_in(client)
            tokens = (await site.redeem(client, back.sent["code"])).json
            await site.refresh(client, tokens["refresh_token"])
            everything = b" ".join(store.written)
            secrets = [*fake.valid, *fake.refresh_tokens, back.sent["code"], tokens["refresh_token"]]
            secrets += ["s3cret", "id-of-ann", "Desk", client]
            assert len(store.written) >= 5
            assert not [secret for secret in secrets if secret.encode() in everything]

    run(main)


def test_keys_that_do_not_encrypt_are_refused(caplog):
    async def main() -> None:
        fake, provider = keycloak()
        keys = KeyRing(["k" * 32], encrypt=False)
        async with logging_in(fake, provider, options={"keys": keys}) as site:
            assert (await site.register()).status == 500

    run(main)
    assert "needs keys that encrypt" in caplog.text


def test_logins_survive_a_restart_with_the_same_store_and_keys():
    async def main() -> None:
        fake, provider = keycloak()
        options = {"store": MemoryStore(), "keys": KeyRing(["k" * 32])}
        async with logging_in(fake, provider, options=options) as site:
            client = await site.make_client()
            tokens = await site.obtain(client)
        rotated = {**options, "keys": KeyRing(["n" * 32, "k" * 32])}
        async with logging_in(fake, provider, options=rotated) as site:
            assert (await site.call(tokens["access_token"]))["subject"] == "id-of-ann"
            assert (await site.refresh(client, tokens["refresh_token"])).status == 200

    run(main)


def test_other_origins_may_use_the_token_endpoint():
    """Clients in browsers; no cookie counts there."""

    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        for endpoint in ("token", "register", "revoke"):
            page = await ask(
                site.app, "OPTIONS", f"{ISSUER}/oauth/{endpoint}", headers={"origin": "https://web.example"}
            )
            assert (page.status, page.headers["access-control-allow-origin"]) == (204, "*")
        page = await ask(
            site.app, "OPTIONS", f"{ISSUER}/oauth/authorize", headers={"origin": "https://web.example"}
        )
        assert "access-control-allow-origin" not in page.headers

    with_login(work)


def test_a_token_names_this_server_and_no_more_of_the_user_than_was_chosen():
    async def work(site: LoginSite, client: str, tokens: dict[str, Any]) -> None:
        claims = (await site.call(tokens["access_token"]))["claims"]
        assert claims.keys() == {
            *("iss", "aud", "sub", "client_id", "scope", "sid", "jti", "iat", "exp", "preferred_username")
        }
        assert (claims["iss"], claims["aud"], claims["client_id"]) == (ISSUER, RESOURCE, client)
        assert claims["exp"] - claims["iat"] == tokens["expires_in"] <= 900

    with_login(work)


def test_a_failing_function_of_the_author_is_an_error(caplog):
    def allow(user):
        raise MCPError("the directory is away")

    async def main() -> None:
        fake, provider = keycloak(allow=allow)
        async with logging_in(fake, provider) as site:
            window, client = Window(site.app), await site.make_client()
            away = await window.answer(await window.open(site.login_url(client)))
            page = await window.open(await fake.log_in(away.location))
            assert (page.status, "location" in page.headers) == (502, False)

    run(main)
    assert "the directory is away" in caplog.text
