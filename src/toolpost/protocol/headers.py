"""Values of HTTP headers: their form, and whether they agree with the body.

Owns the names of the headers, the Base64 form of a value, `x-mcp-header` annotations and the arguments they
mirror, `Accept`, `Content-Type` and the form of a session id. Pure functions; knows no sessions or status.
"""

import re
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias, cast

from toolpost.errors import HeaderMismatch, RequestFailed
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.types.base import UNSET, Raw, Unset

# Header names are compared in lower case on both sides (HDR-27); ASGI hands them over that way.
VERSION: Final = "mcp-protocol-version"
SESSION: Final = "mcp-session-id"
METHOD: Final = "mcp-method"
NAME: Final = "mcp-name"
PARAM_PREFIX: Final = "mcp-param-"
LAST_EVENT: Final = "last-event-id"

NOT_EXECUTED: Final = {"toolpost/executed": False}  # data of a 404: the request may be sent in a new session

JSON_TYPES: Final = frozenset({"application/json", "application/json-rpc"})
MAX_INTEGER: Final = 2**53 - 1  # the largest that every JSON implementation reads as the same number (HDR-10)
MAX_ANNOTATION_DEPTH: Final = 32  # levels of properties above an annotation: bounds the work for a path
MAX_SCHEMA_NODES: Final = 100_000  # parts of a schema: a Python object may contain itself
MAX_SESSION_ID: Final = 4096  # characters of a session id: room for a signed token
MAX_QUOTED_LENGTH: Final = 80  # characters of a peer's value that an error repeats


class UnsendableRequest(RequestFailed):
    """Headers cannot carry the values of this request. Nothing was sent, and a retry does not help."""


def quote_value(value: object) -> str:
    """Return a value of the peer for an error: short, and without line breaks."""
    if isinstance(value, str):
        return repr(value if len(value) <= MAX_QUOTED_LENGTH else f"{value[:MAX_QUOTED_LENGTH]}…")
    try:
        return _to_text(value)
    except ValueError:
        return f"of type {type(value).__name__}, which cannot be a header value"


# --------------------------------------------------------------------- values

_BASE64_PREFIX: Final = "=?base64?"
_BASE64_SUFFIX: Final = "?="
_INTEGER_PATTERN: Final = r"(-?(?:0|[1-9][0-9]{0,15}))(?:\.0+)?"  # compiled when it is first needed


