"""The channel over Streamable HTTP: requests, responses, and missing responses."""

import asyncio
import contextlib
import itertools
import json
from typing import Any

import pytest

from scripted import END, answer, chunk, event, scripted, stream
from toolpost.channel import Channel
from toolpost.errors import ChannelClosed, LocalProtocolError, RequestFailed, SessionLost
from toolpost.protocol import headers
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, REVISIONS
from toolpost.transports import http_request as trails
from toolpost.transports.backends.backend import open_backend
from toolpost.transports.http_client import HttpChannel
from toolpost.transports.targets import Http
from toolpost.types.initialize import PROTOCOL_VERSION, ClientCapabilities, Implementation
from waiting import until

BOTH = "application/json, text/event-stream"
SESSION = "s-1"
VERSION = LATEST_SESSION.date


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


def request(key: object = 1, method="tools/list", params=None, *, marked=False):
    params = dict(params or {})
    if marked:
        params["_meta"] = {PROTOCOL_VERSION: LATEST.date}
    return json.dumps({"jsonrpc": "2.0", "id": key, "method": method, "params": params}).encode()


def notice(method="notifications/initialized", **params):
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


def reply(key: object = 1, **result):
    return json.dumps({"jsonrpc": "2.0", "id": key, "result": result}, separators=(",", ":")).encode()


def failure(key: object = 1, code=-32000, message="no", **more):
    body = {"jsonrpc": "2.0", "error": {"code": code, "message": message, **more}}
    return json.dumps(body if key is ... else body | {"id": key}).encode()


PROGRESS = notice("notifications/progress", progressToken=1, progress=1)
OPENED = reply(0, protocolVersion=VERSION, capabilities={}, serverInfo={"name": "s", "version": "1"})
OPENING = request(0, "initialize", {"protocolVersion": VERSION})


class Lost:
    """The lost requests that the channel reports."""

    def __init__(self, channel):
        self.told = asyncio.Queue()
        channel.on_request_lost(lambda key, error: self.told.put_nowait((key, error)))

    async def next(self, key: object = 1):
        told, error = await self.told.get()
        assert told == key
        return error


@contextlib.asynccontextmanager
async def talking(script, **options):
    """A channel to a scripted server, the server, and what was lost."""
    async with scripted(script) as server:
        channel = HttpChannel(Http(server.url, **options))
        lost = Lost(channel)
        try:
            yield channel, server, lost
        finally:
            await channel.close()
        assert lost.told.empty()


def in_session(script, *, get=None, session: str | None = SESSION, opened=OPENED):
    """A script that opens a session and leaves the rest to others."""
    extra: Any = {} if session is None else {"Mcp_Session_Id": session}

    async def serve(heard):
        method = json.loads(heard.body).get("method") if heard.method == "POST" else None
        if method == "initialize":
            await heard.write(answer(body=opened, **extra))
        elif method == "notifications/initialized":
            await heard.write(answer(202, kind=None))
        elif heard.method == "DELETE":
            await heard.write(answer(kind=None))
        elif heard.method == "GET" and "last-event-id" not in heard.headers and get is not None:
            await get(heard)
        elif heard.method == "GET" and "last-event-id" not in heard.headers:
            await heard.write(answer(405, kind=None))
        else:
            await script(heard)

    return serve


async def open_session(channel):
    await channel.send(OPENING)
    assert await channel.receive() == OPENED
    await channel.send(notice())


async def nothing(heard):
    raise AssertionError(f"{heard.method} {heard.body}")


# --------------------------------------------------------------------- one body


def test_it_is_a_channel():
    async def main():
        channel = HttpChannel(Http("http://127.0.0.1"))
        assert isinstance(channel, Channel)
        assert channel.find_header_parameters("any tool") is None
        await channel.close()
        await channel.close()

    run(main)


@pytest.mark.requirement("HTTP-5", "HTTP-6", "HTTP-10", "HTTPM-2", "HTTPM-14", "HTTPM-15", "HDR-1")
@pytest.mark.parametrize("library", ["aiohttp", "httpx2"])
def test_a_stateless_request_carries_its_facts_in_headers_too(library):
    async def main():
        async with talking(lambda heard: heard.write(answer(body=reply())), http=library) as (
            channel,
            server,
            _,
        ):
            await channel.send(request(marked=True))
            assert await channel.receive() == reply()
            (heard,) = server.heard
            assert (heard.method, heard.body) == ("POST", request(marked=True))
            assert heard.headers["accept"] == BOTH
            assert heard.headers["content-type"] == "application/json"
            assert heard.headers[headers.VERSION] == LATEST.date
            assert heard.headers[headers.METHOD] == "tools/list"
            assert headers.SESSION not in heard.headers

    run(main)


