"""Resources and templates: the lists, and the contents."""

from base64 import b64encode
from dataclasses import dataclass

import pytest

from toolpost.server.registry.media import File, Image
from toolpost.server.registry.resources import to_read_result
from toolpost.types import ReadResourceResult, ResourceContents

PNG = b"\x89PNG\r\n\x1a\n..."
URI = "a:b"


@dataclass
class Point:
    x: int


def text(words: str, mime_type: str = "text/plain", uri: str = URI) -> ResourceContents:
    return ResourceContents(uri, text=words, mime_type=mime_type)


def blob(data: bytes, mime_type: str) -> ResourceContents:
    return ResourceContents(URI, blob=b64encode(data).decode(), mime_type=mime_type)


OWN = ResourceContents("other:c", text="own")


@pytest.mark.parametrize(
    ("value", "contents"),
    [
        ("words", [text("words")]),
        ("", [text("")]),
        (b"\x00", [blob(b"\x00", "application/octet-stream")]),
        (Image(PNG), [blob(PNG, "image/png")]),
        (File(b"a,b", mime_type="text/csv"), [text("a,b", "text/csv")]),
        (OWN, [OWN]),
        (
            [OWN, b"\x00", Image(PNG)],
            [OWN, blob(b"\x00", "application/octet-stream"), blob(PNG, "image/png")],
        ),
        ({"a": 1}, [text('{"a":1}', "application/json")]),
        (Point(1), [text('{"x":1}', "application/json")]),
        ([1, 2], [text("[1,2]", "application/json")]),
        ([OWN, 1], None),
        (["a", "b"], [text('["a","b"]', "application/json")]),
        ([], [text("[]", "application/json")]),
        (None, [text("null", "application/json")]),
    ],
    ids=range(14),
)
def test_return_values_become_contents(value, contents):
    result = to_read_result(value, URI, None)
    if contents is None:  # not all are parts, so it is one array of JSON
        [one] = result.contents
        assert one.mime_type == "application/json"
        return
    assert result.contents == contents


@pytest.mark.parametrize("value", ["words", b"bytes", Image(PNG), {"a": 1}], ids=range(4))
def test_the_declared_type_is_sent(value):
    [one] = to_read_result(value, URI, "application/x-mine").contents
    assert (one.uri, one.mime_type) == (URI, "application/x-mine")


def test_a_whole_result_passes_as_it_is():
    result = ReadResourceResult(contents=[OWN])
    assert to_read_result(result, URI, "text/plain") is result
