"""Recorded and replayed conversations, in both eras and over every transport."""

import asyncio

import pytest

from calculator import calculator
from toolpost import Client, Http, RPCError, SyncClient
from toolpost.errors import RequestFailed
from toolpost.json_schema import get_member
from toolpost.testing import read_tape, record, replay
from toolpost.testing.playback import matches_pattern, matches_recorded
from toolpost.transports.backends.asgi import AsgiBackend


def test_a_client_that_connects_again_goes_on_with_the_file(tmp_path):
    path = tmp_path / "talk.jsonl"

    async def main():
        client = Client(record(calculator(), path))
        for n in range(2):
            async with client as mcp:
                await mcp.call_tool("add", {"a": n, "b": 1})

    asyncio.run(main())
    assert [line.link for line in read_tape(path)[1] if get_member(line.message, "params", "name")] == [1, 2]
    assert replay(path).name == read_tape(path)[0].target != ""


class Refusing:
    """Carries HTTP requests, but not every one."""

    def __init__(self, app):
        self._inner = AsgiBackend(app)

    def send(self, method, url, headers, body=None):
        if b"tools/call" in (body or b""):
            raise RequestFailed("there is no way", sent=False)
        return self._inner.send(method, url, headers, body)

    async def close(self):
        await self._inner.close()


def test_a_request_that_is_lost_over_http_is_kept_as_such(tmp_path):
    path = tmp_path / "talk.jsonl"
    target = Http("http://127.0.0.1/mcp", http=Refusing(calculator().asgi()))
    with SyncClient(record(target, path), retries=0) as mcp, pytest.raises(RequestFailed):
        mcp.call_tool("add", {"a": 1, "b": 2})
    with (
        SyncClient(replay(path)) as mcp,
        pytest.raises(RPCError, match=r"no recorded response: there is no way"),
    ):
        mcp.call_tool("add", {"a": 1, "b": 2})


# --------------------------------------------------------------------- comparing


@pytest.mark.parametrize(
    ("recorded", "now", "same"),
    [
        ({"a": [1, "x"]}, {"a": [1, "x"]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1], [1, 2], False),
        (1, True, False),
        (1, 1.0, True),
        ("<masked>", "anything", True),
        ("<masked>", 5, True),
        ('{"a":1,"key":"<masked>"}', '{ "key": "b", "a": 1 }', True),
        ('{"a":1,"key":"<masked>"}', '{ "key": "b", "a": 2 }', False),
        ("{<masked>}", "[", False),
        ("a <masked> c", "a b c", True),
        ("a <masked> c", "a b d", False),
        (None, {}, False),
    ],
)
def test_what_is_the_same(recorded, now, same):
    assert matches_recorded(recorded, now) is same


@pytest.mark.parametrize(
    ("pattern", "text", "fit"),
    [
        ("a*c*e", "abcde", True),
        ("a*c*e", "abde", False),
        ("*", "", True),
        ("a*a", "a", False),
        ("b*", "ab", False),
    ],
)
def test_what_fits(pattern, text, fit):
    assert matches_pattern(pattern, text, "*") is fit
