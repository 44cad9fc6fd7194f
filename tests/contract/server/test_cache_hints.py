"""How long clients may cache results: set for all methods, by method, and by resource."""

import asyncio
import json
from typing import Any

import pytest

from revision_dates import LATEST
from toolpost import Cache, Client, Server

MINUTE = Cache(ttl=60)
SHARED = Cache(ttl=5, scope="public")
READS = ("a://fixed", "a://rows/1", "a://own", "a://part")


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"ttl": -1}, ValueError, "ttl must be finite and at least 0 seconds"),
        ({"ttl": float("nan")}, ValueError, "ttl must be finite and at least 0 seconds"),
        ({"ttl": float("inf")}, ValueError, "must be finite"),
        ({"ttl": 1e300}, ValueError, "ttl must be at most 9007199254741 seconds"),
        ({"ttl": "60"}, TypeError, "ttl must be a number of seconds, not '60'"),
        ({"ttl": True}, TypeError, "ttl must be a number of seconds, not True"),
        ({"ttl": None}, TypeError, "ttl must be a number of seconds, not None"),
        ({"ttl": 1, "scope": "shared"}, ValueError, 'scope must be "public" or "private", not \'shared\''),
        ({"ttl": 1, "scope": []}, ValueError, "scope must be"),
    ],
)
def test_invalid_hints_are_rejected(arguments, kind, said):
    with pytest.raises(kind) as refused:
        Cache(**arguments)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("cache", "kind", "said"),
    [
        (60, TypeError, "cache must be a Cache, such as Cache(ttl=60), not 60"),
        ({"tools": MINUTE}, ValueError, "cache: unknown method 'tools' (expected one of: *, server/discover"),
        ({"tools/call": MINUTE}, ValueError, "cache: unknown method 'tools/call'"),
        ({"tools/list": 60}, TypeError, "cache['tools/list'] must be a Cache"),
    ],
)
def test_an_invalid_cache_setting_is_refused_at_once(cache, kind, said):
    with pytest.raises(kind) as refused:
        Server("x", cache=cache)
    assert said in str(refused.value)


def test_so_is_a_resource():
    wrong: Any = 60
    with pytest.raises(TypeError, match="cache must be a Cache"):
        Server("x").resource("a://b", cache=wrong)


LISTS = ("prompts/list", "resources/list", "resources/templates/list", "tools/list")
OWN = {"a://own": {(7, "public")}, "a://part": {(7, "private")}}


def said(lists: tuple[int, str], reads: tuple[int, str]) -> dict[str, set[tuple[int, str]]]:
    return {**{name: {lists} for name in LISTS}, **{uri: {reads} for uri in READS}, **OWN}


def test_a_resource_may_say_it_for_itself():
    server = Server("x", cache=MINUTE)

    @server.resource("b://fixed", cache=SHARED)
    def fixed() -> str:
        return ""

    @server.resource("b://rows/{n}", cache=SHARED)
    def row(n: int) -> str:
        return str(n)

    @server.resource("b://other")
    def other() -> str:
        return ""

    async def main() -> list[tuple[Any, Any]]:
        async with Client(server, revision=LATEST.date) as client:
            uris = ("b://fixed", "b://rows/1", "b://other")
            raws = [(await client.request("resources/read", {"uri": uri})).raw or b"" for uri in uris]
        return [(read["ttlMs"], read["cacheScope"]) for read in map(json.loads, raws)]

    assert asyncio.run(main()) == [(5000, "public"), (5000, "public"), (60_000, "private")]