def _to_text(value: object) -> str:
    """Return the text of a string, an integer or a boolean."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of number: 42.0 is an integer
    if isinstance(value, int) and abs(value) <= MAX_INTEGER:
        return str(value)
    expected = "a string, a boolean or an integer within ±(2^53-1)"
    raise ValueError(f"a header value must be {expected}, not a value of type {type(value).__name__}")


def encode_value(value: str | float) -> str:
    """Return a string, an integer or a boolean as a header value (HDR-16 to HDR-18).

    Raises ValueError if no header can carry it: a fraction, an integer beyond ±(2^53-1), a lone surrogate.
    """
    text = _to_text(value)
    # Within ASCII, `isprintable` means 0x20 to 0x7E: no control character, no TAB.
    plain = text.isascii() and text.isprintable() and text == text.strip(" ")
    if plain and not (text.startswith(_BASE64_PREFIX) and text.endswith(_BASE64_SUFFIX)):
        return text
    return f"{_BASE64_PREFIX}{b64encode(text.encode()).decode()}{_BASE64_SUFFIX}"


def decode_value(text: str, header: str = "header") -> str:
    """Return the text that a header carries, out of its Base64 form if it has one (HDR-19, HDR-20).

    Raises HeaderMismatch if a header does not allow a character, or the Base64 is not canonical.
    """
    text = text.strip(" \t")
    if not (text.isascii() and text.replace("\t", "").isprintable()):  # as in `encode_value`, and TAB
        raise HeaderMismatch(f"{header}: {quote_value(text)} has characters that a header does not allow")
    # In `=?base64?=` the markers share a character: there is no room for both, so it is literal.
    payload = text.removeprefix(_BASE64_PREFIX).removesuffix(_BASE64_SUFFIX)
    if len(text) - len(payload) < len(_BASE64_PREFIX) + len(_BASE64_SUFFIX):
        return text
    try:
        raw = b64decode(payload, validate=True)
        decoded = raw.decode()
    except ValueError as fault:
        raise HeaderMismatch(f"{header}: {quote_value(text)} is not Base64 of UTF-8 text") from fault
    if b64encode(raw).decode() != payload:  # two spellings of one value would let two readers disagree
        raise HeaderMismatch(f"{header}: {quote_value(text)} is not canonical Base64")
    return decoded


def check_name(header: bytes | None, body: str) -> None:
    """Raise HeaderMismatch if `Mcp-Name` does not repeat the name, URI or task id in the body."""
    if header is None:
        raise HeaderMismatch(f"{NAME}: the header is missing, but the body has {quote_value(body)}")
    text = decode_value(str(header, "latin-1"), NAME)
    if text != body:
        shown = quote_value(text)
        raise HeaderMismatch(f"{NAME}: the header is {shown}, but the body has {quote_value(body)}")


def hide_session_id(session_id: str) -> str:
    """Return a name for a session that does not reveal its id: for records, logs and telemetry."""
    from hashlib import sha256  # noqa: PLC0415 - start-up time

    return sha256(session_id.encode()).hexdigest()[:24]


def is_valid_session_id(value: str) -> bool:
    """Return whether a session id is visible ASCII, 0x21 to 0x7E, and not too long (HTTPL-23)."""
    return 0 < len(value) <= MAX_SESSION_ID and value.isascii() and value.isprintable() and " " not in value


# --------------------------------------------------------------------- annotated parameters

_ANNOTATION_KEY: Final = "x-mcp-header"
_NAME_PATTERN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # compiled when it is first needed
_ANNOTATABLE_TYPES: Final = ("string", "integer", "boolean")
_DATA_KEYWORDS: Final = frozenset({_ANNOTATION_KEY, "const", "default", "enum", "examples"})
"""Keywords with plain data, in which there are no annotations."""
_NAME_KEYWORDS: Final = frozenset(
    {"$defs", "definitions", "dependentRequired", "dependentSchemas", "patternProperties", "properties"}
)
"""Keywords whose keys are names that the author chose, not keywords."""

# A part of a schema, the property names that lead to it, and the first step that was none ("" if all were).
_SchemaPart = tuple[object, tuple[str, ...], str]


def find_annotations(schema: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the `x-mcp-header` annotations of an input schema: header in lower case → path of properties.

    Looks at every part of the schema: an annotation anywhere but on a chain of `properties` makes the tool
    invalid. Does not follow a `$ref`. Raises ValueError if an annotation breaks a rule (HDR-6 to HDR-12).
    """
    found: dict[str, tuple[str, ...]] = {}
    parts: deque[_SchemaPart] = deque([(schema, (), "")])
    seen = 0
    while parts:
        seen += 1
        if seen + len(parts) > MAX_SCHEMA_NODES:
            raise ValueError(f"the schema has more than {MAX_SCHEMA_NODES} parts, or is recursive")
        part, path, left = parts.popleft()
        if isinstance(part, list):
            parts.extend((item, path, left) for item in cast("list[object]", part))
        elif isinstance(part, Mapping):
            node = cast("Mapping[str, object]", part)
            if _ANNOTATION_KEY in node:
                found[_read_header_name(node, path, left, found)] = path
            parts.extend(_iterate_children(node, path, left))
    return found


def _read_header_name(
    node: Mapping[str, object], path: tuple[str, ...], left: str, found: dict[str, tuple[str, ...]]
) -> str:
    """Return the header that an annotated part of a schema names; none of those that were found before."""
    name, kind = node[_ANNOTATION_KEY], node.get("type")
    if left or not path:
        fault = f"it must be reachable through `properties` alone; it is {left or 'on the root'}"
    elif not isinstance(name, str) or not name:
        fault = "it must be a non-empty string"
    elif not re.fullmatch(_NAME_PATTERN, name):
        fault = (
            f"{quote_value(name)} cannot be part of a header name; use letters, digits and !#$%&'*+-.^_`|~"
        )
    elif kind not in _ANNOTATABLE_TYPES:
        fault = f"the type of the property must be exactly one of {', '.join(_ANNOTATABLE_TYPES)}"
    elif (header := PARAM_PREFIX + name.lower()) in found:
        fault = f"{_format_path(found[header])} already uses it"
    else:
        return header
    raise ValueError(f"{_ANNOTATION_KEY} on {_format_path(path)}: {fault}")


def _iterate_children(node: Mapping[str, object], path: tuple[str, ...], left: str) -> Iterator[_SchemaPart]:
    for keyword, value in node.items():
        if keyword in _DATA_KEYWORDS or not isinstance(value, Mapping | list):
            continue
        outside = left or f"under `{keyword}`"
        if keyword not in _NAME_KEYWORDS or isinstance(value, list):
            yield cast("object", value), path, outside
            continue
        for name, part in cast("Mapping[str, object]", value).items():
            if left or keyword != "properties":
                yield part, path, outside
            elif len(path) < MAX_ANNOTATION_DEPTH:
                yield part, (*path, name), ""
            else:
                yield part, path, f"more than {MAX_ANNOTATION_DEPTH} levels deep"


def _format_path(path: tuple[str, ...]) -> str:
    return quote_value(".".join(path)) if path else "the schema"


# One level of JSON: the members of an object stay raw.
_LEVEL_READER: Final = JSONReader[Any](cast("Any", dict[str, Raw] | str | int | float | bool | None))

Arguments: TypeAlias = Mapping[str, Any] | Raw | Unset
"""The arguments of a call. Of JSON only the values on the paths of annotations are read."""


