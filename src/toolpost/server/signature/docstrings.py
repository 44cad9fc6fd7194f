"""Parses docstrings into a summary and the descriptions of parameters.

Reads the styles of Google, NumPy and Sphinx, line by line, and takes what it does not understand for prose.
"""

import inspect
import re
from typing import Final

from msgspec import Struct

_PARAMETER_SECTIONS: Final = frozenset(
    {
        "args",
        "arguments",
        "attributes",
        "keyword args",
        "keyword arguments",
        "other parameters",
        "parameters",
        "params",
    }
)
# Strings: `re` compiles one when it is first needed, and caches it.
_NAME_PATTERN: Final = r"\*{0,2}(\w+)\s*"
_NUMPY_PATTERN: Final = r"\*{0,2}\w+(?:, ?\*{0,2}\w+)*(?: ?:.*)?"
_SPHINX_PATTERN: Final = r":(?:param|parameter|arg|argument|key|keyword|type)\s+[^:\s][^:]*:"

ParameterLines = dict[str, list[str]]


class Docstring(Struct, frozen=True):
    """A parsed docstring. `summary` is all of it but the parameters."""

    summary: str
    parameters: dict[str, str]


def parse_docstring(doc: str | None) -> Docstring:
    """Return the parts of a docstring; empty ones if there is none."""
    lines = inspect.cleandoc(doc or "").splitlines()
    prose: list[str] = []
    found: ParameterLines = {}
    at = 0
    while at < len(lines):
        if lines[at].strip().rstrip(":").lower() in _PARAMETER_SECTIONS and _is_underlined(lines, at):
            at = _parse_numpy(lines, at + 2, found)
        elif lines[at].rstrip(": ").lower() in _PARAMETER_SECTIONS and lines[at].endswith(":"):
            at = _parse_google(lines, at + 1, found)
        elif lines[at].startswith(":") and re.match(_SPHINX_PATTERN, lines[at]):
            at = _parse_sphinx(lines, at, found)
        else:
            prose.append(lines[at])
            at += 1
    summary = "\n".join(prose).strip()
    if "\n\n\n" in summary:
        summary = re.sub(r"\n{3,}", "\n\n", summary)
    described = {name: " ".join(filter(None, words)) for name, words in found.items()}
    return Docstring(summary, {name: text for name, text in described.items() if text})


def _measure_indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_underlined(lines: list[str], at: int) -> bool:
    """Return whether a line is a heading in NumPy's style."""
    below = lines[at + 1].strip() if at + 1 < len(lines) else ""
    return below != "" and not below.strip("-=")


def _parse_google(lines: list[str], at: int, found: ParameterLines) -> int:
    """Read the indented lines below `Args:` and return the number of the line behind them."""
    level: int | None = None
    words: list[str] = []
    while at < len(lines) and (not lines[at].strip() or _measure_indent(lines[at])):
        text = lines[at].strip()
        level = _measure_indent(lines[at]) if text and level is None else level
        name, described = (
            _parse_google_entry(text) if text and _measure_indent(lines[at]) == level else (None, text)
        )
        if name is not None:
            words = found.setdefault(name, [])
        words.append(described)
        at += 1
    return at


def _parse_google_entry(text: str) -> tuple[str | None, str]:
    """Split `name: description` or `name (type): description`; prose has no name."""
    name = re.match(_NAME_PATTERN, text)
    if name is None:
        return None, text
    end = name.end()
    if text.startswith("(", end):
        depth = 0
        for end in range(end, len(text)):  # noqa: B020 - goes on from where the name ended
            depth += (text[end] in "([{") - (text[end] in ")]}")
            if not depth:
                break
        end += 1
    rest = text[end:].lstrip()
    return (name[1], rest[1:].strip()) if rest.startswith(":") else (None, text)


def _parse_numpy(lines: list[str], at: int, found: ParameterLines) -> int:
    """Read the entries below an underlined heading and return the number of the line behind them."""
    names: list[str] = []
    while at < len(lines) and not _is_underlined(lines, at):
        line = lines[at]
        if _measure_indent(line) or not line:
            for name in names:
                found[name].append(line.strip())
        elif re.fullmatch(_NUMPY_PATTERN, line):
            names = [name.strip("* ") for name in line.partition(":")[0].split(",")]
            found.update((name, []) for name in names)
        else:
            break
        at += 1
    return at


def _parse_sphinx(lines: list[str], at: int, found: ParameterLines) -> int:
    """Read one `:param name:` with its indented lines and return the number of the line behind them."""
    _, field, text = lines[at].split(":", 2)
    kind, *_, name = field.split()
    words = [text.strip()]
    at += 1
    while at < len(lines) and (_measure_indent(lines[at]) or not lines[at]):
        words.append(lines[at].strip())
        at += 1
    if kind != "type":
        found[name.lstrip("*")] = words
    return at
