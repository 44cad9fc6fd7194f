"""The channel over HTTP+SSE: one stream delivers all messages and the endpoint for POSTs."""

import asyncio
import contextlib

import pytest

from scripted import answer, chunk, event, scripted, stream
from toolpost.channel import Channel
from toolpost.errors import ChannelClosed, ConnectFailed, RequestFailed
from toolpost.transports import sse_client
from toolpost.transports.sse_client import SseChannel, open_sse
from toolpost.transports.targets import Http
from waiting import until


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


class Bus:
    """A server of HTTP+SSE: items that are put into it go out on the stream; None ends the stream."""

    def __init__(self, endpoint=b"/messages?session=1", accepts=None):
        self.out = asyncio.Queue()
        self.posted = []
        self.left = asyncio.Event()
        self.endpoint = endpoint
        self.accepts = accepts or answer(202, b"Accepted", "text/plain")

    async def __call__(self, heard):
        if heard.method == "POST":
            self.posted.append(heard)
            await heard.write(self.accepts)
            return
        assert heard.headers["accept"] == "text/event-stream"
        await heard.write(stream(b": hello\n\n", event(self.endpoint, event="endpoint"), end=False))
        saying = asyncio.create_task(self.say(heard))
        try:
            await heard.gone()
            self.left.set()
        finally:
            saying.cancel()

    async def say(self, heard):
        while (data := await self.out.get()) is not None:
            await heard.write(chunk(data))
        heard.cut()


@contextlib.asynccontextmanager
async def talking(bus, **options):
    async with scripted(bus, "/sse") as server:
        channel = await open_sse(Http(server.url, **options))
        try:
            yield channel, server
        finally:
            await channel.close()


@pytest.mark.requirement("SSE-3")
@pytest.mark.parametrize("library", ["aiohttp", "httpx2"])
def test_messages_are_posted_where_the_server_says_and_come_on_the_stream(library):
    async def main():
        bus = Bus()
        async with talking(bus, http=library, headers={"X-Key": "1"}) as (channel, server):
            assert isinstance(channel, Channel)
            await channel.send(b'{"n":1}')
            await channel.send(b'{"n":2}', related=1)
            assert [(heard.path, heard.body) for heard in bus.posted] == [
                ("/messages?session=1", b'{"n":1}'),
                ("/messages?session=1", b'{"n":2}'),
            ]
            assert all(heard.headers["x-key"] == "1" for heard in server.heard)
            assert bus.posted[0].headers["content-type"] == "application/json"
            for data in (b'{"m":1}', b'{"m":2}'):
                bus.out.put_nowait(event(b"ignored", event="ping") + event(data, event="message"))
                assert await channel.receive() == data
            bus.out.put_nowait(event(b"/elsewhere", event="endpoint") + event(b"{}"))
            assert await channel.receive() == b"{}"
            await channel.send(b"{}")
            assert bus.posted[-1].path == "/messages?session=1"
            await channel.close()
            await bus.left.wait()

    run(main)


def test_the_place_to_post_to_may_be_absolute():
    async def main():
        bus = Bus()
        async with scripted(bus, "/sse") as server:
            bus.endpoint = server.url.replace("/sse", "/there").encode()
            channel = await open_sse(Http(server.url))
            await channel.send(b"{}")
            assert bus.posted[0].path == "/there"
            await channel.close()

    run(main)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (b"http://127.0.0.1:1/messages", "127.0.0.1:1/messages has a different origin"),
        (b"https://evil.example/?key=secret", "evil.example/ has a different origin"),
        (b"/a b", "an invalid character"),
        (b"/" + b"x" * 5000, "too long"),
    ],
)
def test_a_place_elsewhere_is_not_posted_to(place, words):
    async def main():
        async with scripted(Bus(place)) as server:
            with pytest.raises(ConnectFailed, match=words) as failed:
                await open_sse(Http(server.url))
            assert "secret" not in str(failed.value)

    run(main)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (answer(404, kind=None), "404 Not Found"),
        (answer(401, kind=None), "Authorization"),
        (answer(200, b"{}"), "application/json"),
        (stream(event(b"{}")), "ended the stream"),
        (stream(event(b"x" * 1000)), "more than 500 bytes"),
    ],
)
def test_a_server_that_does_not_speak_it_cannot_be_connected_to(response, words):
    async def main():
        async with scripted(lambda heard: heard.write(response)) as server:
            with pytest.raises(ConnectFailed, match=words) as failed:
                await open_sse(Http(server.url, max_answer=500))
            assert not failed.value.sent

    run(main)


