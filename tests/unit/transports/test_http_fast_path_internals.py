"""Calls over HTTP that end at once: what their heads have settled is settled for them alone, and what is kept
for others is kept for them as soon as they wait."""

import asyncio
import json
from typing import Any

import pytest

from hosted import NEW, OLD, call, hosted, legacy, message, modern, run
from toolpost import Server
from toolpost.protocol.mould import Mould
from toolpost.protocol.revisions import REVISIONS

LONG = 400
"""Bytes of a body. All have as many, so that their heads are the same."""


def adder(**options: Any) -> Server:
    server = Server("s", **options)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def sub(a: int, b: int) -> int:
        return a - b

    return server


def test_a_call_that_is_known_again_has_its_own_id_and_its_own_arguments(monkeypatch: pytest.MonkeyPatch):
    server = adder()
    called: list[str] = []
    known: list[Any] = []

    def read(mould: Mould, data: bytes) -> Any:
        incoming = inner(mould, data)
        known.extend([] if incoming is None else [incoming.id])
        return incoming

    inner = Mould.read
    monkeypatch.setattr(Mould, "read", read)

    @server.tool
    async def tell(word: str, pad: str, wait: bool = False) -> str:
        called.append(word)
        if wait:
            await asyncio.sleep(0)
        if word == "bad":
            raise ValueError("what a word")
        return word

    async def main():
        async with hosted(server) as site:

            async def told(number: int, word: Any, **more: Any) -> Any:
                arguments = {"word": word, **more, "pad": ""}
                _, short = modern("tools/call", call("tell", **arguments), number)
                arguments["pad"] = "_" * (LONG - len(short))
                answer = await site.post(*modern("tools/call", call("tell", **arguments), number))
                told = json.loads(answer.body)
                assert told["id"] == number
                return told.get("result") or told["error"]["code"]

            for number in range(1, 12):
                assert (await told(number, f"say {number}"))["content"][0]["text"] == f"say {number}"
            assert (await told(12, "slow", wait=True))["content"][0]["text"] == "slow"
            assert (await told(13, "bad"))["isError"]
            refused = await told(14, 5678)
            assert (refused["isError"], "word" in refused["content"][0]["text"]) == (True, True)
            assert len(called) == 13  # none of them twice
            assert known == list(range(4, 15))
            server.tools.remove("tell")
            assert await told(15, "gone") == -32602

    run(main)


@pytest.mark.parametrize("revision", [NEW, OLD])
@pytest.mark.parametrize("bound", ["limit", "max_calls"])
def test_a_call_that_has_begun_is_not_refused_any_more(bound: str, revision: str):
    """Its function may have begun others, so that there is no room for it; it is counted all the same."""
    server = Server("s", max_in_flight=1 if bound == "limit" else 100)
    load: Any = None

    @server.tool
    async def begins() -> int:
        peer = next(iter(load._peers), "others")
        load.add("others" if bound == "max_calls" else peer)
        await asyncio.sleep(0)
        load.end("others" if bound == "max_calls" else peer)
        return 7

    async def main():
        nonlocal load
        async with hosted(server, max_calls=1 if bound == "max_calls" else 100) as site:
            session = "" if REVISIONS[revision].stateless else await site.open(revision)
            assert (await site.post(*modern("tools/list"))).status == 200
            load = site.app._life.load
            for number in (1, 2, 2):
                params = call("begins")
                if session:
                    answer = await site.post(legacy(session), message("tools/call", params, number))
                else:
                    answer = await site.post(*modern("tools/call", params, number))
                assert "result" in json.loads(answer.body), answer
                assert (load.calls, load._peers) == (0, {})

    run(main)
