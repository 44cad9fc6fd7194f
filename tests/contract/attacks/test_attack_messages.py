"""Messages that a hostile client sends to a server: bombs, confused ids, spoofed notifications, odd URIs.

Over HTTP on real sockets and, for attacks on a single stream, to a real process; `test_advisories` has the
sources.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import PureWindowsPath
from typing import Any

import pytest

from attacked_server import Victim, attacked, calls
from hosted import call, legacy, message, modern, run
from raw_http import wired

MIB = 1024 * 1024


def bare(params: str, head: str = '"id":1,"method":"tools/call"') -> bytes:
    return f'{{"jsonrpc":"2.0",{head},"params":{params}}}'.encode()


def told(text: str) -> bytes:
    return bare(f'{{"name":"mark","arguments":{{"text":{text}}}}}')


BOMBS: dict[str, bytes] = {
    "100 000 lists": told("[" * 100_000 + "]" * 100_000),
    "a million lists without end": b"[" * 1_000_000,
    "100 000 objects": told('{"a":' * 100_000 + "1" + "}" * 100_000),
    "a million brackets in the envelope": bare("[]", '"id":' + "[" * 1_000_000),
    "4 000 digits": told("9" * 4000),
    "an exponent of a million digits": told("1e" + "9" * 1_000_000),
    "an id of three million digits": bare("{}", '"id":' + "9" * 3_000_000 + ',"method":"ping"'),
    "200 000 members": told("{" + ",".join(f'"k{n}":1' for n in range(200_000)) + "}"),
    "a million nulls": told("[" + "null," * 999_999 + "null]"),
    "20 000 members of the envelope": bare("{}", ",".join(f'"k{n}":1' for n in range(20_000))),
    "a method twice": bare('{"name":"mark"}', '"id":1,"method":"tools/list","method":"tools/call"'),
    "parameters twice": bare('{"name":"x"},"params":{"name":"mark","arguments":{"text":"x"}}'),
    "an id twice": bare("{}", '"id":1,"id":2,"method":"ping"'),
    "names in capitals": b'{"JSONRPC":"2.0","ID":1,"METHOD":"tools/call","PARAMS":{"name":"mark"}}',
    "names with a long s": bare("{}")
    .replace(b'"params"', '"param\u017f"'.encode())
    .replace(b"jsonrpc", b"Jsonrpc"),
    "NaN": told("NaN"),
    "no UTF-8": told('"x"').replace(b'"x"', b'"\xc0\xaf"'),
    "UTF-16": told('"x"').decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + told('"x"'),
    "zeros": bytes(100_000),
    "a string without end": b'"' + b"a" * 1_000_000,
    "a million escapes": b'{"jsonrpc":"2.0","id":1,"method":"' + rb"\u0000" * 100_000 + b'"}',
    "spaces": b" " * 3_000_000,
    "comments": b"/* " + b"*" * 100_000 + b"*/ {}",
    "a batch of a million": b"[" + b"1," * 999_999 + b"1]",
    "a batch of requests": b"[" + b",".join(message("ping", id=n) for n in range(10_000)) + b"]",
}


@pytest.mark.parametrize("era", ["session", "stateless"])
def test_a_bomb_is_rejected_and_other_clients_are_served(era):
    async def main():
        server = Victim()
        async with attacked(server) as site:
            session = await site.open()
            headers = legacy(session) if era == "session" else modern("tools/call", call("mark"))[0]
            for name, bomb in BOMBS.items():
                answer = await site.post(headers, bomb)
                refused = (
                    answer.status >= 400 or "error" in answer.json or answer.json["result"].get("isError")
                )
                assert refused, (name, answer)
                assert answer.status < 500, (name, answer)
                assert len(answer.body) < 2000, name
            assert server.marks == []
            assert await calls(site)
            assert await calls(site, session)

    run(main)


PROGRAM = """
from toolpost import Server
server = Server("victim")
@server.tool
def mark(text: str) -> str:
    return text
