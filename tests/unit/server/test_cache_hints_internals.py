"""How long clients may cache results: set for all methods, by method, and by resource."""

import asyncio
import json
from typing import Any, get_args

import pytest

from toolpost import Cache, Client, Server
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import LATEST, REVISIONS
from toolpost.server.registry.registry import CacheableMethod, apply_cache, expand_cache_option
from toolpost.types import CacheableResult, ReadResourceResult, ResourceContents, Result

MINUTE = Cache(ttl=60)
SHARED = Cache(ttl=5, scope="public")
METHODS = {*get_args(CacheableMethod)} - {"*"}
READS = ("a://fixed", "a://rows/1", "a://own", "a://part")


# --------------------------------------------------------------------- the word of the author


@pytest.mark.requirement("CACHE-2")
@pytest.mark.parametrize(
    ("ttl", "told"), [(0, 0), (1, 1000), (0.25, 250), (1.001, 1001), (0.0001, 0), (86_400, 86_400_000)]
)
def test_seconds_are_sent_in_milliseconds(ttl, told):
    cache = Cache(ttl)
    assert (cache.ttl_ms, cache.scope) == (told, "private")
    assert type(cache.ttl_ms) is int


@pytest.mark.requirement("CACHE-1")
def test_the_methods_are_those_of_the_protocol():
    kinds = {name: row.result for name, row in LATEST.requests["client"].items()}
    assert {name for name, kind in kinds.items() if kind and issubclass(kind, CacheableResult)} == METHODS


@pytest.mark.parametrize(
    ("cache", "found"),
    [
        (None, {}),
        ({}, {}),
        (MINUTE, dict.fromkeys(METHODS, MINUTE)),
        ({"*": MINUTE}, dict.fromkeys(METHODS, MINUTE)),
        ({"tools/list": MINUTE}, {"tools/list": MINUTE}),
        ({"*": MINUTE, "tools/list": SHARED}, {**dict.fromkeys(METHODS, MINUTE), "tools/list": SHARED}),
    ],
)
def test_one_for_all_or_some_by_method(cache, found):
    assert expand_cache_option(cache) == found
    server = Server("x", cache=cache)
    assert {method: server.cache_for(method) for method in METHODS} == {
        method: found.get(method) for method in METHODS
    }
    assert server.cache_for("tools/call") is None


def test_cache_hints_of_a_result_are_kept():
    own = ReadResourceResult(contents=[], ttl_ms=1)
    assert apply_cache(own, MINUTE) is own
    shared = ReadResourceResult(contents=[], cache_scope="public")
    assert apply_cache(shared, MINUTE) is shared
    silent = ReadResourceResult(contents=[])
    assert apply_cache(silent, None) is silent
    assert (silent.ttl_ms, apply_cache(silent, MINUTE).ttl_ms) == (None, 60_000)  # it may be the author's own
    other = Result()
    assert apply_cache(other, MINUTE) is other


# --------------------------------------------------------------------- what clients receive


def library(**options: Any) -> Server:
    """A server with something of each kind."""
    server = Server("library", page_size=1, **options)
    for number in range(2):
        server.tool(name=f"tool_{number}")(lambda: "")
        server.prompt(name=f"prompt_{number}")(lambda: "")

    @server.resource("a://fixed")
    def fixed() -> str:
        return "words"

    @server.resource("a://rows/{n}")
    def row(n: int) -> str:
        return str(n)

    @server.resource("a://own")
    def own() -> ReadResourceResult:
        contents = [ResourceContents("a://own", text="")]
        return ReadResourceResult(contents=contents, ttl_ms=7, cache_scope="public")

    @server.resource("a://part")
    def part() -> ReadResourceResult:
        return ReadResourceResult(contents=[ResourceContents("a://part", text="")], ttl_ms=7)

    return server


def told(server: Server, revision: str = LATEST.date) -> dict[str, set[tuple[Any, Any]]]:
    """Return the cache hints of each list, all pages together, and of each resource."""

    async def main() -> dict[str, set[tuple[Any, Any]]]:
        found: dict[str, set[tuple[Any, Any]]] = {}
        async with Client(server, revision=revision) as client:

            async def ask(method: str, params: dict[str, Any]) -> Any:
                raw = json.loads((await client.request(method, params)).raw or b"")
                said = raw.get("ttlMs"), raw.get("cacheScope")
                found.setdefault(params.get("uri", method), set()).add(said)
                return raw.get("nextCursor")

            for method in sorted(method for method in METHODS if method.endswith("list")):
                cursor = await ask(method, {})
                while cursor:
                    cursor = await ask(method, {"cursor": cursor})
            for uri in READS:
                await ask("resources/read", {"uri": uri})
        return found

    return asyncio.run(main())


LISTS = ("prompts/list", "resources/list", "resources/templates/list", "tools/list")
NOTHING = (0, "private")
OWN = {"a://own": {(7, "public")}, "a://part": {(7, "private")}}


def said(lists: tuple[int, str], reads: tuple[int, str]) -> dict[str, set[tuple[int, str]]]:
    return {**{name: {lists} for name in LISTS}, **{uri: {reads} for uri in READS}, **OWN}


@pytest.mark.requirement("CACHE-1", "CACHE-2", "CACHE-3")
@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        (None, said(NOTHING, NOTHING)),
        (SHARED, said((5000, "public"), (5000, "public"))),
        ({"resources/read": MINUTE}, said(NOTHING, (60_000, "private"))),
        ({"tools/list": SHARED}, {**said(NOTHING, NOTHING), "tools/list": {(5000, "public")}}),
        (
            {"*": SHARED, "prompts/list": MINUTE},
            {**said((5000, "public"), (5000, "public")), "prompts/list": {(60_000, "private")}},
        ),
    ],
    ids=["none", "all", "reads", "tools", "most"],
)
def test_clients_are_notified(cache, expected):
    assert told(library(cache=cache)) == expected


@pytest.mark.parametrize("revision", [date for date in DATES if not REVISIONS[date].stateless])
def test_clients_of_the_session_era_are_not(revision):
    found = told(library(cache=SHARED), revision)
    assert {*found} == {*LISTS, *READS}
    assert all(one == {(None, None)} for one in found.values())


@pytest.mark.requirement("CACHE-4")
def test_a_selection_is_always_private():
    server = library(cache=SHARED)
    part = server.select(lambda _: True)
    assert told(part) == said((5000, "private"), (5000, "private"))
    assert part.cache_for("server/discover") == Cache(ttl=5)
    assert told(server) == said((5000, "public"), (5000, "public"))
