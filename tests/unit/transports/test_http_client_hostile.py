"""The HTTP client and servers that respond wrongly, late, twice or never."""

import asyncio
import contextlib
import json
from collections.abc import Iterator

import pytest

from scripted import answer, chunk, event, scripted, stream
from toolpost.client.client import Client
from toolpost.client.connection.negotiate import REVISION_CACHE
from toolpost.errors import ConnectFailed, RequestFailed, SessionLost, UnsupportedRevision
from toolpost.protocol import headers
from toolpost.protocol.revisions import LATEST, LATEST_SESSION
from toolpost.transports import http_client
from toolpost.transports import http_request as trails
from toolpost.transports.backends.backend import open_backend
from toolpost.transports.http_client import HttpChannel
from toolpost.transports.http_request import ResumableStream
from toolpost.transports.sse_client import open_sse
from toolpost.transports.targets import Http
from toolpost.types.initialize import PROTOCOL_VERSION
from waiting import until

LIBRARIES = ["aiohttp", "httpx2"]
START = b'{"jsonrpc":"2.0","id":7,"result":'
WHOLE = START + b"{}}"
WELCOME = {
    "protocolVersion": LATEST_SESSION.date,
    "capabilities": {"tools": {}, "resources": {"subscribe": True}},
    "serverInfo": {"name": "s", "version": "1"},
}
DISCOVERED = {"supportedVersions": [LATEST.date], "capabilities": {"tools": {}}, "resultType": "complete"}
CALLED = {"content": [{"type": "text", "text": "ok"}], "resultType": "complete"}
TAKEN = answer(202, kind=None)


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    REVISION_CACHE.clear()
    yield
    REVISION_CACHE.clear()


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


def reply(key, result):
    return json.dumps({"jsonrpc": "2.0", "id": key, "result": result}).encode()


def refusal(key, code):
    return json.dumps({"jsonrpc": "2.0", "id": key, "error": {"code": code, "message": "no"}}).encode()


def request(key: object = 7, method="tools/list", *, marked=False):
    params = {"_meta": {PROTOCOL_VERSION: LATEST.date}} if marked else {}
    return json.dumps({"jsonrpc": "2.0", "id": key, "method": method, "params": params}).encode()


NOTICE = b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}'


def legacy(script=None, get=None):
    """A server of the session era; the script answers what it likes and returns True for that."""

    async def serve(heard):
        message = json.loads(heard.body) if heard.body else {}
        method = message.get("method")
        if heard.method == "GET":
            await (heard.write(answer(405, kind=None)) if get is None else get(heard))
        elif heard.method == "DELETE":
            await heard.write(answer(kind=None))
        elif script is not None and await script(heard, message):
            pass
        elif method == "server/discover":
            await heard.write(answer(400, kind=None))
        elif method == "initialize":
            await heard.write(answer(body=reply(message["id"], WELCOME), Mcp_Session_Id="s-1"))
        elif method is None or "id" not in message:
            await heard.write(TAKEN)
        else:
            await heard.write(answer(body=reply(message["id"], CALLED if method == "tools/call" else {})))

    return serve


@contextlib.asynccontextmanager
async def talking(script, *, session=False, **options):
    """A channel to a server, maybe with a session, and the requests that it reports as lost."""
    async with scripted(script) as server:
        channel = HttpChannel(Http(server.url, **options))
        lost = asyncio.Queue()
        channel.on_request_lost(lambda key, error: lost.put_nowait((key, error)))
        try:
            if session:
                await channel.send(request(0, "initialize"))
                await channel.receive()
            yield channel, server, lost
        finally:
            await channel.close()


# --------------------------------------------------------------------- answers that are none


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("kind", ["body", "stream"])
@pytest.mark.parametrize(
    "data",
    [START + b'{"content":[', WHOLE + b"rest", START + b'{},"id":8}', b"[" + WHOLE + b"]"],
    ids=["cut", "more", "another id", "batch"],
)
def test_an_unreadable_response_is_not_awaited(data, kind, marked):
    async def main():
        response = answer(body=data) if kind == "body" else stream(event(data))
        async with talking(lambda heard: heard.write(response)) as (channel, _, lost):
            await channel.send(request(marked=marked))
            key, error = await lost.get()
            assert key == 7
            assert isinstance(error, RequestFailed)

    run(main)