@pytest.mark.requirement("HDR-2", "HDR-3", "HDR-4", "HDR-5")
def test_the_annotated_parameters_of_a_tool_are_mirrored():
    async def main():
        call = request(1, "tools/call", {"name": "wétter", "arguments": {"city": "Ulm"}}, marked=True)
        async with talking(lambda heard: heard.write(answer(body=reply()))) as (channel, server, _):
            await channel.send(call)
            await channel.receive()
            asked = []

            def annotated(tool):
                asked.append(tool)
                return {"mcp-param-city": ("city",)}

            channel.find_header_parameters = annotated
            await channel.send(call)
            await channel.receive()
            await channel.send(request(1, "tools/list", marked=True))
            await channel.receive()
            first, second, third = (heard.headers for heard in server.heard)
            assert first[headers.NAME].startswith("=?base64?")
            assert "mcp-param-city" not in first
            assert second["mcp-param-city"] == "Ulm"
            assert "mcp-param-city" not in third
            assert asked == ["wétter"]

    run(main)


@pytest.mark.parametrize(
    "params", [{"name": "t", "arguments": {"n": 1.5}}, {"name": "t", "arguments": {"n": 2**60}}, {}]
)
def test_values_that_headers_cannot_carry_are_not_sent(params):
    async def main():
        async with talking(nothing) as (channel, _, __):
            channel.find_header_parameters = lambda _: {"mcp-param-n": ("n",)}
            with pytest.raises(RequestFailed) as failed:
                await channel.send(request(1, "tools/call", params, marked=True))
            assert failed.value.retry_safe  # the server has not got it

    run(main)


def test_any_number_of_requests_is_under_way_at_once():
    async def main():
        count, go = 100, asyncio.Event()

        async def script(heard):
            if len(server.heard) == count:
                go.set()
            await go.wait()
            await heard.write(answer(body=reply(json.loads(heard.body)["id"])))

        async with talking(script) as (channel, server, _):
            for n in range(count):
                await channel.send(request(n, marked=True))
            got = {json.loads(await channel.receive())["id"] for _ in range(count)}
            assert got == set(range(count))

    run(main)


@pytest.mark.parametrize("status", [200, 400, 404, 500])
@pytest.mark.parametrize("key", [1, None, ..., "server-error"])
def test_an_error_is_raised_with_any_status_and_with_the_id_of_the_request(status, key):
    async def main():
        body = failure(key, -32022, "too new", data={"supported": []})
        script = lambda heard: heard.write(answer(status, body))  # noqa: E731 - one line says it all
        async with talking(script) as (channel, _, __):
            await channel.send(request(marked=True))
            assert json.loads(await channel.receive()) == {
                "jsonrpc": "2.0",
                "id": 1,
                "error": {"code": -32022, "message": "too new", "data": {"supported": []}},
            }

    run(main)


def test_an_answer_in_a_batch_is_found_where_there_are_batches():
    async def main():
        (date,) = (date for date, revision in REVISIONS.items() if revision.batches)
        opened = OPENED.replace(VERSION.encode(), date.encode())
        body = b"[%b,%b,1]" % (PROGRESS, reply(7))
        script = in_session(lambda heard: heard.write(answer(body=body)), opened=opened)
        async with talking(script) as (channel, _, __):
            await channel.send(OPENING)
            await channel.receive()
            await channel.send(request(7))
            assert await channel.receive() == body

    run(main)


