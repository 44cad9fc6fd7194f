"""What is odd about the tools, resources and prompts of a server: schemas, names, words that are missing.

Pure: it is handed the items as decoded JSON, and yields what it finds. Remote references are never fetched.
What the finding is worth is told by its verdict; nothing is called.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from toolpost.cli.checkup import Verdict
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.revisions import Revision

__all__ = ["Finding", "lint_prompts", "lint_resources", "lint_templates", "lint_tools"]

MAX_DEPTH: Final = 40
"""How deeply schemas are looked into."""

MANY_TOOLS: Final = 128
"""More tools than this some models' interfaces do not take at once."""

LONG: Final = 1024
"""Longer descriptions than this some models' interfaces refuse."""

_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
"""What the specification allows."""
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What models' interfaces take as the name of a function."""
_PARAMETER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_BRANCHES: Final = ("anyOf", "oneOf", "allOf")


class Finding(NamedTuple):
    """Something odd.

    Args:
        verdict: how bad it is.
        text: whose it is, and what.
    """

    verdict: Verdict
    text: str


def lint_tools(tools: Sequence[Any], revision: Revision) -> Iterator[Finding]:
    """What is odd about a list of tools."""
    yield from _twice("tool", "name", tools)
    if len(tools) > MANY_TOOLS:
        yield Finding("warn", f"there are {len(tools)} tools; some hosts take no more than {MANY_TOOLS}")
    for tool, name in _named("tool", "name", tools):
        if isinstance(tool, str):
            yield Finding("fail", tool)
            continue
        for verdict, text in _tool(tool, revision):
            yield Finding(verdict, f"tool {name}: {text}")


def _tool(tool: Mapping[str, Any], revision: Revision) -> Iterator[Finding]:
    name = str(tool["name"])
    if not _NAME.fullmatch(name):
        yield Finding("fail", "a name has 1 to 128 letters, digits, and _ - . /")
    elif not _HOST_NAME.fullmatch(name):
        yield Finding("warn", "some hosts refuse names with other than 1 to 64 letters, digits, _ and -")
    yield from _described(tool)
    schema = tool.get("inputSchema")
    if "inputSchema" not in tool:
        yield Finding("fail", 'it has no inputSchema; without parameters it is {"type": "object"}')
    else:
        yield from (Finding(each.verdict, f"inputSchema: {each.text}") for each in _schema(schema))
        if isinstance(schema, dict):
            yield from _parameters(cast("dict[str, Any]", schema))
    if tool.get("outputSchema") is not None:
        output = tool["outputSchema"]
        yield from (
            Finding(each.verdict, f"outputSchema: {each.text}")
            for each in _schema(output, any_type=revision.structured == "any")
        )


def _described(item: Mapping[str, Any]) -> Iterator[Finding]:
    words = item.get("description")
    if not words:
        yield Finding("warn", "it has no description: a model chooses by that")
    elif isinstance(words, str) and len(words) > LONG:
        yield Finding("warn", f"its description has {len(words)} characters; some hosts cut at {LONG}")


# --------------------------------------------------------------------- schemas


def _schema(schema: Any, *, any_type: bool = False) -> Iterator[Finding]:
    if not isinstance(schema, dict):
        yield Finding("fail", f"a schema is an object, not {_kind(schema)}")
        return
    members = cast("dict[str, Any]", schema)
    if not any_type and members.get("type") != "object":
        yield Finding("fail", 'it needs "type": "object"')
    branches = [key for key in _BRANCHES if key in members]
    if branches:
        yield Finding("warn", f"{branches[0]} at the top: some hosts refuse that")
    yield from _invalid(members)
    for reference in sorted(set(_references(members))):
        if not reference.startswith("#"):
            yield Finding("warn", f"{shorten(reference)} lies elsewhere, and hosts do not fetch it")