@pytest.mark.requirement("VER-7")
def test_a_server_that_refuses_the_revision_of_a_session_has_forgotten_it():
    async def main():
        async def script(heard, message):
            if message["method"] == "tools/list":
                body = refusal(message["id"], UnsupportedRevision.code)
                await heard.write(answer(400, body))
                return True
            return False

        async with talking(legacy(script), session=True) as (channel, _, lost):
            await channel.send(request())
            key, error = await lost.get()
            assert (key, error.sent) == (7, False)
            assert isinstance(error, SessionLost)

    run(main)


@pytest.mark.requirement("VER-7")
def test_a_client_goes_on_when_a_server_of_sessions_has_become_a_stateless_one():
    async def main():
        async def script(heard, message):
            if not modern:
                return False
            if headers.SESSION in heard.headers or message["method"] == "initialize":
                await heard.write(answer(400, refusal(message["id"], UnsupportedRevision.code)))
            else:
                result = DISCOVERED if message["method"] == "server/discover" else CALLED
                await heard.write(answer(body=reply(message["id"], result)))
            return True

        modern = False
        async with scripted(legacy(script)) as server, Client(server.url) as client:
            await client.call_tool("t")
            assert client.era == "session"
            modern = True
            await client.call_tool("t")
            assert client.era == "stateless"

    run(main)


# --------------------------------------------------------------------- what has no answer


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("ends", [True, False])
def test_what_comes_behind_an_acceptance_does_not_matter(library, ends, monkeypatch):
    async def main():
        async def script(heard, message):
            if message.get("method") != "notifications/roots/list_changed":
                return False
            await heard.write(b"HTTP/1.1 202 X\r\nContent-Length: 5\r\n\r\nab")
            await (asyncio.sleep(0) if ends else heard.gone())
            heard.cut()
            return True

        if not ends:
            monkeypatch.setattr("toolpost.transports.http_sender.QUOTE_TIMEOUT", 0.01)
        async with talking(legacy(script), session=True, http=library) as (channel, _, __):
            await channel.send(NOTICE)

    run(main)


def test_a_server_that_does_not_take_a_message_is_not_waited_for_for_ever(monkeypatch):
    async def main():
        async def script(heard, message):
            if message.get("method") == "notifications/roots/list_changed":
                await heard.gone()
                return True
            return False

        monkeypatch.setattr(http_client, "ACCEPT_TIMEOUT", 0.01)
        async with talking(legacy(script), session=True) as (channel, _, __):
            with pytest.raises(RequestFailed, match="did not accept a message within"):
                await channel.send(NOTICE)

    run(main)


@pytest.mark.requirement("HTTPL-10")
def test_a_cancellation_waits_for_no_other():
    async def main():
        asked, left = [], []

        async def script(heard, message):
            if message.get("method") == "notifications/cancelled":
                left.append(message["params"]["requestId"])
                await heard.gone()
                return True
            if message.get("method") == "tools/call":
                asked.append(message["id"])
                await heard.write(stream(b": wait\n\n", end=False))
                await heard.gone()
                return True
            return False

        async with scripted(legacy(script)) as server, Client(server.url) as client:
            calls = [asyncio.create_task(client.call_tool("t")) for _ in range(3)]
            await until(lambda: len(asked) == 3)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            await until(lambda: sorted(left) == sorted(asked))

    run(main)


def test_answers_are_posted_a_few_at_a_time(monkeypatch):
    async def main():
        go, under_way, most = asyncio.Event(), 0, 0

        async def script(heard, message):
            nonlocal under_way, most
            if "method" in message:
                return False
            under_way += 1
            most = max(most, under_way)
            await go.wait()
            under_way -= 1
            await heard.write(TAKEN)
            return True

        monkeypatch.setattr(http_client, "MAX_CONCURRENT_ANSWERS", 2)
        async with talking(legacy(script), session=True) as (channel, server, _):
            posts = [asyncio.create_task(channel.send(reply(f"q{n}", {}))) for n in range(5)]
            await until(lambda: under_way == 2)
            go.set()
            await asyncio.gather(*posts)
            assert most == 2
            assert len(server.heard) == 1 + 5

    run(main)


# --------------------------------------------------------------------- streams


@pytest.mark.requirement("HTTPL-6")
def test_a_server_that_wants_no_pause_and_says_nothing_is_not_asked_all_the_time(monkeypatch):
    async def main():
        waits = []

        async def sleep(seconds):
            waits.append(seconds)

        async def body(*parts):
            for part in parts:
                yield part

        async def take(_):
            pass

        trail = ResumableStream(take, 1000)
        with monkeypatch.context() as patch:
            patch.setattr(trails.asyncio, "sleep", sleep)
            patch.setattr(trails, "RETRY_JITTER", 0)
            for _ in range(9):
                await trail.follow(body(b"retry: 0\nid: 1\ndata:\n\n"))
                await trail.wait_before_reconnect()
            await trail.follow(body(event(b"{}")))
            await trail.wait_before_reconnect()
        assert set(waits) == {trails.MIN_RETRY_DELAY}

    run(main)


