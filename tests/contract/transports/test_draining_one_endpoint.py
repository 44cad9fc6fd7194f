"""Two endpoints of one server: one that stops does not end the subscriptions of the other."""

import pytest

from hosted import hosted, kitchen, modern, run, serving

LISTEN = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})


@pytest.mark.requirement("SUB-1")
def test_a_subscription_goes_on_when_another_endpoint_stops():
    async def main():
        server = kitchen()
        async with hosted(server) as first:
            staying, _ = await first.begin("POST", *LISTEN)
            assert (await staying.event()).json["method"] == "notifications/subscriptions/acknowledged"
            app = server.asgi()
            async with serving(app) as second:
                leaving, _ = await second.begin("POST", *LISTEN)
                await leaving.event()
                await app.drain()
                assert "result" in (await leaving.event()).json  # it ends with its result
            server.tools.remove("echo")
            assert (await staying.event()).json["method"] == "notifications/tools/list_changed"

    run(main)
