"""What a header may say: values in both directions, media types, annotations and what they mirror."""

import re
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from fuzz.cuts import pumped
from toolpost.errors import HeaderMismatch
from toolpost.protocol import headers

__all__ = ["TOKENS", "target"]

TOKENS: Final = (
    *(b"=?base64?", b"?=", b"=?base64?=", b"application/json", b"text/event-stream", b"*/*", b"text/*"),
    *(b";q=0", b";q=0.000", b';charset="utf-8"', b"charset=utf-8", b",", b";", b'"', b"\\", b"\t", b"\x7f"),
    *(b'"x-mcp-header":"A"', b'"type":"integer"', b'"properties":', b'"schema":', b'"arguments":', b"-0.0"),
    *(b"9007199254740993", b"1e15", b"\xc3\xa9", b"\xe2\x82\xac", b"null", b"true", b"$defs", b"oneOf"),
)
_ILLEGAL: Final = re.compile(r"[^\t\x20-\x7e]")
MEDIA: Final = ("application/json", "text/event-stream")


def target(data: bytes) -> None:
    """Values come back as they were; whatever is refused is refused as documented."""
    text = data.decode("latin-1")
    _value(text)
    _value(data.decode("utf-8", "replace"))
    _media(text)
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        _tool(msgspec.json.decode(data))
    for long in pumped(data, 32 * 1024):
        _value(long.decode("latin-1"))
        _media(long.decode("latin-1"))


def _value(text: str) -> None:
    sent = headers.encode_value(text)
    assert sent.isascii()
    assert sent == sent.strip()
    assert not sent or sent.isprintable(), "what is sent may not stand in a header"
    assert headers.decode_value(f" \t{sent} ") == text, "there and back"
    headers.check_name(sent.encode(), text)
    assert len(headers.quote_value(text)) < 1000
    _received(text)
    if headers.is_valid_session_id(text):
        assert all(0x21 <= ord(letter) <= 0x7E for letter in text)


def _received(text: str) -> None:
    plain = text.strip(" \t")
    marked = plain.startswith("=?base64?") and plain.endswith("?=") and plain != "=?base64?="
    try:
        got = headers.decode_value(text)
    except HeaderMismatch:
        assert marked or _ILLEGAL.search(plain), "a plain value was refused"
        return
    assert (got != plain) == marked, "what is Base64 is decoded, and nothing else"
    assert not _ILLEGAL.search(plain)
    assert headers.decode_value(headers.encode_value(got)) == got
    headers.check_name(text.encode("latin-1", "replace"), got)


def _media(text: str) -> None:
    for media in MEDIA:
        found = headers.accepts(text, media)
        if '"' not in text:
            assert headers.accepts(",".join(reversed(text.split(","))), media) is found, "the order counts"
            assert headers.accepts(text.upper(), media) is found or not text.isascii(), "the case counts"
        if text.strip(" \t") and not found:
            assert headers.accepts(f"{text},{media}", media) or '"' in text or media in text.lower()
    if headers.is_json(text):
        assert text.lower().strip(" \t").startswith("application/json")


def _tool(value: Any) -> None:
    """An object with the `schema` of a tool and the `arguments` of a call."""
    if not isinstance(value, dict):
        return
    members = cast("dict[str, Any]", value)
    schema, arguments = members.get("schema", members), members.get("arguments", {})
    if not isinstance(schema, dict) or not isinstance(arguments, dict):
        return
    arguments = cast("dict[str, Any]", arguments)
    try:
        annotated = headers.find_annotations(cast("dict[str, Any]", schema))
    except ValueError as error:
        assert len(str(error)) < 2000
        return
    try:
        sent = headers.mirror_arguments(annotated, arguments)
    except ValueError as error:
        assert len(str(error)) < 2000
        return
    headers.verify_arguments(annotated, arguments, sent)
    _arrived(annotated, arguments, members.get("headers"))
    for name in annotated:
        with suppress(HeaderMismatch):
            headers.verify_arguments(annotated, arguments, sent | {name: "another, which it is not"})
            raise AssertionError("a header that says something else was accepted")


def _arrived(annotated: dict[str, tuple[str, ...]], arguments: dict[str, Any], got: object) -> None:
    """Headers that somebody else has written."""
    if isinstance(got, dict):
        texts = {name: text for name, text in cast("dict[str, Any]", got).items() if isinstance(text, str)}
        with suppress(HeaderMismatch):
            headers.verify_arguments(annotated, arguments, texts)
            said = {name: headers.decode_value(texts[name]) for name in annotated if name in texts}
            assert said.keys() == headers.mirror_arguments(annotated, arguments).keys(), "one is missing"
