"""HTTP+SSE, the transport of the first revision: one stream, and POSTs."""

import msgspec
import pytest

from fleet import fleet
from hosted import call, hosted, kitchen, legacy, message, run
from sse_talk import JSON, READY, talk, talking
from toolpost.server.http import sse_transport
from waiting import until


@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_disconnect_ends_the_session(how):
    async def main():
        async with talking() as (stage, client):
            await client.greet()
            await client.say(message("tools/call", call("wait"), 5))
            await stage.begun.wait()
            await getattr(client.wire, how)()
            await stage.ended.wait()
            assert stage.log == ["cancelled"]
            await until(lambda: not client.site.app._worker.conversations)
            assert (await client.post(message("ping", id=6))).status == 404

    run(main)


def test_a_client_that_sends_more_than_it_reads_is_disconnected(monkeypatch):
    """A client that never reads its stream must not fill our memory."""
    monkeypatch.setattr(sse_transport, "MAX_QUEUED_POSTS", 10)

    async def main():
        async with hosted(kitchen(max_in_flight=5)) as site:
            client = await talk(site)
            await client.greet()
            wire = await site.wire()
            status, number = 202, 0
            while status == 202:
                number += 1
                assert number < 10_000  # some are refused because others are being served
                await wire.ask(
                    "POST", client.endpoint, JSON, message("tools/call", call("big", size=500_000), number)
                )
                status = (await wire.answer()).status
            assert status == 404

    run(main)


def test_a_message_that_reaches_its_worker_twice_is_taken_once():
    """The reply of the store may get lost, so that it is sent again."""

    async def main():
        async with fleet(sse="/sse") as workers:
            a, b = workers
            client = await talk(a.site)
            await client.greet()
            send = workers.store.send

            async def send_twice(worker: int, data: bytes) -> bool:
                return await send(worker, data) and await send(worker, data)

            workers.store.send = send_twice
            for number in range(3):
                posted = await b.ask("POST", client.endpoint, JSON, message("ping", id=number))
                assert posted.status == 202
                assert (await client.hear())["id"] == number
            workers.store.send = send
            assert (await client.ask(message("ping", id="last")))["id"] == "last"

    run(main)


def test_a_message_of_another_version_is_dropped(caplog):
    async def main():
        async with fleet() as workers:
            a, _ = workers
            unknown = msgspec.msgpack.encode(["invented", "about", 1, b"data", 1, "more"])
            for _ in range(3):
                await workers.store.publish(unknown)
            session = await a.open()
            assert (await a.post(legacy(session), message("ping", id=1))).status == 200

    with caplog.at_level("WARNING", "toolpost.http"):
        run(main)
    assert caplog.records
    assert all("another version: 'invented'" in record.getMessage() for record in caplog.records)


def test_a_worker_that_does_not_report_is_unavailable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse_transport, "RECEIPT_TIMEOUT", 0.05)

    async def main():
        async with fleet(sse="/sse") as workers:
            a, b = workers
            client = await talk(a.site)

            async def lose(worker: int, data: bytes) -> bool:
                return True

            send, workers.store.send = workers.store.send, lose
            assert (await b.ask("POST", client.endpoint, JSON, READY)).status == 503
            workers.store.send = send
            assert (await b.ask("POST", client.endpoint, JSON, READY)).status == 202

    run(main)