@pytest.mark.parametrize(
    ("response", "words", "status"),
    [
        (answer(500, b"out of order", "text/plain"), "500 Internal Server Error: out of order", 500),
        (answer(500, b'{"detail":"x"}'), '500 Internal Server Error: {"detail":"x"}', 500),
        (answer(500, reply(2)), "500 Internal Server Error", 500),
        (answer(404, b"", None), "404 Not Found", 404),
        (answer(405, b"", None), "405 Method Not Allowed", 405),
        (answer(401, failure()), "401 Unauthorized.*Authorization", 401),
        (answer(403, failure(None)), "403 Forbidden: no$", 403),
        (answer(403, b"", None), "403 Forbidden.*Authorization", 403),
        (answer(202, b"", None), "202 Accepted and no content type", 202),
        (answer(200, b"<html>", "text/html; charset=utf-8"), "text/html; charset=utf-8", 200),
        (answer(200, b"{}", "application/json; charset=utf-16"), "charset=utf-16", 200),
        (answer(200, b"nonsense"), "did not answer tools/list with JSON-RPC: .*JSON", 200),
        (answer(200, b""), "JSON-RPC", 200),
        (answer(200, b"[]"), "JSON-RPC", 200),
        (answer(200, PROGRESS), "not the response", 200),
        (answer(200, reply(2)), "not the response", 200),
        (answer(302, b"", None, Location="http://127.0.0.1:1/"), "a different origin", 302),
        (answer(200, reply(1, x="x" * 1000)), "limit of 500 bytes.*max_answer", 200),
    ],
)
@pytest.mark.parametrize("marked", [False, True])
def test_a_request_that_gets_no_answer_is_lost_alone(response, words, status, marked):
    async def main():
        async def script(heard):
            await heard.write(response if json.loads(heard.body)["id"] == 1 else answer(body=reply(9)))

        async with talking(script, max_answer=500) as (channel, _, lost):
            await channel.send(request(marked=marked))
            error = await lost.next()
            with pytest.raises(RequestFailed, match=words):
                raise error
            assert (error.status, error.sent) == (status, True)
            assert error.peer == channel._http.label
            await channel.send(request(9, marked=marked))
            assert await channel.receive() == reply(9)

    run(main)


def test_a_server_that_is_not_there_loses_the_request_before_it_was_sent():
    async def main():
        async with scripted(nothing) as server:
            url = server.url
        channel = HttpChannel(Http(url))
        lost = Lost(channel)
        await channel.send(request())
        error = await lost.next()
        assert (error.sent, error.retry_safe) == (False, True)
        with pytest.raises(RequestFailed, match="refused"):
            await channel.send(notice())
        await channel.close()

    run(main)


def test_without_a_listener_the_reason_is_logged(caplog):
    async def main():
        async with scripted(lambda heard: heard.write(answer(500))) as server:
            channel = HttpChannel(Http(server.url))
            await channel.send(request())
            await until(lambda: "request 1 was lost" in caplog.text)
            await channel.close()

    run(main)


def test_a_backend_that_breaks_its_promise_loses_the_request(caplog):
    class Broken:
        def send(self, method, url, headers, body=None):
            raise ZeroDivisionError("oops")

        async def close(self):
            raise AssertionError("it is not ours")

    async def main():
        channel = HttpChannel(Http("http://127.0.0.1", http=Broken()))
        lost = Lost(channel)
        await channel.send(request())
        error = await lost.next()
        assert "ZeroDivisionError" in str(error)
        assert isinstance(error.__cause__, ZeroDivisionError)
        await channel.close()

    run(main)
    assert "a request failed" in caplog.text


def test_what_a_backend_adds_to_its_headers_is_sent_with_one_request_alone():
    """For example the number that it gives each request."""

    class Counting:
        def __init__(self, inner):
            self.inner, self.count = inner, itertools.count()

        def send(self, method, url, headers, body=None):
            headers.setdefault("x-number", str(next(self.count)))
            return self.inner.send(method, url, headers, body)

        async def close(self):
            raise AssertionError("it is not ours")

    async def main():
        async with scripted(lambda heard: heard.write(answer(200, reply()))) as server:
            inner = open_backend(None)
            channel = HttpChannel(Http(server.url, http=Counting(inner)))
            party = LocalPeer(Implementation("c", "1"), ClientCapabilities())
            for _ in range(4):
                made = Connection(party, revision=LATEST, peer=Peer(LATEST)).request("tools/list")
                assert channel.send_request(made)
                await channel.receive()
            assert [heard.headers["x-number"] for heard in server.heard] == ["0", "1", "2", "3"]
            await channel.close()
            await inner.close()

    run(main)


# --------------------------------------------------------------------- streams


@pytest.mark.requirement("HTTP-10", "HTTPM-9")
@pytest.mark.parametrize("library", ["aiohttp", "httpx2"])
def test_messages_of_a_stream_arrive_in_order_and_as_they_come(library):
    async def main():
        go_on = asyncio.Event()

        async def script(heard):
            first = b": hello\n\n" + event(b"", id="a") + event(PROGRESS, event="message")
            await heard.write(stream(first, event(b"{}", event="other"), end=False))
            await go_on.wait()
            await heard.write(chunk(event(reply())[:10]) + chunk(event(reply())[10:]) + END)

        async with talking(script, http=library) as (channel, server, _):
            for _ in range(2):
                go_on.clear()
                await channel.send(request(marked=True))
                assert await channel.receive() == PROGRESS
                go_on.set()
                assert await channel.receive() == reply()
                await until(lambda: not channel._tasks)
            assert server.connections == 1  # it was read to its end, and can be used again

    run(main)


