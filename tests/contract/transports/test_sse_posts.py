"""POSTs of HTTP+SSE: their headers, and missing conversations."""

import asyncio

import pytest

from fleet import fleet
from hosted import hosted, message, run
from session_site import tool
from sse_talk import JSON, READY, talk
from toolpost import Context, Server

SECRETS = {"Authorization": "Bearer secret-a", "DPoP": "secret-b", "Proxy-Authorization": "secret-c"}


def adds_headers(server: Server, stage: object = None) -> None:
    go = asyncio.Event()

    @server.tool
    async def release() -> str:
        go.set()
        return "done"

    @server.tool
    async def headers(ctx: Context) -> str:
        await go.wait()
        names = ("authorization", "dpop", "proxy-authorization", "x-tag")
        return " ".join(f"{name}={ctx.request.headers.get(name)}" for name in names)


def test_a_running_call_keeps_its_headers_when_its_id_is_used_again():
    async def main():
        server = Server("tags")
        adds_headers(server)
        async with hosted(server) as site:
            client = await talk(site)
            await client.greet()
            posted = await client.post(tool("headers", 5), {**JSON, "X-Tag": "first"})
            assert posted.status == 202
            for request in (message("ping", id=5), message("no/such", id=5)):
                posted = await client.post(request, {**JSON, "X-Tag": "second"})
                assert posted.status == 202
                assert (await client.hear())["error"]["code"] in (-32600, -32601)
            await client.say(tool("release", 6))
            said = {(each := await client.hear())["id"]: each for _ in range(2)}
            assert said[5]["result"]["content"][0]["text"].endswith("x-tag=first")

    run(main)


@pytest.mark.requirement("SSE-10")
def test_credentials_do_not_travel_through_the_store():
    async def main():
        async with fleet(more=adds_headers, sse="/sse") as workers:
            a, b = workers
            sent: list[bytes] = []
            send = workers.store.send

            async def record(worker: int, data: bytes) -> bool:
                sent.append(data)
                return await send(worker, data)

            workers.store.send = record
            client = await talk(a.site)
            await client.greet()
            assert (await b.ask("POST", client.endpoint, JSON, tool("release", 1))).status == 202
            await client.hear()
            for worker, known in (
                (a, "Bearer secret-a dpop=secret-b proxy-authorization=secret-c"),
                (b, "None"),
            ):
                headers = {**JSON, **SECRETS, "X-Tag": "tag"}
                assert (await worker.ask("POST", client.endpoint, headers, tool("headers", 2))).status == 202
                text = (await client.hear())["result"]["content"][0]["text"]
                assert text.startswith(f"authorization={known}")
                assert text.endswith("x-tag=tag")
            assert any(b"x-tag" in data for data in sent)
            assert not any(b"secret" in data for data in sent)

    run(main)


def test_a_post_to_a_conversation_that_a_live_worker_no_longer_has_is_refused():
    async def main():
        async with fleet(sse="/sse") as (a, b):
            client = await talk(a.site)
            await client.greet()
            assert (await b.ask("POST", client.endpoint, JSON, READY)).status == 202
            await client.wire.close()
            await until_refused(a, client.endpoint)
            assert (await b.ask("POST", client.endpoint, JSON, message("ping", id=1))).status == 404

    async def until_refused(worker, endpoint):
        while (await worker.ask("POST", endpoint, JSON, message("ping", id=1))).status == 202:
            pass

    run(main)


def test_a_post_of_another_principal_is_refused_at_any_worker():
    def principal(scope):
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    async def main():
        async with fleet(sse="/sse", principal=principal) as (a, b):
            wire, _ = await a.begin("GET", {"Accept": "text/event-stream", "X-User": "ann"}, target="/sse")
            endpoint = (await wire.event()).data
            for user, status in (("bob", 404), ("ann", 202)):
                posted = await b.ask("POST", endpoint, {**JSON, "X-User": user}, READY)
                assert posted.status == status

    run(main)