def _invalid(schema: dict[str, Any]) -> Iterator[Finding]:
    """What is no JSON Schema about it, as far as somebody is installed who knows."""
    try:
        import jsonschema_rs  # noqa: PLC0415 - of an extra
    except ImportError:
        return
    try:
        jsonschema_rs.meta.validate(schema)
    except ValueError as error:
        path = ".".join(str(step) for step in getattr(error, "instance_path", ()))
        text = shorten(str(getattr(error, "message", error)), 200)
        yield Finding("fail", f"no valid JSON Schema{f', at {path}' if path else ''}: {text}")


def _references(value: Any, depth: int = MAX_DEPTH) -> Iterator[str]:
    if not depth:
        return
    if isinstance(value, dict):
        for key, member in cast("dict[str, Any]", value).items():
            if key == "$ref" and isinstance(member, str):
                yield member
            else:
                yield from _references(member, depth - 1)
    elif isinstance(value, list):
        for member in cast("list[Any]", value):
            yield from _references(member, depth - 1)


def _parameters(schema: Mapping[str, Any]) -> Iterator[Finding]:
    properties = schema.get("properties")
    known = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
    required = schema.get("required")
    for name in cast("list[Any]", required) if isinstance(required, list) else []:
        if isinstance(name, str) and name not in known:
            never = schema.get("additionalProperties") is False
            text = f"{shorten(name)!r} is required, but there is no such parameter"
            yield Finding("fail" if never else "warn", text)
    odd = [name for name in known if not _PARAMETER.fullmatch(name)]
    if odd:
        yield Finding("warn", f"some hosts refuse parameters that are called like {shorten(odd[0])!r}")
    mute = [name for name, each in known.items() if isinstance(each, dict) and "description" not in each]
    if mute:
        names = shorten(", ".join(mute), 60)
        yield Finding("warn", f"{len(mute)} of {len(known)} parameters have no description: {names}")


# --------------------------------------------------------------------- resources and prompts


def lint_resources(resources: Sequence[Any], revision: Revision) -> Iterator[Finding]:  # noqa: ARG001 - as for tools
    """What is odd about a list of resources."""
    yield from _twice("resource", "uri", resources)
    for item, uri in _named("resource", "uri", resources):
        if isinstance(item, str):
            yield Finding("fail", item)
        elif not _SCHEME.match(str(item["uri"])):
            yield Finding("fail", f"resource {uri}: a URI begins with a scheme, such as file: or notes:")
        elif not isinstance(item.get("name"), str):
            yield Finding("fail", f"resource {uri}: it has no name")


def lint_templates(templates: Sequence[Any], revision: Revision) -> Iterator[Finding]:  # noqa: ARG001 - as for tools
    """What is odd about a list of resource templates."""
    from toolpost.protocol.uri import Template  # noqa: PLC0415 - few servers have any

    yield from _twice("template", "uriTemplate", templates)
    for item, uri in _named("template", "uriTemplate", templates):
        if isinstance(item, str):
            yield Finding("fail", item)
            continue
        try:
            Template(str(item["uriTemplate"]))
        except ValueError as error:
            yield Finding("fail", f"template {uri}: {error}")


def lint_prompts(prompts: Sequence[Any], revision: Revision) -> Iterator[Finding]:  # noqa: ARG001 - as for tools
    """What is odd about a list of prompts."""
    yield from _twice("prompt", "name", prompts)
    for item, name in _named("prompt", "name", prompts):
        if isinstance(item, str):
            yield Finding("fail", item)
        elif not item.get("description") and not item.get("title"):
            yield Finding(
                "warn", f"prompt {name}: it has neither title nor description: a person chooses by it"
            )


# --------------------------------------------------------------------- lists


def _named(what: str, key: str, items: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    """Each item and what to call it; instead of one without a name, a sentence about it."""
    for index, item in enumerate(items):
        name = cast("dict[str, Any]", item).get(key) if isinstance(item, dict) else None
        if isinstance(name, str):
            yield item, shorten(name)
        else:
            yield f"{what} number {index + 1} has no {key}", ""


def _twice(what: str, key: str, items: Sequence[Any]) -> Iterator[Finding]:
    names = Counter(name for item, name in _named(what, key, items) if not isinstance(item, str))
    for name, count in names.items():
        if count > 1:
            yield Finding("fail", f"{what} {name}: {count} have this {key}")


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