def test_a_stream_that_is_left_open_after_the_answer_is_closed(monkeypatch):
    monkeypatch.setattr(trails, "STREAM_END_TIMEOUT", 0.01)

    async def main():
        gone = asyncio.Event()

        async def script(heard):
            await heard.write(stream(event(reply()), end=False))
            await heard.gone()
            gone.set()

        async with talking(script) as (channel, _, __):
            await channel.send(request())
            assert await channel.receive() == reply()
            await gone.wait()

    run(main)


def test_a_stream_that_is_cut_after_the_answer_has_lost_nothing():
    async def main():
        async def script(heard):
            await heard.write(stream(event(reply()), end=False))
            heard.close()

        async with talking(script) as (channel, _, __):
            await channel.send(request())
            assert await channel.receive() == reply()
            await until(lambda: not channel._tasks)

    run(main)


def test_messages_of_a_stream_that_are_none_are_handed_on_for_others_to_refuse():
    async def main():
        body = stream(event(b"nonsense"), event(failure(None)))
        async with talking(lambda heard: heard.write(body)) as (channel, _, __):
            await channel.send(request())
            assert await channel.receive() == b"nonsense"
            assert json.loads(await channel.receive())["id"] == 1

    run(main)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_a_stream_that_ends_before_the_answer_loses_its_request_alone(cut, marked):
    async def main():
        async def script(heard):
            if json.loads(heard.body)["id"] == 2:
                await heard.write(answer(body=reply(2)))
                return
            # In the stateless era an id means nothing.
            await heard.write(stream(event(PROGRESS, **({"id": "a"} if marked else {})), end=not cut))
            if cut:
                heard.close()

        async with talking(script) as (channel, _, lost):
            await channel.send(request(marked=marked))
            assert await channel.receive() == PROGRESS
            error = await lost.next()
            assert "before the response to tools/list" in str(error)
            assert (error.sent, error.status) == (True, None)
            await channel.send(request(2, marked=marked))
            assert await channel.receive() == reply(2)

    run(main)


def test_an_event_over_the_limit_loses_its_request_and_is_not_asked_for_again(caplog):
    async def main():
        async def script(heard):
            await heard.write(stream(event(PROGRESS, id="a"), event(b"x" * 1000)))

        async with talking(in_session(script), max_answer=500) as (channel, _, lost):
            await open_session(channel)
            await channel.send(request())
            assert await channel.receive() == PROGRESS
            assert "more than 500 bytes" in str(await lost.next())

    run(main)
    assert "dropped an event" in caplog.text


def test_streams_wait_while_the_client_does_not_read():
    async def main():
        async def script(heard):
            end = event(reply(json.loads(heard.body)["id"]))
            await heard.write(stream(*(event(PROGRESS) for _ in range(20)), end))

        async with talking(script) as (channel, _, __):
            channel._queue.limit = 3
            for n in (1, 2):
                await channel.send(request(n))
            await until(lambda: len(channel._queue.senders.queue) == 2)
            assert len(channel._queue.arrived) == 3
            got = [await channel.receive() for _ in range(42)]
            assert got.count(PROGRESS) == 40
            assert {reply(1), reply(2)} < set(got)
            await channel.send(request(3))
            assert [await channel.receive() for _ in range(21)][-1] == reply(3)
            assert not channel._queue.senders.queue

    run(main)


# --------------------------------------------------------------------- sessions


@pytest.mark.requirement("HTTPL-25", "HTTPL-29", "HTTPL-30", "HTTPL-31", "HTTPL-2", "LIFE-13")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("session", [SESSION, None])
def test_session_and_revision_go_with_every_later_request(streamed, session):
    async def main():
        async def script(heard):
            if heard.method == "DELETE":
                await heard.write(answer(kind=None))
            elif heard.method == "GET":
                await heard.write(answer(405, kind=None))
            elif b'"initialize"' in heard.body and streamed:
                extra: Any = {} if session is None else {"Mcp_Session_Id": session}
                await heard.write(stream(event(PROGRESS), event(OPENED), **extra))
            else:
                message = json.loads(heard.body)
                body = reply(message["id"]) if "method" in message and "id" in message else b""
                await heard.write(answer(200 if body else 202, body))

        serve = script if streamed else in_session(script, session=session)
        async with talking(serve) as (channel, server, _):
            await channel.send(OPENING)
            if streamed:
                assert await channel.receive() == PROGRESS
            assert await channel.receive() == OPENED
            await channel.send(notice())
            await channel.send(request(5))
            assert await channel.receive() == reply(5)
            await channel.send(reply("theirs"), related="theirs")
            await until(lambda: "GET" in [heard.method for heard in server.heard])
            await channel.close()
            first, *later = server.heard
            assert headers.SESSION not in first.headers
            assert headers.VERSION not in first.headers
            assert all(heard.headers[headers.VERSION] == VERSION for heard in later)
            assert {heard.headers.get(headers.SESSION) for heard in later} == {session}
            assert headers.METHOD not in later[1].headers
            assert ("DELETE" in [heard.method for heard in server.heard]) is (session is not None)

    run(main)


