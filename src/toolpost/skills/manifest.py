"""What the extension for skills says: limits, digests, and the front matter of a `SKILL.md`.

Front matter is YAML between the first two lines `---`, read by the core schema of YAML 1.2, in which `yes`
and dates are strings. Aliases, tags, and what has no JSON are refused: a few aliases can make a value of
any size.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from toolpost.errors import MCPError
from toolpost.protocol.jsonrpc import shorten
from toolpost.types.base import JSON

SKILL_FILE: Final = "SKILL.md"
SCHEME: Final = "skill://"
MAX_SKILL_FILES: Final = 512
MAX_SKILL_BYTES: Final = 16 * 1024 * 1024
MAX_FRONT_MATTER: Final = 32 * 1024  # characters: PyYAML reads about 100,000 in a second
MAX_DEPTH: Final = 32
MAX_NUMBER: Final = 18  # characters of a number: longer integers are not exact in every JSON reader
MAX_NAME: Final = 64  # characters
MAX_DESCRIPTION: Final = 1024  # characters

RESERVED_PREFIX: Final = "io.modelcontextprotocol/"
"""Of the keys of `metadata`."""

_FRONT_MATTER: Final = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_JSON: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def digest_bytes(data: bytes) -> str:
    """Return the digest of a file, as entries have it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def read_front_matter(text: str) -> dict[str, JSON]:
    """Return the front matter of a `SKILL.md`.

    Raises:
        ValueError: there is none, or it is not valid.
        MCPError: PyYAML is not installed.
    """
    found = _FRONT_MATTER.match(text)
    if found is None:
        raise ValueError("the file must begin with front matter: YAML between two lines `---`")
    if len(found[1]) > MAX_FRONT_MATTER:
        raise ValueError(f"the front matter has more than {MAX_FRONT_MATTER} characters")
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MCPError("skills need PyYAML", hint="pip install 'toolpost[skills]'") from error
    try:
        events: Iterator[Any] = iter(cast("Any", yaml).parse(found[1], Loader=yaml.BaseLoader))
        _stream, _document, first = next(events), next(events), next(events, None)
        value = _read_value(first, events, 0) if isinstance(first, yaml.MappingStartEvent) else None
        _end, end = next(events, None), next(events, None)
    except yaml.YAMLError as error:
        raise ValueError(f"the front matter is not valid YAML: {error}") from error
    if value is None or not isinstance(end, yaml.StreamEndEvent):
        raise ValueError("the front matter must be one mapping, such as `name: greeting`")
    return value


def _read_value(event: Any, events: Iterator[Any], depth: int) -> JSON:
    """Return the value that begins with an event of PyYAML's parser."""
    import yaml  # noqa: PLC0415 - an extra

    line = event.start_mark.line + 2  # the first line is `---`
    if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
        raise ValueError(f"line {line}: front matter must not have aliases or tags")
    if depth > MAX_DEPTH:
        raise ValueError(f"line {line}: the front matter is nested more than {MAX_DEPTH} levels deep")
    if isinstance(event, yaml.ScalarEvent):
        return event.value if event.style is not None else _resolve_plain(event.value, line)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[JSON] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_read_value(event, events, depth + 1))
        return items
    members: dict[str, JSON] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _read_value(event, events, depth + 1)
        if not isinstance(key, str):
            raise ValueError(f"line {event.start_mark.line + 2}: a key must be a string, not {key!r}")  # noqa: TRY004 - of the file
        if key in members:
            raise ValueError(f"line {event.start_mark.line + 2}: the key {shorten(key)!r} appears twice")
        members[key] = _read_value(next(events), events, depth + 1)
    return members


def _resolve_plain(text: str, line: int) -> JSON:
    """Return the value of an unquoted scalar, by the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    is_integer = _INTEGER.fullmatch(text)
    if _NO_JSON.fullmatch(text) or ((is_integer or _FLOAT.fullmatch(text)) and len(text) > MAX_NUMBER):
        raise ValueError(f"line {line}: the number {shorten(text)} has no exact form in JSON; quote it")
    if is_integer:
        return int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def check_front_matter(front: Mapping[str, JSON], folder: str) -> None:
    """Raise ValueError unless the front matter names the skill of a folder, as the extension requires."""
    name, description, metadata = (front.get(key) for key in ("name", "description", "metadata"))
    if not isinstance(name, str) or len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"name: {name!r} is not a valid name; use 1 to {MAX_NAME} characters: a-z, 0-9 and single hyphens"
        )
    if name != folder:
        raise ValueError(f"name: {name!r} must be the name of its folder, {folder!r}")
    if not isinstance(description, str) or not 0 < len(description.strip()) <= MAX_DESCRIPTION:
        raise ValueError(f"description: write 1 to {MAX_DESCRIPTION} characters about when to use the skill")
    keys = cast("dict[str, JSON]", metadata) if isinstance(metadata, dict) else ()
    if any(key.startswith(RESERVED_PREFIX) for key in keys):
        raise ValueError(f"metadata: keys that start with {RESERVED_PREFIX} are reserved")
