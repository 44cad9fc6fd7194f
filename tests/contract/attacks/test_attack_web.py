"""Attacks of a web page or another client on a server over HTTP. `test_advisories` has the sources."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from attacked_server import Victim, attacked, calls
from hosted import call, legacy, message, modern, opening, run
from raw_http import wired

# --------------------------------------------------------------------- DNS rebinding

HOSTS = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example",
    "localhost.evil.example:{port}",
    "127.0.0.1:{port}.evil.example",
    "evil.example#127.0.0.1",
    "evil.example/127.0.0.1",
    "evil.example@127.0.0.1",
    "127.0.0.1@evil.example",
    "127.0.0.1, evil.example",
    "127.0.0.1 evil.example",
    "127.0.0.1\tevil.example",
    "localhost:{port}:{port}",
    "localhost:evil",
    "localhost:-1",
    "localhost:99999999",
    "0.0.0.0:{port}",
    "[::]:{port}",
    "[::1",
    "::1:{port}",
    "[::1].evil.example",
    "[::1%25evil]",
    "[::ffff:10.0.0.1]",
    "[fe80::1]",
    "2130706433",
    "0x7f.1",
    "0177.0.0.1",
    "127.1",
    "127.0.0.1..",
    "localhost..",
    ".localhost",
    "xn--lcalhost-50a",
    "loc\xe4lhost",
    "*",
    "",
]


def test_a_foreign_host_name_is_rejected_everywhere():
    async def main():
        server = Victim()
        async with attacked(server) as site:
            places: list[tuple[str, str, Any, bytes | None]] = [
                ("POST", "/mcp", *modern("tools/call", call("mark", text="x"))),
                ("POST", "/mcp", legacy(), opening()),
                ("GET", "/mcp", {"Accept": "text/event-stream"}, None),
                ("DELETE", "/mcp", {}, None),
                ("GET", "/sse", {"Accept": "text/event-stream"}, None),
                ("POST", "/messages?session_id=x", {"Content-Type": "application/json"}, opening()),
            ]
            for host in HOSTS:
                for place in places:
                    named = host.format(port=site.port)
                    if named:
                        answer = await site.ask(*place, host=named)
                    else:
                        answer = await site.ask(
                            place[0], place[1], [("Host", ""), *place[2].items()], place[3], host=None
                        )
                    assert answer.status in {400, 403}, (named, place[:2], answer)
                    assert "access-control-allow-origin" not in answer.headers
            assert server.marks == []
            assert await calls(site)

    run(main)


@pytest.mark.requirement("HTTP-1", "HTTP-2")
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://127.0.0.1@evil.example",
        "http://evil.example#localhost",
        "http://localhost/evil",
        "http://localhost\\@evil.example",
        "http://[::1].evil.example",
        "http://0.0.0.0:{port}",
        "http://2130706433",
        "null",
        "file://",
        "chrome-extension://abcdefgh",
        "http://localhost http://evil.example",
        "HTTP://EVIL.EXAMPLE",
        "",
    ],
)
def test_a_page_of_another_origin_is_rejected(origin):
    async def main():
        server = Victim()
        async with attacked(server) as site:
            headers, body = modern("tools/call", call("mark", text="x"))
            answer = await site.post({**headers, "Origin": origin.format(port=site.port)}, body)
            assert answer.status == 403
            assert server.marks == []

    run(main)


@pytest.mark.parametrize(
    "lines",
    [
        ["POST http://evil.example/mcp HTTP/1.1", "Host: evil.example"],
        [
            "POST /mcp HTTP/1.1",
            "Host: evil.example",
            "X-Forwarded-Host: 127.0.0.1",
            "Forwarded: host=127.0.0.1",
        ],
        ["POST /mcp HTTP/1.1", "Host: evil.example", "Host: 127.0.0.1"],
        ["POST /mcp HTTP/1.1", "Host: 127.0.0.1", "Host: evil.example"],
        ["POST /mcp HTTP/1.0"],
        ["POST /mcp HTTP/1.1", "Host: 127.0.0.1", "Origin: http://localhost", "Origin: http://evil.example"],
    ],
    ids=["target", "forwarded", "twice", "twice, ours first", "none", "two origins"],
)
def test_a_host_name_cannot_be_smuggled_in(lines):
    async def main():
        server = Victim()
        async with attacked(server) as site, wired(site.port) as wire:
            headers, body = modern("tools/call", call("mark", text="x"))
            more = [f"{name}: {value}" for name, value in headers.items()]
            head = "\r\n".join([*lines, *more, f"Content-Length: {len(body)}", "", ""])
            await wire.send(head.encode() + body)
            assert (await wire.head()).status in {400, 403}
            assert server.marks == []

    run(main)


# --------------------------------------------------------------------- sessions


@pytest.mark.requirement("HTTPL-23", "SEC-7")
def test_session_ids_are_chosen_by_the_server_and_cannot_be_guessed():
    async def main():
        async with attacked() as site:
            chosen = "a" * 32
            opened = await site.post({**legacy(), "Mcp-Session-Id": chosen}, opening())
            assert opened.headers.get("mcp-session-id") != chosen
            real = await site.open()
            assert re.fullmatch(r"[\x21-\x7e]{22,}", real)
            many = {await site.open() for _ in range(50)}
            assert len(many) == 50
            assert len({name[-22:] for name in many}) == 50
            wrong = [
                chosen,
                real.swapcase(),
                real[:-1],
                real + "a",
                real[::-1],
                f"{real},{real}",
                f'"{real}"',
            ]
            wrong += ["../" + real, real + "%00", "*", "undefined", "null", "0", "1"]
            for name in wrong:
                for verb, body in (("POST", message("ping", id=1)), ("GET", None), ("DELETE", None)):
                    headers = {**legacy(name), **({"Accept": "text/event-stream"} if verb == "GET" else {})}
                    answer = await site.ask(verb, "/mcp", headers, body)
                    assert answer.status in {400, 404}, (name, verb, answer)
            twice = [*legacy(real).items(), ("Mcp-Session-Id", next(iter(many)))]
            assert (await site.post(twice, message("ping", id=1))).status == 400
            assert await calls(site, real)

    run(main)


def test_equal_request_ids_of_many_clients_are_not_mixed_up():
    async def main():
        server = Victim()
        async with attacked(server) as site:
            sessions: list[str | None] = [await site.open() for _ in range(6)] + [None] * 6

            async def ask(number: int, session: str | None) -> str:
                params = call("wait", text=f"secret {number}")
                asked = (
                    modern("tools/call", params, 7)
                    if session is None
                    else (legacy(session), message("tools/call", params, 7))
                )
                answer = await site.post(*asked)
                return answer.json["result"]["content"][0]["text"]

            tasks = [asyncio.create_task(ask(*pair)) for pair in enumerate(sessions)]
            for _ in sessions:
                await server.begun.get()
            server.go.set()
            assert await asyncio.gather(*tasks) == [f"secret {number}" for number in range(12)]

    run(main)


@pytest.mark.parametrize("point", ["stream", "call", "body"])
def test_a_disconnect_does_not_affect_other_clients(point):
    async def main():
        server = Victim()
        async with attacked(server) as site:
            session = await site.open()
            other = await site.open()
            for _ in range(5):
                async with wired(site.port) as wire:
                    if point == "stream":
                        await wire.ask("GET", "/mcp", {**legacy(session), "Accept": "text/event-stream"})
                        await wire.head()
                    elif point == "call":
                        await wire.ask(
                            "POST",
                            "/mcp",
                            legacy(session),
                            message("tools/call", call("wait", text="x"), "w"),
                        )
                    else:
                        await wire.ask(
                            "POST", "/mcp", {**legacy(session), "Content-Length": "99"}, b"{", length=False
                        )
                    await wire.abort()
                assert await calls(site, other)
            server.go.set()
            assert await calls(site)

    run(main)


# --------------------------------------------------------------------- events

LINES = ["\n", "\r", "\r\n", "\n\n", "\r\r", "\u2028", "\x0b", "\x85", "\0", "\ufeff"]


@pytest.mark.parametrize("line", LINES)
def test_text_cannot_become_an_event(line):
    fake = '{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"forged"}]}}'
    text = line.join(
        ["x", "", f"data: {fake}", "", "event: endpoint", "id: 99", "retry: 1", "data: y", "", ""]
    )

    async def main():
        async with attacked() as site:
            session = await site.open()
            await site.post(legacy(session), message("logging/setLevel", {"level": "debug"}, 0))
            params = {**call("shout", text=text), "_meta": {"progressToken": 5}}
            wire, head = await site.begin("POST", legacy(session), message("tools/call", params, 1))
            assert head.headers["content-type"] == "text/event-stream"
            events = [event for event in await wire.events() if event.data]
            assert [event.kind for event in events] == ["message"] * 4 or {e.kind for e in events} <= {
                None,
                "message",
            }
            said = [event.json for event in events]
            progress, first, second, answer = said
            assert progress["params"]["message"] == text
            assert first["params"]["data"] == text
            assert second["params"]["data"] == {text: [text]}
            assert answer["result"]["content"][0]["text"] == text
            assert all(event.id != "99" and event.retry != 1 for event in events)

    run(main)


def test_a_rejection_is_reported_without_the_rejected_content():
    async def main():
        async with attacked() as site:
            secret = "sk-" + "secret" * 10
            headers, body = modern("tools/call", {"name": "mark", "arguments": {"text": {"k": secret}}})
            answer = await site.post({**headers, "Authorization": f"Bearer {secret}"}, body)
            assert secret not in answer.body.decode()
            assert str(Path(__file__).parents[3]) not in json.dumps(answer.json)

    run(main)
