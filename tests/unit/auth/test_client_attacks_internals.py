"""Attacks of servers on a client that logs in. The client rejects each of them before it does harm."""

import asyncio

import pytest

from toolpost import AuthError
from toolpost.auth import urls
from toolpost.auth.urls import NetworkZone, UrlPolicy

# --------------------------------------------------------------------- SSRF

PUBLIC = "https://93.184.216.34/mcp"

TARGETS = [
    "https://169.254.169.254/latest/meta-data",
    "https://10.0.0.1/x",
    "https://192.168.1.1/x",
    "https://172.16.0.1",
    "https://100.64.0.1",
    "https://127.0.0.1/x",
    "https://[::1]/x",
    "https://[::ffff:10.0.0.1]/",
    "https://[64:ff9b::a00:1]/",
    "https://[2002:a00:1::]/",
    "https://[fe80::1]/",
    "https://[fd00::1]/",
    "https://0.0.0.0/",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://localhost/",
    "https://224.0.0.1/",
]


@pytest.mark.requirement("SEC-3", "SEC-4")
@pytest.mark.parametrize("target", TARGETS)
def test_a_public_server_does_not_send_us_into_private_networks(target):
    async def look() -> None:
        with pytest.raises(AuthError, match="a private network that the server is not in"):
            await UrlPolicy(PUBLIC).check(target, "the metadata")
        await UrlPolicy(PUBLIC, allow_private=True).check(target, "the metadata")

    asyncio.run(look())


@pytest.mark.requirement("SEC-3")
def test_one_may_be_sent_outwards_but_never_to_where_secrets_of_clouds_are():
    async def look() -> None:
        private, local = UrlPolicy("https://10.1.1.1/mcp"), UrlPolicy("http://127.0.0.1:8000/mcp")
        for inside in (private, local):
            await inside.check("https://93.184.216.34/", "x")
            await inside.check("https://192.168.1.1/", "x")
            with pytest.raises(AuthError):
                await inside.check("https://169.254.169.254/", "x")
        await local.check("http://localhost:1/", "x")
        with pytest.raises(AuthError):
            await private.check("http://127.0.0.1/", "x")

    asyncio.run(look())


def test_a_name_that_cannot_be_looked_up_is_left_to_the_proxy():
    async def look() -> None:
        assert await urls._resolve_zones(urls.parse_http_url("https://no-such-host.invalid/", "x")) == set()
        assert await urls._resolve_zones(urls.parse_http_url("https://x.localhost/", "x")) == {
            NetworkZone.LOOPBACK
        }
        await UrlPolicy(PUBLIC).check("https://no-such-host.invalid/", "x")

    asyncio.run(look())