@pytest.mark.parametrize("wrong", ["with space", "ü", "x" * 5000])
def test_a_session_id_that_may_not_be_sent_is_refused(wrong):
    async def main():
        async with talking(in_session(nothing, session=wrong)) as (channel, _, lost):
            await channel.send(OPENING)
            assert "invalid session id" in str(await lost.next(0))

    run(main)


@pytest.mark.parametrize("body", [reply(0), reply(0, protocolVersion="1999-01-01"), failure(0)])
def test_an_answer_that_names_no_revision_of_ours_is_for_others_to_judge(body):
    async def main():
        async with talking(in_session(nothing, opened=body)) as (channel, server, _):
            await channel.send(OPENING)
            assert await channel.receive() == body
            await channel.send(notice())
            assert headers.VERSION not in server.heard[1].headers

    run(main)


def test_a_new_handshake_starts_without_the_old_session():
    async def main():
        quiet = asyncio.Event()

        async def get(heard):
            await heard.write(stream(end=False))
            await heard.gone()
            quiet.set()

        async with talking(in_session(nothing, get=get)) as (channel, server, _):
            await open_session(channel)
            await until(lambda: [heard.method for heard in server.heard][-1] == "GET")
            await channel.send(OPENING)
            await quiet.wait()
            assert await channel.receive() == OPENED
            assert headers.SESSION not in [heard for heard in server.heard if heard.body][-1].headers

    run(main)


def test_a_stateless_request_beside_a_session_does_not_name_it():
    async def main():
        async def script(heard):
            assert headers.SESSION not in heard.headers
            assert heard.headers[headers.VERSION] == LATEST.date
            await heard.write(answer(body=reply()))

        async with talking(in_session(script)) as (channel, _, __):
            await open_session(channel)
            await channel.send(request(marked=True))
            assert await channel.receive() == reply()

    run(main)


NOT_EXECUTED = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"m","data":{"toolpost/executed":false}}}'
)


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b"", True),
        (failure("server-error", -32600, "Session not found"), True),
        (failure(1, -32001), True),
        (NOT_EXECUTED, False),
    ],
)
def test_a_session_that_the_server_has_forgotten_ends_the_channel(body, sent):
    async def main():
        script = lambda heard: heard.write(answer(404, body, "application/json" if body else None))  # noqa: E731 - one line says it all
        async with talking(in_session(script)) as (channel, server, lost):
            await open_session(channel)
            await channel.send(request())
            error = await lost.next()
            assert isinstance(error, SessionLost)
            assert (error.sent, error.retry_safe) == (sent, not sent)
            with pytest.raises(SessionLost, match="no longer knows the session"):
                await channel.receive()
            with pytest.raises(SessionLost) as refused:
                await channel.send(request(2))
            assert not refused.value.sent
            await channel.close()
            assert "DELETE" not in [heard.method for heard in server.heard]

    run(main)


def test_a_notification_that_finds_no_session_ends_the_channel():
    async def main():
        script = lambda heard: heard.write(answer(404, kind=None))  # noqa: E731 - one line says it all
        async with talking(in_session(script)) as (channel, _, __):
            await open_session(channel)
            with pytest.raises(SessionLost) as refused:
                await channel.send(notice("notifications/roots/list_changed"))
            assert not refused.value.sent
            with pytest.raises(SessionLost):
                await channel.receive()

    run(main)


def test_an_unknown_method_is_not_a_lost_session():
    async def main():
        script = lambda heard: heard.write(answer(404, failure(1, -32601, "what?")))  # noqa: E731 - one line says it all
        async with talking(in_session(script)) as (channel, _, __):
            await open_session(channel)
            await channel.send(request())
            assert json.loads(await channel.receive())["error"]["code"] == -32601

    run(main)


