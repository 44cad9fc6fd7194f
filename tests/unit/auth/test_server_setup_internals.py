"""Set-up of a protected server: invalid settings are reported at once or in the log, by name."""

import asyncio
import json
from typing import Any

import pytest

from dpop_holder import Holder
from hosted import modern, run
from protected_server import RESOURCE, guarded, kitchen
from toolpost import Auth
from toolpost.auth.server import dpop as proving
from toolpost.auth.urls import RESOURCE_METADATA_PATH

ISSUER = "https://login.example.com"


@pytest.mark.parametrize(
    ("web", "resource", "places"),
    [
        ({}, RESOURCE, {"/mcp", "/sse", ""}),
        ({}, "https://a.example/x/mcp", {"/mcp", "/sse", "", "/x/mcp", "/x/sse"}),
        ({"sse": None}, RESOURCE, {"/mcp", ""}),
        ({"sse": "/mcp"}, RESOURCE, {"/mcp", ""}),
        ({"stateless": True}, RESOURCE, {"/mcp", ""}),
        ({"sse": "/old/", "messages": "/m"}, RESOURCE, {"/mcp", "/old", ""}),
        # The other one is below the resource, or its name is unknown.
        ({"path": "/"}, "https://a.example", {""}),
        ({}, "https://a.example/other", {"/mcp", "/other", ""}),
    ],
)
def test_the_published_paths(web, resource, places):
    app: Any = kitchen(Auth(ISSUER, resource=resource, verifier=lambda _: "ann")).asgi(**web)
    published = app._authenticator.metadata_documents
    assert set(published) == {f"{RESOURCE_METADATA_PATH}{place}" for place in places}
    named = {place: json.loads(document)["resource"] for place, document in published.items()}
    assert named[RESOURCE_METADATA_PATH] == resource
    assert named.get(f"{RESOURCE_METADATA_PATH}/sse") in {None, resource.replace("/mcp", "/sse")}


# --------------------------------------------------------------------- proofs


def test_only_so_many_proofs_are_remembered_and_none_is_forgotten_for_another(monkeypatch):
    monkeypatch.setattr(proving, "MAX_PROOFS", 5)
    monkeypatch.setattr(proving, "MAX_PROOFS_PER_PRINCIPAL", 3)

    async def main() -> None:
        async with guarded() as (site, mint, _):
            headers, body = modern("tools/list")
            ann, bob = Holder(mint, subject="ann"), Holder(mint, subject="bob")
            other = Holder(mint, subject="ann")  # keys cost nothing: hers count together
            first = ann.sent()
            sent = [
                first,
                first,
                ann.sent(),
                other.sent(),
                other.sent(),
                bob.sent(),
                bob.sent(),
                bob.sent(),
                first,
            ]
            answers = [await site.post({**headers, **each}, body) for each in sent]
            # A proof that is shown again takes no room.
            assert [answer.status for answer in answers] == [200, 401, 200, 200, 503, 200, 200, 503, 503]
            assert answers[4].headers["retry-after"] == "5"
            clock = proving.monotonic
            monkeypatch.setattr(
                proving, "monotonic", lambda: clock() + proving.PROOF_LIFETIME + proving.MAX_CLOCK_SKEW
            )
            assert (await site.post({**headers, **ann.sent()}, body)).status == 200

    run(main)


def test_workers_share_the_keys_that_were_made_before_they_part():
    server = kitchen(None)
    server.prepare()

    async def main() -> None:
        assert await server.request_states.get_keys() is server._state_keys

    asyncio.run(main())
