"""KnownHeads of HTTP requests: read once for all that look the same, and what is never kept of them."""

from typing import Any

import pytest

from hosted import kitchen, legacy, modern, run, serving
from toolpost.server.http import request as heads
from toolpost.server.http.request import MAX_HEAD, MAX_LINES, Head, KnownHeads


def scope(*headers: Any, method: str = "POST", path: str = "/mcp", **more: Any) -> dict[str, Any]:
    return {"method": method, "path": path, "headers": list(headers), **more}


def kept(known: KnownHeads, one: dict[str, Any]) -> Head:
    """The head of a request that may pass, and has come before."""
    known.keep(known.get_head(one))
    head = known.get_head(one)
    known.keep(head)
    return head


def test_a_head_that_may_pass_is_known_again():
    known = KnownHeads()
    one = scope((b"host", b"a"), (b"accept", b"*/*"))
    assert known.get_head(one) is not known.get_head(one)
    first = kept(known, one)
    assert first.headers == {"host": "a", "accept": "*/*"}
    assert known.get_head(scope((b"host", b"a"), (b"accept", b"*/*"))) is first


@pytest.mark.parametrize(
    "other",
    [
        scope((b"host", b"b")),
        scope((b"host", b"a"), (b"origin", b"null")),
        scope((b"host", b"a"), method="GET"),
        scope((b"host", b"a"), path="/other"),
        scope((b"host", b"a"), root_path="/mcp"),
    ],
)
def test_a_head_that_differs_in_anything_is_another_one(other: dict[str, Any]):
    known = KnownHeads()
    first = kept(known, scope((b"host", b"a")))
    first.verb, first.fits = "passed", True
    head = known.get_head(other)
    assert head is not first
    assert (head.verb, head.fits) == (None, False)


@pytest.mark.parametrize(
    "name",
    [b"authorization", b"Authorization", b"cookie", b"dpop", b"x-api-key", b"mcp-param-city", b"traceparent"],
)
def test_a_head_with_anything_of_its_own_is_not_kept(name: bytes):
    known = KnownHeads()
    one = scope((b"host", b"a"), (name, b"secret"))
    assert kept(known, one).headers[name.decode()] == "secret"
    assert not known._known


@pytest.mark.parametrize(
    "large",
    [
        scope((b"host", b"a" * MAX_HEAD)),
        scope((b"host", b"a"), path="/mcp" + "/" * MAX_HEAD),
        scope(*[(b"accept", b"")] * (MAX_LINES + 1)),
    ],
    ids=["a long header", "a long path", "many headers"],
)
def test_a_large_head_is_not_kept(large: dict[str, Any]):
    known = KnownHeads()
    kept(known, large)
    assert not known._known


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(heads, "MAX_KEPT", 3)
    known = KnownHeads()
    for number in range(10):
        kept(known, scope((b"host", b"%d" % number)))
        assert 0 < len(known._known) <= 3


def test_a_head_that_comes_once_is_not_kept(monkeypatch):
    """Each that opens a session has another one."""
    monkeypatch.setattr(heads, "MAX_SEEN", 3)
    known = KnownHeads()
    for number in range(10):
        known.keep(known.get_head(scope((b"host", b"%d" % number))))
        assert not known._known
        assert 0 < len(known._seen) <= 3


def test_a_request_that_is_turned_away_leaves_nothing_behind():
    async def main():
        app: Any = kitchen().asgi()
        async with serving(app) as site:
            for target, more in (("/mcp", {"Host": "evil.example"}), ("/nothing", {}), ("/mcp/x" * 300, {})):
                answer = await site.ask("POST", target, {**legacy(revision=None), **more}, b"{}")
                assert answer.status in {403, 404}
            assert not app._head_cache._known
            assert (await site.post(*modern("tools/list"))).status == 200
            assert (await site.post(*modern("tools/list"))).status == 200
            assert len(app._head_cache._known) == 1

    run(main)


def test_headers_may_come_as_lists():
    listed = scope([b"host", b"a"], [b"accept", b"x"], [b"accept", b"y"])
    known = KnownHeads()
    assert kept(known, listed).headers == {"host": "a", "accept": "x, y"}
    assert not known._known


@pytest.mark.parametrize(
    ("given", "length"),
    [(b"17", 17), (b"", 0), (b"-1", 0), (b"1e3", 0), (b"\xb2", 0), (b"9" * 60_000, 10**18 - 1)],
)
def test_a_length_is_read_as_far_as_it_is_one(given: bytes, length: int):
    assert Head(scope((b"content-length", given))).length == length


def test_a_path_is_that_below_the_mount():
    assert Head(scope(path="/api/mcp", root_path="/api")).path == "/mcp"
    assert Head(scope(path="/mcp", root_path="/api")).path == "/mcp"
    assert Head(scope(path="/apis/mcp", root_path="/api")).path == "/apis/mcp"
    assert Head(scope(path="/mcp", root_path=None)).path == "/mcp"
