"""URI templates: a template and a URI, one a line."""

from contextlib import suppress
from typing import Final

import uritemplate

from fuzz.cuts import pumped
from toolpost.protocol.uri_template import MAX_VARIABLES, Expression, UriTemplate, UriValues, Variable

__all__ = ["TOKENS", "target"]

TOKENS: Final = (
    *(b"{", b"}", b"{a}", b"{+a}", b"{#a}", b"{.a,b}", b"{/a,b*}", b"{;a}", b"{?a,b*}", b"{&a}", b"{a:3}"),
    *(b"*", b"%2F", b"%2e%2e", b"%00", b"%5C", b"%", b"%C3%A9", b"..", b"/", b"?", b"#", b"&", b"=", b"\n"),
    *(b"file:///", b"\xc3\xa9", b"%25", b"a%2", b";a=", b'{"a":"', b'{"a":["', b'{"a":{"', b"://"),
)
_ENDS_PATH: Final = frozenset({"", ".", "/", ";"})
_UNSAFE: Final = frozenset("/\\\0")


def target(data: bytes) -> None:
    """What a template finds in a URI is safe, and expands to a URI in which it finds the same again."""
    text, _, uri = data.partition(b"\n")
    try:
        template = UriTemplate(text.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        assert len(str(error)) < 2000
        return
    assert len(template.variables) <= MAX_VARIABLES
    _match(template, uri.decode("utf-8", "surrogateescape"))
    for long in pumped(uri, 100 * 1024):
        _match(template, long.decode("latin-1"))


def _match(template: UriTemplate, uri: str) -> None:
    if template.unmatchable is not None:
        with suppress(ValueError):
            template.match(uri)
            raise AssertionError("it was matched")
        return
    found = template.match(uri)
    if found is None:
        return
    assert set(found) <= set(template.variables)
    # What is safe depends on the expression.
    for part in template._parts:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it is not told otherwise
        if isinstance(part, Expression):
            for variable in part.variables:
                _check_safe(part.operator, variable, found)
    if _is_ordinary(found):
        assert template.match(uritemplate.expand(template.text, {**found})) is not None, "there and back"


def _check_safe(operator: str, variable: Variable, found: UriValues) -> None:
    value = found.get(variable.name)
    if value is None:
        return
    texts = [value] if isinstance(value, str) else list(value)
    assert not variable.prefix
    for text in texts:
        if operator in _ENDS_PATH and not (operator == ";" and not text):
            assert text, "an empty segment"
            assert text not in {".", ".."}, "a way up"
            assert not _UNSAFE & set(text), "another segment"
        elif operator == "+":
            segments = text.replace("\\", "/").split("/")
            assert segments[0], "an absolute path"
            assert ".." not in segments
            assert "\0" not in text


def _is_ordinary(found: UriValues) -> bool:
    """Whether no value holds what a template may take for an end, or has an escape that is decoded twice."""
    texts = [text for value in found.values() for text in ([value] if isinstance(value, str) else value)]
    return all(text.isalnum() and text.isascii() for text in texts)