def test_a_server_that_is_not_there_cannot_be_connected_to():
    async def main():
        async with scripted(lambda heard: heard.gone()) as server:
            url = server.url
        with pytest.raises(ConnectFailed, match="refused"):
            await open_sse(Http(url))

    run(main)


def test_a_server_that_never_says_where_to_post_is_left(monkeypatch):
    monkeypatch.setattr(sse_client, "ENDPOINT_TIMEOUT", 0.05)

    async def main():
        async def script(heard):
            await heard.write(stream(end=False))
            await heard.gone()

        async with scripted(script) as server:
            with pytest.raises(ConnectFailed, match="no endpoint to post to"):
                await open_sse(Http(server.url))

    run(main)


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_message_that_is_not_accepted_fails_alone(status):
    async def main():
        bus = Bus(accepts=answer(status, b"no", "text/plain"))
        async with talking(bus) as (channel, _):
            with pytest.raises(RequestFailed, match="no") as failed:
                await channel.send(b"{}")
            assert failed.value.status == status
            bus.out.put_nowait(event(b"{}"))
            assert await channel.receive() == b"{}"

    run(main)


def test_the_end_of_the_stream_is_the_end_of_the_channel():
    async def main():
        bus = Bus()
        async with talking(bus) as (channel, _):
            bus.out.put_nowait(event(b"1"))
            bus.out.put_nowait(None)
            assert await channel.receive() == b"1"
            with pytest.raises(ChannelClosed, match=r"cut off|reset"):
                await channel.receive()
            with pytest.raises(ChannelClosed) as refused:
                await channel.send(b"{}")
            assert not refused.value.sent

    run(main)


def test_closing_ends_everything_and_twice_is_fine():
    async def main():
        bus = Bus()
        async with talking(bus) as (channel, server):
            waiting = asyncio.create_task(channel.receive())
            await asyncio.sleep(0)
            await asyncio.gather(channel.close(), channel.close())
            with pytest.raises(ChannelClosed, match="was closed"):
                await waiting
            with pytest.raises(ChannelClosed):
                await channel.send(b"{}")
            await until(lambda: not server.open)

    run(main)


def test_closing_before_the_stream_opens_releases_all_waiters():
    async def main():
        async with scripted(lambda heard: heard.gone()) as server:
            channel = SseChannel(Http(server.url))
            sending = asyncio.create_task(channel.send(b"{}"))
            await asyncio.sleep(0)
            await channel.close()
            with pytest.raises(ChannelClosed):
                await sending

    run(main)


def test_an_opening_that_is_cancelled_leaves_nothing():
    async def main():
        async with scripted(lambda heard: heard.gone()) as server:
            opening = asyncio.create_task(open_sse(Http(server.url)))
            await until(lambda: server.heard)
            opening.cancel()
            await asyncio.wait({opening})
            assert opening.cancelled()
            await until(lambda: not server.open)

    run(main)


def test_a_backend_that_breaks_its_promise_ends_the_channel(caplog):
    class Broken:
        def send(self, method, url, headers, body=None):
            raise ZeroDivisionError("oops")

        async def close(self):
            raise AssertionError("it is not ours")

    async def main():
        with pytest.raises(ConnectFailed, match="ZeroDivisionError"):
            await open_sse(Http("http://127.0.0.1", http=Broken()))

    run(main)
    assert "the stream failed" in caplog.text