server.run()
"""


def test_a_process_survives_all_bombs_on_one_stream():
    async def main():
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, stdin=pipe, stdout=pipe, limit=8 * MIB
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            hello = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "x", "version": "1"},
            }
            process.stdin.write(message("initialize", hello, "open") + b"\n")
            process.stdin.write(message("notifications/initialized") + b"\n")
            for bomb in [*BOMBS.values(), b"x" * (5 * MIB), b"", b"\r", b"\xff" * 1000]:
                process.stdin.write(bomb.replace(b"\n", b" ") + b"\n")
                await process.stdin.drain()
            process.stdin.write(message("tools/call", call("mark", text="fine"), "last") + b"\n")
            while (line := await process.stdout.readline()) and json.loads(line).get("id") != "last":
                assert len(line) < 3000, line[:200]
            assert json.loads(line)["result"]["content"][0]["text"] == "fine"
            process.stdin.close()
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    run(main)


# --------------------------------------------------------------------- keys twice

META = (
    '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":'
    '{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}'
)
TWICE = {
    "a tool": f'{{"name":"list","arguments":{{"text":"x"}},{META},"name":"mark"}}',
    "an escaped tool": f'{{"name":"list","arguments":{{"text":"x"}},{META},"n\\u0061me":"mark"}}',
    "arguments": f'{{"name":"mark","arguments":{{}},{META},"arguments":{{"text":"x"}}}}',
    "an argument": f'{{"name":"mark","arguments":{{"text":"y","text":"x"}},{META}}}',
    "behind quotes": f'{{"name":"mark","arguments":{{"text":"y","text":"\\u0022\\u0022"}},{META}}}',
    "beside a number": f'{{"name":"mark","arguments":{{"text":"y","text":"x","n":1{"0" * 400}}},{META}}}',
    "beside half an emoji": f'{{"name":"mark","arguments":{{"text":"y","text":"x","n":"\\ud83d"}},{META}}}',
    "a key of _meta": f'{{"name":"mark","arguments":{{"text":"x"}},{META[:-1]},"a":1,"a":2}}}}',
    "a key in a list": f'{{"name":"mark","arguments":{{"text":"x","more":[{{"a":{{"":0,"":0}}}}]}},{META}}}',
}


@pytest.mark.parametrize("name", list(TWICE))
def test_a_key_that_stands_there_twice_reaches_no_tool(name):
    """A gateway that reads bodies could see another tool than the one that runs."""
    body = bare(TWICE[name])

    async def main():
        server = Victim()
        async with attacked(server) as site:
            session = await site.open()
            for headers in (legacy(session), modern("tools/call", call("mark", text="x"))[0]):
                answer = await site.post(headers, body)
                assert answer.status in {200, 400}
                told = answer.json["error"]["message"]
                assert "twice" in told or (name == "beside half an emoji" and "Parse error" in told)
            assert server.marks == []

    run(main)


def test_a_key_that_stands_there_twice_reaches_no_tool_of_a_process():
    program = "import sys\nfrom toolpost import Server\nserver = Server('victim')\n"
    program += "@server.tool\ndef mark(text: str) -> str:\n    sys.exit(text)\nserver.run()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=b"".join(bare(params) + b"\n" for params in TWICE.values()),
        capture_output=True,
        check=True,
    )
    codes = [json.loads(line)["error"]["code"] for line in done.stdout.splitlines()]
    assert len(codes) == len(TWICE)
    assert set(codes) <= {-32600, -32700}


def test_keys_and_quotes_in_values_are_no_duplicates():
    text = '{"text":1,"text":2} \\ \\" \u0022 \n'

    async def main():
        server = Victim()
        async with attacked(server) as site:
            headers, body = modern("tools/call", call("mark", text=text))
            for each in (body, body.replace(b'\\"', b"\\u0022")):
                assert (await site.post(headers, each)).status == 200
            assert server.marks == [text] * 2

    run(main)


# --------------------------------------------------------------------- ids


@pytest.mark.parametrize("key", ["true", "false", "1.5", "1.0", "1e0", "[]", "{}", "[1]", "null", "NaN"])
def test_an_invalid_id_reaches_no_tool(key):
    async def main():
        server = Victim()
        async with attacked(server) as site:
            session = await site.open()
            body = bare('{"name":"mark","arguments":{"text":"x"}}', f'"id":{key},"method":"tools/call"')
            answer = await site.post(legacy(session), body)
            assert answer.status == 400
            headers, stateless = modern("tools/call", call("mark", text="x"))
            assert (
                await site.post(headers, stateless.replace(b'"id": 1', b'"id": ' + key.encode()))
            ).status == 400
            assert server.marks == []

    run(main)


def test_a_number_and_its_digits_are_different_ids():
    async def main():
        server = Victim()
        async with attacked(server) as site:
            session = await site.open()

            async def wait(key: Any) -> Any:
                return await site.post(
                    legacy(session), message("tools/call", call("wait", text=repr(key)), key)
                )

            calls = {key: asyncio.create_task(wait(key)) for key in (1, "1", "1.0", "true")}
            for _ in calls:
                await server.begun.get()
            in_use = await site.post(legacy(session), message("tools/call", call("mark", text="x"), "1"))
            assert "error" in in_use.json
            for wrong in ('"01"', "true", "1.0", '" 1"', "[1]"):
                body = bare(f'{{"requestId":{wrong}}}', '"method":"notifications/cancelled"')
                assert (await site.post(legacy(session), body)).status in {202, 400}
            cancelled = await site.post(
                legacy(session), message("notifications/cancelled", {"requestId": "1"})
            )
            assert cancelled.status == 202
            await calls.pop("1")
            server.go.set()
            for key, task in calls.items():
                answer = (await task).json
                assert (answer["id"], type(answer["id"])) == (key, type(key))
                assert answer["result"]["content"][0]["text"] == repr(key)

    run(main)


# --------------------------------------------------------------------- notifications of other clients

SPOOFED = [
    ("notifications/cancelled", {"requestId": "w", "reason": "spoofed"}),
    ("notifications/progress", {"progressToken": "t", "progress": 1}),
    ("notifications/elicitation/complete", {"elicitationId": "e"}),
    ("notifications/tools/list_changed", {}),
    ("notifications/resources/updated", {"uri": "files://all/x"}),
    ("notifications/message", {"level": "error", "data": "x"}),
    ("notifications/tasks/status", {"taskId": "x", "status": "cancelled"}),
    ("notifications/initialized", {}),
]


def test_a_client_cannot_act_in_another_session():
    async def main():
        server = Victim()
        async with attacked(server) as site:
            ours, theirs = await site.open(), await site.open()
            params = {**call("wait", text="ours"), "_meta": {"progressToken": "t"}}
            waiting = asyncio.create_task(site.post(legacy(ours), message("tools/call", params, "w")))
            await server.begun.get()
            async with wired(site.port) as listening:
                await listening.ask("GET", "/mcp", {**legacy(ours), "Accept": "text/event-stream"})
                await listening.head()
                for method, said in SPOOFED:
                    assert (await site.post(legacy(theirs), message(method, said))).status in {202, 400}
                for key in (0, 1, "w", 2**53, -1):
                    kinds: list[dict[str, Any]] = [{"result": {}}, {"error": {"code": 1, "message": "x"}}]
                    for kind in kinds:
                        answer = await site.post(legacy(theirs), message(id=key, **kind))
                        assert answer.status in {202, 400}
                headers = modern("notifications/cancelled")[0]
                await site.post(headers, message("notifications/cancelled", {"requestId": "w"}))
                # The list of their own session may be reported; nothing of ours is sent to them.
                assert (await site.ask("DELETE", "/mcp", legacy(theirs))).status == 200
                assert not waiting.done()
                server.go.set()
                assert (await waiting).json["result"]["content"][0]["text"] == "ours"
                assert (await site.ask("DELETE", "/mcp", legacy(ours))).status == 200
                assert [event for event in await listening.events() if event.data] == []

    run(main)


# --------------------------------------------------------------------- templates

OUT = [
    "..",
    "../etc/passwd",
    "../../../../etc/passwd",
    "a/../../etc/passwd",
    "./../x",
    "%2e%2e",
    "%2e%2e%2fetc%2fpasswd",
    "%2E%2E/x",
    ".%2e/x",
    "%2e./x",
    "..%5c..%5cx",
    "..%2f..%2fx",
    "%5c%5chost%5cshare",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "//etc/passwd",
    "a%00.txt",
    "%00",
    "a/%2e%2e/b",
    "a%2f..%2fb",
    "..;/x",
    "~%2f.ssh",
    "%c0%ae%c0%ae/x",
    "%252e%252e%252fx",
    "%u002e%u002e/x",
    "a%0d%0ab",
    "a%ff",
]


@pytest.mark.parametrize("template", ["files://all/{}", "tree://all/{}", "deep://all/{}"])
def test_no_uri_escapes_the_folder_of_a_function(template, tmp_path):
    async def main():
        server = Victim()
        async with attacked(server) as site:
            for path in OUT:
                headers, body = modern("resources/read", {"uri": template.format(path)})
                answer = await site.post(headers, body)
                assert answer.status in {200, 400, 404}, (path, answer)
            root = tmp_path / "all"
            for value in server.found:
                for part in value if isinstance(value, list) else [value]:
                    assert (root / part).resolve().is_relative_to(root), (value, server.found)
                    elsewhere = PureWindowsPath("all", part)
                    assert elsewhere.is_relative_to("all"), value
                    assert ".." not in elsewhere.parts, value
                    assert "\0" not in part
            assert await calls(site)

    run(main)


@pytest.mark.parametrize(
    "uri",
    [
        "deep://all" + "/a" * 50_000 + "!%",
        "deep://all/" + "a," * 50_000 + "\u0000",
        "tags://all?" + "&".join("tags=a" for _ in range(20_000)) + "&",
        "tags://all?tags=" + "a," * 50_000 + "#",
        "tags://all?" + "tags=" * 20_000,
        "deep://all" + "/" * 100_000,
        "files://all/" + "a" * 120_000 + "/",
        "tree://all/" + "%61" * 40_000 + "%",
    ],
    ids=["parts", "commas", "pairs", "values", "names", "slashes", "letters", "escapes"],
)
def test_matching_a_nearly_fitting_uri_takes_linear_time(uri):
    async def main():
        async with attacked() as site:
            session = await site.open()
            answers = [
                await site.post(legacy(session), message("resources/read", {"uri": uri}, n)) for n in range(3)
            ]
            assert all(answer.status in {200, 400} for answer in answers)
            assert await calls(site, session)

    run(main)
