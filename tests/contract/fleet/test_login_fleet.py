"""A login with a provider on two workers that share a Redis: each step happens on the other worker."""

import asyncio
from typing import Any

import pytest

from fake_providers import FakeOidc, fake_keycloak
from hosted import run
from login_site import LoginSite, Window, logging_in
from redis_servers import PROGRAMS, redis_server
from toolpost import Keycloak


@pytest.fixture(scope="module", params=PROGRAMS)
def url(request, tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis"), request.param) as server:
        yield server.url


class Alternating:
    """Sends each request to another worker."""

    def __init__(self, *apps: Any) -> None:
        self._apps = apps
        self._count = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._count += 1
        await self._apps[self._count % len(self._apps)](scope, receive, send)


def on_two_workers(url: str, work, **options: Any) -> None:
    async def main() -> None:
        fake = fake_keycloak(**options)
        settings: dict[str, Any] = {"url": "https://sso.example.com", "realm": "staff", "http": fake}
        provider = Keycloak("app", "s3cret", expose_token=True, **settings)
        store = {"store": url}
        async with (
            logging_in(fake, provider, options=store) as one,
            logging_in(fake, provider, options=store) as two,
        ):
            await work(LoginSite(Alternating(one.app, two.app), fake), fake)

    run(main)


def test_each_step_of_a_login_may_happen_on_another_worker(url):
    async def work(site: LoginSite, fake: FakeOidc) -> None:
        for _ in range(2):
            client = await site.make_client()
            tokens = await site.obtain(client)
            for _ in range(3):
                assert (await site.call(tokens["access_token"]))["subject"] == "id-of-ann"
                tokens = (await site.refresh(client, tokens["refresh_token"])).json

    on_two_workers(url, work)


def test_codes_and_states_are_used_once_on_all_workers(url):
    async def work(site: LoginSite, fake: FakeOidc) -> None:
        client, window = await site.make_client(), Window(site.app)
        away = await window.answer(await window.open(site.login_url(client)))
        back = await fake.log_in(away.location)
        pages = await asyncio.gather(*(window.open(back) for _ in range(6)))
        assert sorted(page.status for page in pages) == [303, *[400] * 5]
        code = next(page for page in pages if page.status == 303).sent["code"]
        redeemed = await asyncio.gather(*(site.redeem(client, code) for _ in range(6)))
        assert [page.status for page in redeemed].count(200) <= 1
        first = next((page.json for page in redeemed if page.status == 200), None)
        if first is not None:  # the login has ended, because a code was used twice
            page = await site.refresh(client, first["refresh_token"])
            assert page.json["error"] == "invalid_grant"

    on_two_workers(url, work)


def test_one_worker_renews_the_token_of_the_provider(url):
    """The provider rotates its refresh tokens: two workers that renew at once would end the login."""

    async def work(site: LoginSite, fake: FakeOidc) -> None:
        client = await site.make_client()
        tokens = await site.obtain(client)
        fake.lifetime = 3600
        pages = await asyncio.gather(
            *(site.refresh(client, tokens["refresh_token"]) for _ in range(6)),
            *(site.call(tokens["access_token"], "upstream") for _ in range(6)),
        )
        assert {page.status for page in pages[:6]} == {200}
        assert len({*pages[6:]}) == 1
        assert len(fake.refresh_tokens) == 1

    on_two_workers(url, work, lifetime=1)


def test_a_replayed_refresh_token_is_noticed_on_every_worker(url):
    async def work(site: LoginSite, fake: FakeOidc) -> None:
        client = await site.make_client()
        first = (await site.obtain(client))["refresh_token"]
        second = (await site.refresh(client, first)).json["refresh_token"]
        third = (await site.refresh(client, second)).json["refresh_token"]
        for token in (first, third):
            assert (await site.refresh(client, token)).json["error"] == "invalid_grant"

    on_two_workers(url, work)
