"""`toolpost tap URL`: requests, streams, headers and statuses pass, and the messages in them are shown."""

import asyncio
import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from http_sites import Asked, Reply, odd_site, our_site
from revision_dates import DATES
from toolpost import Client, Http
from toolpost.testing import read_tape, replay

TAP = [sys.executable, "-m", "toolpost", "tap"]
PATIENCE = 30
ACCEPT = "application/json, text/event-stream"
BODY = b"\x00\xff" * 1_000_000
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}'


class Tap:
    """A tap on a URL that runs.

    Attributes:
        url: the URL that it printed.
        shown: its output, set by `end`.
        code: its exit code, set by `end`.
    """

    def __init__(self, process: Any) -> None:
        self.process = process
        self.url = process.stdout.readline().strip()
        self.shown = ""
        self.code: int | None = None

    def end(self, number: int = signal.SIGINT) -> str:
        """Stop it, and return its output."""
        self.process.send_signal(number)
        self.shown = self.process.stderr.read()
        self.code = self.process.wait(PATIENCE)
        return self.shown

    def ask(self, verb: str, path: str, body: bytes | None = None, **headers: str) -> tuple[Any, bytes]:
        """Send a request; return the response and its body."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"accept": ACCEPT, **({} if body is None else {"content-type": "application/json"}), **named}
        place = urlsplit(self.url)
        with contextlib.closing(http.client.HTTPConnection(place.netloc, timeout=PATIENCE)) as link:
            link.request(verb, path, body, sent)
            response = link.getresponse()
            return response, response.read()


@contextlib.contextmanager
def tapping(*words: str) -> Generator[Tap]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*TAP, "--listen", "127.0.0.1:0", *words], stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield Tap(process)
        finally:
            process.kill()


async def talk(target, date=None, **options):
    steps: list[float] = []
    async with Client(target, revision=date, **options) as mcp:
        tools = [tool.name for tool in await mcp.list_tools()]
        told = await mcp.call_tool("boil", {"minutes": 4}, progress=lambda done: steps.append(done.progress))
        return mcp.revision, tools, str(told.content[0]), steps


# --------------------------------------------------------------------- conversations


@pytest.fixture(scope="module")
def kitchen():
    with our_site() as url:
        yield url


@pytest.mark.parametrize("date", DATES)
def test_a_conversation_passes_is_shown_and_breaks_no_rule(kitchen, date, tmp_path):
    there = tmp_path / "talk.jsonl"
    with tapping("--record", str(there), kitchen) as tap:
        first = date == DATES[0]
        target = Http(tap.url.replace("/mcp", "/sse") if first else tap.url, sse=first)
        revision, tools, told, steps = asyncio.run(talk(target, date))
        shown = tap.end()
    assert (revision, tools, steps) == (date, ["boil"], [4])
    assert "an egg of 4 minutes" in told
    assert tap.code == 130
    assert " ! " not in shown
    assert "tools/call  boil" in shown
    assert "notifications/progress  4/5" in shown
    assert read_tape(there)[0].target == kitchen
    assert asyncio.run(talk(replay(there), date))[1:3] == (tools, told)


def test_several_sessions_are_distinguished(kitchen, tmp_path):
    there = tmp_path / "talk.jsonl"

    async def both(url):
        return await asyncio.gather(talk(url, DATES[2]), talk(url, DATES[3]), talk(url))

    with tapping("--record", str(there), kitchen) as tap:
        told = asyncio.run(both(tap.url))
        shown = tap.end(signal.SIGTERM)
    assert [each[0] for each in told] == [DATES[2], DATES[3], DATES[4]]
    assert tap.code == 143
    assert " ! " not in shown
    assert {line.link for line in read_tape(there)[1]} == {1, 2}


def test_it_says_in_json_where_it_is(kitchen):
    with tapping("--json", "--full", kitchen) as tap:
        told = json.loads(tap.url + "".join(tap.process.stdout.readline() for _ in range(3)))
        assert told["target"] == kitchen
        asyncio.run(talk(told["url"]))
        lines = [json.loads(line) for line in tap.end().splitlines()]
    assert {line["from"] for line in lines} == {"client", "server"}
    assert any(line.get("method") == "tools/call" and "ms" in line and line["message"] for line in lines)


# --------------------------------------------------------------------- what passes


def test_messages_are_forwarded_unchanged():
    asked: list[Asked] = []

    def answer(request):
        asked.append(request)
        return Reply(418, bytes(range(256)), "image/tea", {"X-Pot": "blue", "Set-Cookie": "a=1"})

    with odd_site(answer) as origin, tapping("--header", "X-Extra: yes", f"{origin}/mcp") as tap:
        response, body = tap.ask("POST", "/else/where%20?q=%2F", BODY, x_mine="1", user_agent="me")
        assert (response.status, body) == (418, bytes(range(256)))
        assert (response.getheader("x-pot"), response.getheader("content-type")) == ("blue", "image/tea")
        assert response.getheader("set-cookie") == "a=1"
        tap.ask("DELETE", "/mcp")
        shown = tap.end()
    first, second = asked
    assert (first.verb, first.path, first.body) == ("POST", "/else/where%20?q=%2F", BODY)
    assert (first.headers["x-mine"], first.headers["x-extra"], first.headers["user-agent"]) == (
        "1",
        "yes",
        "me",
    )
    assert first.headers["host"] == urlsplit(origin).netloc
    assert (second.verb, second.body) == ("DELETE", b"")
    assert "POST /else/where%20: 418" in shown
    assert "not a message" in shown


def test_a_query_of_the_target_is_sent_and_not_printed():
    paths: list[str] = []

    def answer(request):
        paths.append(request.path)
        return Reply(200, PONG)

    with odd_site(answer) as origin, tapping(f"{origin}/mcp?key=tiger") as tap:
        tap.ask("POST", "/mcp", PING)
        assert "tiger" not in tap.url + tap.end()
    assert paths == ["/mcp?key=tiger"]


def test_urls_of_the_server_are_rewritten_to_the_tap():
    def answer(request):
        own = f"http://{request.headers['host']}"
        if request.verb == "GET":
            event = f"event: endpoint\ndata: {own}/messages?s=1\n\n".encode()
            return Reply(200, [event, b"event: message\ndata: " + PONG + b"\n\n"], "text/event-stream")
        return Reply(307, b"", None, {"Location": f"{own}/mcp/"}) if request.path == "/mcp" else Reply(202)

    with odd_site(answer) as origin, tapping(f"{origin}/mcp") as tap:
        own = tap.url.removesuffix("/mcp")
        assert tap.ask("POST", "/mcp", PING)[0].getheader("location") == f"{own}/mcp/"
        _, stream = tap.ask("GET", "/mcp")
        assert f"data: {own}/messages?s=1\n\n".encode() in stream
        shown = tap.end()
    assert "GET /mcp: message endpoint: /messages" in shown
    assert "POST /mcp: 307" in shown


def test_secrets_are_neither_shown_nor_kept(tmp_path):
    there = tmp_path / "t.jsonl"
    seen: list[str] = []

    def answer(request):
        seen.append(request.headers["authorization"])
        return Reply(200, b'{"jsonrpc":"2.0","id":1,"result":{"echo":"panther42","access_token":"lion"}}')

    with (
        odd_site(answer) as origin,
        tapping(
            "--full", "--record", str(there), "--header", "Authorization: panther42", f"{origin}/mcp"
        ) as tap,
    ):
        tap.ask("POST", "/mcp", PING, authorization="Bearer of-the-host")
        shown = tap.end()
    assert seen == ["panther42"]
    for text in (shown, there.read_text()):
        assert "echo" in text
        assert not [secret for secret in ("panther42", "lion", "of-the-host") if secret in text]


def test_a_host_that_leaves_a_stream_ends_it():
    left = threading.Event()

    def stream():
        try:
            while True:
                yield b": still there\n\n"
        finally:
            left.set()

    with (
        odd_site(lambda _: Reply(200, stream(), "text/event-stream")) as origin,
        tapping(f"{origin}/mcp") as tap,
        contextlib.closing(http.client.HTTPConnection(urlsplit(tap.url).netloc, timeout=PATIENCE)) as link,
    ):
        link.request("GET", "/mcp", headers={"accept": "text/event-stream"})
        response = link.getresponse()
        assert response.read(10) == b": still th"
        response.close()
        link.close()
        assert left.wait(PATIENCE)
        tap.end()


# --------------------------------------------------------------------- what is wrong


def test_headers_that_do_not_fit_are_marked(kitchen):
    with tapping(kitchen) as tap:
        tap.ask("POST", "/mcp", PING, mcp_protocol_version=DATES[-1], accept="application/json")
        shown = tap.end()
    assert "! the Accept header does not include application/json and text/event-stream" in shown
    assert "! _meta lacks" in shown


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(200, b"<html>", "text/html"), "POST /mcp: 200, text/html"),
        (Reply(401, b"", None), "POST /mcp: 401"),
        (Reply(200, b"junk"), "not a message: 'junk'"),
        (
            Reply(200, PONG, headers={"Content-Encoding": "br"}),
            "the response is compressed (br) and not inspected",
        ),
        (
            Reply(200, [b"data: " + b"x" * 5_000_000 + b"\n\n"], "text/event-stream"),
            "the rest of the stream is not inspected",
        ),
        (Reply(200, b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 5_000_000 + b'"}'), "longer than"),
        (
            Reply(200, [b"5\r\nhello\r\n"], headers={"Transfer-Encoding": "chunked"}),
            "the response was cut off",
        ),
    ],
)
def test_odd_responses_are_reported_and_forwarded(reply, words):
    with odd_site(lambda _: reply) as origin, tapping(f"{origin}/mcp") as tap:
        with contextlib.suppress(http.client.HTTPException, OSError):
            response, body = tap.ask("POST", "/mcp", PING)
            assert response.status == reply.status
            assert body == (reply.body if isinstance(reply.body, bytes) else b"".join(reply.body))
        assert words in tap.end()


def test_an_unreachable_server_is_reported_to_host_and_user():
    with odd_site(lambda _: Reply()) as origin:
        pass
    with tapping(f"{origin}/mcp") as tap:
        response, body = tap.ask("POST", "/mcp", PING)
        assert (response.status, body) == (
            502,
            b"toolpost tap: could not reach the server: the connection was refused\n",
        )
        assert "POST /mcp: could not reach the server" in tap.end()


def test_an_invalid_http_response_is_reported_to_host_and_user():
    with odd_site(lambda _: Reply(headers={"X-Long": "x" * 70_000})) as origin, tapping(origin) as tap:
        response, body = tap.ask("POST", "/", PING)
        assert (response.status, body) == (502, b"toolpost tap: the response is not valid HTTP\n")
        assert "POST /: the response is not valid HTTP" in tap.end()


def test_a_page_under_another_name_is_not_let_in():
    with odd_site(lambda _: Reply(200, PONG)) as origin, tapping(f"{origin}/mcp") as tap:
        response, body = tap.ask("POST", "/mcp", PING, host="evil.example")
        assert response.status == 403
        assert b"evil.example" in body
        tap.end()


def test_an_unavailable_address_is_reported(kitchen):
    taken = urlsplit(kitchen).netloc
    for listen, code, words in ((taken, 3, "could not listen on"), ("nowhere", 2, "invalid address")):
        ended = subprocess.run(
            [*TAP, kitchen, "--listen", listen], capture_output=True, timeout=PATIENCE, check=False, text=True
        )
        assert ended.returncode == code
        assert words in ended.stderr
        assert Path(sys.executable).name not in ended.stdout