def _read_level(raw: Raw | Unset, label: str) -> Any:
    if raw is not UNSET and bytes(memoryview(raw)[:1]) == b"[":
        return []
    try:
        return _LEVEL_READER(raw)
    except InvalidJSONValue as error:
        raise InvalidJSONValue(f"{label} cannot be read: {error}") from error


def _get_at_path(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path of property names, or None; InvalidJSONValue if it cannot be read."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Any]", value).get(name)
        if isinstance(value, Raw):
            value = _read_level(value, f"the argument {quote_value(name)}")
    return value


def _read_arguments(arguments: Arguments) -> Any:
    return arguments if isinstance(arguments, Mapping) else _read_level(arguments, "the arguments")


def mirror_arguments(annotated: Mapping[str, tuple[str, ...]], arguments: Arguments) -> dict[str, str]:
    """Return the `mcp-param-…` headers for these arguments (HDR-5, HDR-21); null and absent ones have none.

    Raises ValueError if no header can carry an argument.
    """
    headers: dict[str, str] = {}
    members = _read_arguments(arguments)
    for header, path in annotated.items():
        value = _get_at_path(members, path)
        try:
            if value is not None:
                headers[header] = encode_value(value)
        except ValueError as fault:
            argument = f"the argument {_format_path(path)}"
            raise ValueError(f"{argument} cannot be sent as {header}: {fault}") from fault
    return headers


def verify_arguments(
    annotated: Mapping[str, tuple[str, ...]], arguments: Arguments, headers: Mapping[str, str]
) -> None:
    """Raise HeaderMismatch if an annotated argument and its header disagree (HDR-22 to HDR-26).

    A header without its argument is a mismatch too: a proxy that routed by it saw a value that the tool never
    gets. Headers without an annotation are not checked.
    """
    members = _read_arguments(arguments)
    for header, path in annotated.items():
        value, sent = _get_at_path(members, path), headers.get(header)
        if value is None and sent is None:
            continue
        if value is not None and sent is not None and _is_same_value(decode_value(sent, header), value):
            continue
        argument = f"argument {_format_path(path)}"
        if value is None:
            raise HeaderMismatch(f"{header}: the header is present, but the body has no {argument}")
        if sent is None:
            raise HeaderMismatch(f"{header}: the header is missing; the {argument} is {quote_value(value)}")
        shown = quote_value(decode_value(sent, header))
        raise HeaderMismatch(f"{header}: the header is {shown}, but the {argument} is {quote_value(value)}")


def _is_same_value(text: str, value: object) -> bool:
    """Return whether a header equals a value of the body; integers by value, not by spelling (HDR-26)."""
    if isinstance(value, str | bool):
        return text == _to_text(value)
    number = re.fullmatch(_INTEGER_PATTERN, text)
    safe = isinstance(value, int | float) and abs(value) <= MAX_INTEGER
    return safe and number is not None and int(number[1]) == value


# --------------------------------------------------------------------- media types

_SEPARATOR_PATTERN: Final = r'(?s)"(?:[^"\\]|\\.)*+"?|[,;]'  # compiled when it is first needed


def _split_header(text: str, separator: str) -> list[str]:
    """Split a header, in lower case, at separators outside quoted strings."""
    text = text.lower()
    if '"' not in text:  # nearly always, and much faster
        return [part.strip(" \t") for part in text.split(separator)]
    cuts = [piece.start() for piece in re.finditer(_SEPARATOR_PATTERN, text) if piece[0] == separator]
    return [text[start + 1 : end].strip(" \t") for start, end in pairwise([-1, *cuts, len(text)])]


def _parse_media_type(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a media type or range, and its parameters."""
    name, *parameters = _split_header(text, ";")
    pairs = (parameter.partition("=") for parameter in parameters)
    return name, [(key.strip(" \t"), value.strip(" \t")) for key, _, value in pairs]


def accepts(header: str | None, media: str) -> bool:
    """Return whether an `Accept` header admits a media type, given in lower case; an empty one admits all.

    The most specific range decides and a weight of zero excludes; other parameters do not count.
    """
    if header is None or not header.strip(" \t"):
        return True
    ranges = (media, f"{media.partition('/')[0]}/*", "*/*")
    admitted: dict[str, bool] = {}
    for part in _split_header(header, ","):
        name, parameters = _parse_media_type(part)
        if name in ranges:
            excluded = any(key == "q" and "0" in value and not value.strip("0.") for key, value in parameters)
            admitted[name] = admitted.get(name, False) or not excluded
    return next((admitted[name] for name in ranges if name in admitted), False)


def is_json(content_type: str | None) -> bool:
    """Return whether a `Content-Type` is one of `JSON_TYPES`, in UTF-8 if it names a charset."""
    if content_type is None:
        return False
    name, parameters = _parse_media_type(content_type)
    charsets = {value for key, value in parameters if key == "charset"}
    return name in JSON_TYPES and charsets <= {"utf-8", '"utf-8"'}
