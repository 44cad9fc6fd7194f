"""Sessions, streams, request states and `ctx.state` belong to their principal; no other can use them."""

from typing import Any

import pytest

from hosted import OLD, modern, run
from protected_server import RESOURCE, bearer, guarded
from toolpost.server.http import worker
from toolpost.testing import TokenIssuer

EVENTS = {"Accept": "text/event-stream", "MCP-Protocol-Version": OLD}


def token(mint: TokenIssuer, subject: str = "alice", **more: Any) -> dict[str, str]:
    made: dict[str, Any] = {"scopes": ["read"], "subject": subject, **more}
    return bearer(mint.token(RESOURCE, **made))


# --------------------------------------------------------------------- streams and the end of a token


@pytest.mark.requirement("SEC-5")
def test_a_stream_of_news_ends_with_its_token_and_goes_on_with_another(monkeypatch):
    monkeypatch.setattr(worker, "MIN_STREAM_LIFETIME", 0.0)

    async def main() -> None:
        async with guarded() as (site, mint, _):
            session = await site.open(headers=token(mint))
            asked = {**EVENTS, "Mcp-Session-Id": session}
            wire, head = await site.begin("GET", {**asked, **token(mint, lifetime=-10)})
            assert head.status == 200
            *_, last = await wire.events()  # it ends
            again, head = await site.begin("GET", {**asked, **token(mint), "Last-Event-ID": last.id})
            assert head.status == 200
            await again.close()

    run(main)


@pytest.mark.requirement("SEC-5")
def test_a_subscription_ends_with_its_token(monkeypatch):
    monkeypatch.setattr(worker, "MIN_STREAM_LIFETIME", 0.0)

    async def main() -> None:
        async with guarded() as (site, mint, server):
            headers, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            wire, _ = await site.begin("POST", {**headers, **token(mint, lifetime=-10)}, body)
            assert [event.json["method"] for event in await wire.events()] in (
                ["notifications/subscriptions/acknowledged"],
                [],
            )
            wire, _ = await site.begin("POST", {**headers, **token(mint)}, body)
            await wire.event()
            server.tool(name="new")(lambda: "new")
            assert (await wire.event()).json["method"] == "notifications/tools/list_changed"

    run(main)