@pytest.mark.parametrize("status", [408, 425, 429])
def test_a_stream_that_is_refused_for_the_moment_is_asked_for_again(status, monkeypatch):
    async def main():
        refusals = [answer(status, kind=None)]

        async def get(heard):
            if refusals:
                await heard.write(refusals.pop())
            else:
                await heard.write(stream(event(NOTICE), end=False))
                await heard.gone()

        monkeypatch.setattr(trails, "DEFAULT_RETRY_DELAY", 0.001)
        async with talking(legacy(get=get), session=True) as (channel, _, __):
            await channel.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            assert await channel.receive() == NOTICE

    run(main)


# --------------------------------------------------------------------- HTTP+SSE


def of_events(posted):
    """A server of HTTP+SSE, whose stream stays open; the script receives the POSTs."""
    streams = []

    async def serve(heard):
        if heard.method == "GET":
            streams.append(heard)
            await heard.write(stream(event(b"/post", event="endpoint"), end=False))
            await heard.gone()
        else:
            await posted(heard, streams[-1])

    return serve


def test_an_answer_on_the_stream_does_not_wait_until_its_request_was_accepted():
    async def main():
        async def posted(heard, out):
            await out.write(chunk(event(WHOLE, event="message")))
            await heard.gone()

        async with scripted(of_events(posted)) as server:
            channel = await open_sse(Http(server.url))
            channel.on_request_lost(lambda *_: None)
            await channel.send(request())
            assert await channel.receive() == WHOLE
            await channel.close()

    run(main)


def test_a_request_that_is_not_accepted_names_the_endpoint():
    async def main():
        async def posted(heard, _):
            await heard.write(answer(503, b"busy", "text/plain"))

        async with scripted(of_events(posted)) as server:
            channel = await open_sse(Http(server.url))
            with pytest.raises(RequestFailed, match="busy"):
                await channel.send(request())
            lost = asyncio.Queue()
            channel.on_request_lost(lambda key, error: lost.put_nowait((key, error)))
            await channel.send(request())
            key, error = await lost.get()
            assert (key, error.status) == (7, 503)
            with pytest.raises(RequestFailed, match="busy"):
                await channel.send(NOTICE)
            await channel.close()

    run(main)


# --------------------------------------------------------------------- listening


def test_what_was_asked_for_before_a_refusal_is_given_back():
    async def main():
        asked = []

        async def script(heard, message):
            if message.get("method", "").startswith("resources/"):
                asked.append((message["method"].rpartition("/")[2], message["params"]["uri"]))
                if asked[-1][1] == "u://2":
                    await heard.write(answer(body=refusal(message["id"], -32002)))
                    return True
            return False

        async with scripted(legacy(script)) as server, Client(server.url) as client:
            with pytest.raises(Exception, match="no"):
                await client.listen(uris=["u://1", "u://2"]).__aenter__()
            await until(lambda: len(asked) == 3)
            assert asked == [("subscribe", "u://1"), ("subscribe", "u://2"), ("unsubscribe", "u://1")]

    run(main)


# --------------------------------------------------------------------- proxies


@pytest.fixture
def _no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("_no_proxies")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_proxy_for_everything_is_used(library, monkeypatch):
    async def main():
        async with scripted(lambda heard: heard.write(answer(body=b"by proxy"))) as proxy:
            monkeypatch.setenv("all_proxy", proxy.url.removesuffix("/mcp"))
            backend = open_backend(library)
            async with backend.send("POST", "http://far.example/mcp", {}, b"{}") as response:
                assert await response.read() == b"by proxy"
            await backend.close()

    run(main)


@pytest.mark.usefixtures("_no_proxies")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("proxy", ["http://user:secret@:x", "gopher://user:secret@127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_is_reported_without_its_secrets(library, proxy, monkeypatch, caplog):
    async def main():
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(ConnectFailed, match=f"{library} cannot use the proxy") as failed:
            await Client("http://far.example/mcp", http=library).connect()
        assert "secret" not in f"{failed.value!r}{caplog.text}"

    run(main)