def test_the_404_of_an_older_session_does_not_end_the_new_one():
    async def main():
        go = asyncio.Event()

        async def script(heard):
            if json.loads(heard.body)["id"] == 1:
                await go.wait()
                await heard.write(answer(404, kind=None))
            else:
                await heard.write(answer(body=reply(2)))

        async with talking(in_session(script)) as (channel, server, lost):
            await open_session(channel)
            await channel.send(request())
            await until(lambda: b'"id": 1' in server.heard[-1].body)
            await open_session(channel)
            go.set()
            assert isinstance(await lost.next(), SessionLost)
            await channel.send(request(2))
            assert await channel.receive() == reply(2)

    run(main)


# --------------------------------------------------------------------- notifications and responses


@pytest.mark.parametrize("status", [400, 500])
def test_a_notification_that_is_not_accepted_raises(status):
    async def main():
        script = lambda heard: heard.write(answer(status, b"no", "text/plain"))  # noqa: E731 - one line says it all
        async with talking(in_session(script)) as (channel, _, __):
            await open_session(channel)
            with pytest.raises(RequestFailed, match="no") as refused:
                await channel.send(notice("notifications/roots/list_changed"))
            assert refused.value.status == status

    run(main)


def test_a_notification_outside_of_a_session_mirrors_its_method():
    async def main():
        async with talking(lambda heard: heard.write(answer(202, kind=None))) as (channel, server, _):
            await channel.send(notice("notifications/x"))
            assert server.heard[0].headers[headers.METHOD] == "notifications/x"
            assert server.heard[0].headers[headers.VERSION] == LATEST.date

    run(main)


@pytest.mark.requirement("HTTPM-4")
def test_no_answer_is_posted_outside_of_a_session():
    async def main():
        async with talking(nothing) as (channel, _, __):
            for data in (reply(), failure()):
                with pytest.raises(LocalProtocolError):
                    await channel.send(data)

    run(main)


@pytest.mark.requirement("HTTPL-2", "HTTPM-3")
@pytest.mark.parametrize("data", [b"[%b]" % request(), b"nonsense", b"{}"])
def test_only_single_messages_are_posted(data):
    async def main():
        async with talking(nothing) as (channel, _, __):
            with pytest.raises(LocalProtocolError, match="this message cannot be sent"):
                await channel.send(data)

    run(main)


# --------------------------------------------------------------------- cancelling


@pytest.mark.requirement("HTTPL-10", "CANC-11")
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_cancelling_closes_the_response_and_notifies_only_a_session(begun, marked):
    async def main():
        gone = asyncio.Event()

        async def script(heard):
            if b"notifications/cancelled" in heard.body:
                await heard.write(answer(202, kind=None))
                return
            if begun:
                await heard.write(stream(event(PROGRESS, id="a"), end=False))
            await heard.gone()
            gone.set()

        async with talking(in_session(script)) as (channel, server, _):
            if not marked:
                await open_session(channel)
            await channel.send(request(marked=marked))
            if begun:
                assert await channel.receive() == PROGRESS
            await until(lambda: server.heard and b'"id": 1' in server.heard[-1].body)
            await channel.send(notice("notifications/cancelled", requestId=1))
            await gone.wait()
            cancels = [heard for heard in server.heard if b"notifications/cancelled" in heard.body]
            assert len(cancels) == (0 if marked else 1)
            await channel.send(notice("notifications/cancelled", requestId=1))
            cancels = [heard for heard in server.heard if b"notifications/cancelled" in heard.body]
            assert len(cancels) == (0 if marked else 2)

    run(main)


@pytest.mark.parametrize("params", [{}, {"requestId": []}])
def test_a_cancellation_that_names_no_request_changes_nothing(params):
    async def main():
        script = lambda heard: heard.write(answer(202, kind=None))  # noqa: E731 - one line says it all
        async with talking(in_session(script)) as (channel, server, _):
            await channel.send(notice("notifications/cancelled", **params))
            assert not server.heard
            await open_session(channel)
            await channel.send(notice("notifications/cancelled", **params))
            assert b"cancelled" in server.heard[-1].body

    run(main)


# --------------------------------------------------------------------- what the server says unasked


@pytest.mark.requirement("HTTPL-11", "HTTPL-4", "HTTPL-6", "HTTPL-20")
def test_the_stream_for_unsolicited_messages_is_opened_and_resumed():
    async def main():
        done = asyncio.Event()
        ids = []

        async def get(heard):
            assert heard.headers["accept"] == "text/event-stream"
            assert heard.headers[headers.SESSION] == SESSION
            ids.append(heard.headers.get(headers.LAST_EVENT))
            if len(ids) == 1:
                await heard.write(stream(b"retry: 1\n\n", event(PROGRESS, id="a 1"), end=False))
                heard.close()
            elif len(ids) == 2:
                await heard.write(stream(event(PROGRESS)))
            elif len(ids) == 3:
                await heard.write(answer(503, kind=None))
            else:
                await heard.write(stream(event(PROGRESS, id="b"), end=False))
                done.set()
                await heard.gone()

        async with talking(in_session(get, get=get)) as (channel, _, __):
            await open_session(channel)
            for _ in range(3):
                assert await channel.receive() == PROGRESS
            await done.wait()
        assert ids == [None, "a 1", "a 1", "a 1"]

    run(main)


