"""The example of a login with GitHub works, with a GitHub in memory."""

import asyncio
import runpy

import pytest
from example_sessions import EXAMPLES

from fake_providers import FakeGitHub
from hosted import run
from login_site import ISSUER, RESOURCE, LoginSite
from toolpost import Client, TransportError


@pytest.mark.parametrize(("user", "scope"), [("ann", "notes:read notes:write"), ("bob", "notes:read")])
def test_users_log_in_with_github(user, scope):
    async def main() -> None:
        example = runpy.run_path(str(EXAMPLES / "github_login.py"))
        fake = example["provider"].http = FakeGitHub()
        fake.client_id = fake.client_secret = "missing"
        fake.user = user
        app = example["server"].asgi(public_url=ISSUER)
        async with asyncio.timeout(20), app.lifespan():
            site = LoginSite(app, fake)
            tokens = await site.obtain(await site.make_client(), scope="notes:read notes:write")
            assert tokens["scope"] == scope
            headers = {"Authorization": f"Bearer {tokens['access_token']}"}
            async with Client(RESOURCE, http=app, headers=headers) as mcp:
                assert (await mcp.call_tool("whoami")).text == user
                if user == "ann":
                    assert (await mcp.call_tool("write_note", {"text": "Milk"})).data == 1
                else:
                    with pytest.raises(TransportError, match="required: notes:write"):
                        await mcp.call_tool("write_note", {"text": "Milk"})

    run(main)