@pytest.mark.parametrize("name", ["", "ü", "\x01", "x" * 5000])
def test_a_stream_without_a_usable_id_is_reopened(name):
    async def main():
        ids = []

        async def get(heard):
            ids.append(heard.headers.get(headers.LAST_EVENT))
            await heard.write(stream(b"retry: 0\n\n", event(PROGRESS, id=name)))

        async with talking(in_session(nothing, get=get)) as (channel, _, __):
            await open_session(channel)
            assert await channel.receive() == PROGRESS
            assert await channel.receive() == PROGRESS
        assert set(ids) == {None}

    run(main)


@pytest.mark.parametrize("status", [405, 404, 400, 401])
def test_a_server_that_offers_no_such_stream_is_not_asked_again(status):
    async def main():
        async def script(heard):
            await heard.write(answer(body=reply()))

        get = lambda heard: heard.write(answer(status, kind=None))  # noqa: E731 - one line says it all
        async with talking(in_session(script, get=get)) as (channel, server, _):
            await open_session(channel)
            await until(lambda: not channel._tasks)
            await channel.send(request())
            assert await channel.receive() == reply()
            assert [heard.method for heard in server.heard].count("GET") == 1

    run(main)


def test_a_session_that_is_forgotten_while_its_stream_was_cut_ends_the_channel():
    async def main():
        seen = []

        async def get(heard):
            seen.append(heard)
            await heard.write(answer(404, kind=None) if seen[1:] else stream(b"retry: 0\n\n", b": \n\n"))

        async with talking(in_session(nothing, get=get)) as (channel, _, __):
            await open_session(channel)
            with pytest.raises(SessionLost):
                await channel.receive()

    run(main)


def test_a_stream_that_fails_for_reasons_of_ours_is_logged(caplog):
    async def main():
        async with talking(in_session(nothing)) as (channel, _, __):
            await channel.send(OPENING)
            await channel.receive()

            def broken(*_, **__):
                raise ZeroDivisionError

            send = channel._sender.send
            await channel.send(notice())
            channel._sender.send = broken
            await until(lambda: not channel._tasks)
            channel._sender.send = send

    run(main)
    assert "unsolicited messages failed" in caplog.text


# --------------------------------------------------------------------- streams that are resumed


@pytest.mark.requirement("HTTPL-4", "HTTPL-6", "HTTPL-20")
@pytest.mark.parametrize("cut", [False, True])
def test_the_stream_of_a_request_is_resumed_until_its_answer_came(cut):
    async def main():
        async def script(heard):
            if heard.method == "POST":
                await heard.write(stream(event(b"", id="1", retry=1), event(PROGRESS, id="2"), end=not cut))
            elif len(again) == 0:
                again.append(heard.headers[headers.LAST_EVENT])
                await heard.write(stream(event(PROGRESS, id="3"), end=not cut))
            elif len(again) == 1:
                again.append(heard.headers[headers.LAST_EVENT])
                await heard.write(answer(502, kind=None))
            else:
                again.append(heard.headers[headers.LAST_EVENT])
                assert heard.headers[headers.SESSION] == SESSION
                await heard.write(stream(event(reply(), id="4")))
            if cut:
                heard.close()

        again = []
        async with talking(in_session(script)) as (channel, _, __):
            await open_session(channel)
            await channel.send(request())
            assert [await channel.receive() for _ in range(3)] == [PROGRESS, PROGRESS, reply()]
        assert again == ["2", "3", "3"]

    run(main)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (answer(405, kind=None), "405"),
        (answer(400, b"no such event", "text/plain"), "no such event"),
        (answer(200, b"{}"), "application/json"),
        (answer(500, kind=None), "500"),
        (stream(), "before the response"),
    ],
)
def test_a_stream_that_cannot_be_resumed_loses_its_request(response, words, monkeypatch):
    monkeypatch.setattr(trails, "MAX_RECONNECTS", 3)

    async def main():
        async def script(heard):
            if heard.method == "POST":
                await heard.write(stream(event(b"", id="1", retry=0)))
            else:
                await heard.write(response)

        async with talking(in_session(script)) as (channel, _, lost):
            await open_session(channel)
            await channel.send(request())
            error = await lost.next()
            with pytest.raises(RequestFailed, match=words):
                raise error
            assert (error.sent, error.status) == (True, None)

    run(main)


def test_a_session_that_is_forgotten_while_a_request_ran_may_have_served_it():
    async def main():
        async def script(heard):
            if heard.method == "POST":
                await heard.write(stream(event(b"", id="1", retry=0)))
            else:
                await heard.write(answer(404, kind=None))

        async with talking(in_session(script)) as (channel, _, lost):
            await open_session(channel)
            await channel.send(request())
            error = await lost.next()
            assert isinstance(error, SessionLost)
            assert error.sent
            with pytest.raises(SessionLost):
                await channel.receive()

    run(main)


@pytest.mark.requirement("HTTPL-6")
def test_the_delay_follows_the_servers_retry_and_grows(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    async def main():
        trail = trails.ResumableStream(nothing, 1000)
        monkeypatch.setattr(trails.asyncio, "sleep", sleep)
        for _ in range(8):
            await trail.wait_before_reconnect()
        monkeypatch.undo()
        assert trail.is_lost
        assert all(
            least <= wait <= least * (1 + trails.RETRY_JITTER)
            for wait, least in zip(waits, [1, 2, 4, 8, 16, 30, 30, 30], strict=True)
        )

    run(main)


def test_an_extreme_retry_is_bounded():
    async def body(*parts):
        for part in parts:
            yield part

    async def main():
        trail = trails.ResumableStream(nothing, 1000)
        await trail.follow(body(b"retry: 999999999999999999\n\n"))
        assert trail._retry == trails.MAX_RETRY_DELAY

    run(main)


# --------------------------------------------------------------------- the end


def test_nothing_survives_the_end(monkeypatch):
    async def main():
        gone = []

        async def wait(heard):
            if heard.method == "GET" or json.loads(heard.body)["id"] % 2:
                await heard.write(stream(end=False))
            await heard.gone()
            gone.append(heard)

        async with talking(in_session(wait, get=wait)) as (channel, server, _):
            await open_session(channel)
            for n in range(1, 11):
                await channel.send(request(n, marked=n > 5))
            waiting = asyncio.create_task(channel.receive())
            await until(lambda: len(server.heard) == 13)
            closing = [asyncio.create_task(channel.close()) for _ in range(2)]
            await asyncio.gather(*closing)
            assert server.heard[-1].method == "DELETE"
            assert not channel._tasks
            with pytest.raises(ChannelClosed, match="was closed"):
                await waiting
            with pytest.raises(ChannelClosed) as refused:
                await channel.send(request())
            assert not refused.value.sent
            assert not isinstance(refused.value, SessionLost)
            await until(lambda: len(gone) == 11)

    run(main)


@pytest.mark.requirement("HTTPL-29")
def test_a_server_that_does_not_let_the_session_go_is_left(monkeypatch):
    monkeypatch.setattr("toolpost.transports.http_client.DELETE_TIMEOUT", 0.01)

    async def main():
        async def serve(heard):
            await (heard.gone() if heard.method == "DELETE" else script(heard))

        script = in_session(nothing)
        async with talking(serve) as (channel, _, __):
            await open_session(channel)

    run(main)


def test_a_close_that_is_cancelled_frees_everything():
    async def main():
        async def serve(heard):
            await (heard.gone() if heard.method == "DELETE" else script(heard))

        script = in_session(nothing)
        async with scripted(serve) as server:
            channel = HttpChannel(Http(server.url))
            await open_session(channel)
            closing = asyncio.create_task(channel.close())
            await until(lambda: server.heard[-1].method == "DELETE")
            closing.cancel()
            await asyncio.wait({closing})
            await channel.close()
            await until(lambda: not server.open)

    run(main)


def test_an_application_in_this_process_is_reached_without_a_socket():
    async def app(scope, receive, send):
        assert scope["type"] == "http", "no lifespan here"
        body = (await receive())["body"]
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream")],
            }
        )
        await send({"type": "http.response.body", "body": event(PROGRESS), "more_body": True})
        await send(
            {"type": "http.response.body", "body": event(reply(json.loads(body)["id"])), "more_body": False}
        )

    async def main():
        channel = HttpChannel(Http("http://localhost/mcp", http=app))
        await channel.send(request(3, marked=True))
        assert [await channel.receive(), await channel.receive()] == [PROGRESS, reply(3)]
        await channel.close()

    run(main)
