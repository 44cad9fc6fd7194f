"""Compares the schemas of a server's tools with those that a test expects, and lints tools.

Defines the comparison, its diff, and the lint rules. Calls no tool.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from itertools import zip_longest
from types import EllipsisType
from typing import Any, Final, Literal, TypeAlias, cast

from toolpost.client.sync import SyncClient
from toolpost.connect import Target
from toolpost.json_schema import as_list, as_object, find_remote_references, get_properties, resolve_schema
from toolpost.protocol.jsonrpc import shorten
from toolpost.schema_validator import make_validator
from toolpost.types.tools import Tool

ToolSource: TypeAlias = "Target | Sequence[Tool]"  # tools that were listed, or any target of a client
ExpectedSchema: TypeAlias = Mapping[Any, Any]  # a schema, with ellipses that match anything
Finding: TypeAlias = tuple[Literal["warn", "fail"], str]
MAX_REASON_LENGTH: Final = 200  # characters of a validator's message to repeat
MAX_DESCRIPTION_LENGTH: Final = 1024  # characters of a description that all common model APIs accept
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")  # the names that the specification allows
_PORTABLE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # accepted by most hosts
_PARAMETER_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_COMBINATORS: Final = ("anyOf", "oneOf", "allOf")


def assert_tool_schema(
    tools: ToolSource,
    name: str,
    *,
    input: ExpectedSchema | EllipsisType = ...,  # noqa: A002 - the name of the schema
    output: ExpectedSchema | EllipsisType | None = ...,
) -> None:
    """Check that a tool has these schemas.

    Example:
        >>> from toolpost import Server
        >>> server = Server("calculator")
        >>> @server.tool
        ... def add(a: int, b: int = 1) -> int:
        ...     return a + b
        >>> assert_tool_schema(
        ...     server,
        ...     "add",
        ...     input={
        ...         "type": "object",
        ...         "properties": {"a": {"type": "integer"}, "b": ...},
        ...         "required": ["a"],
        ...         ...: ...,
        ...     },
        ...     output={"type": "object", "properties": {"result": {"type": "integer"}}, ...: ...},
        ... )

    Args:
        tools: a server, or any other target of a client; or tools that were listed, such as
            `await mcp.list_tools()`.
        name: the name of the tool.
        input: the schema of its arguments; an ellipsis stands for anything, and as a key for more members.
        output: the schema of its results, with the same ellipses; None if it has none.

    Raises:
        AssertionError: there is no such tool, or a schema differs; the message shows the difference.
    """
    __tracebackhide__ = True
    listed = {tool.name: tool for tool in _list_tools(tools)}
    if name not in listed:
        raise AssertionError(f"no tool named {name!r}; available: {', '.join(sorted(listed)) or 'none'}")
    tool = listed[name]
    for kind, expected, schema in (
        ("input", input, tool.input_schema),
        ("output", output, tool.output_schema),
    ):
        wanted, found = _fill_ellipses(expected, schema), _sort_required(schema)
        if wanted != found:
            ours, theirs = (
                json.dumps(each, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
                for each in (wanted, found)
            )
            difference = "\n".join(unified_diff(ours, theirs, "expected", "found", lineterm=""))
            raise AssertionError(f"the {kind} schema of {name} differs:\n{difference}")


def _list_tools(tools: ToolSource) -> Sequence[Tool]:
    if isinstance(tools, Sequence) and not isinstance(tools, str):
        listed = cast("Sequence[Any]", tools)
        if all(isinstance(each, Tool) for each in listed):
            return listed
    with SyncClient(cast("Target", tools)) as client:
        return client.list_tools()


def _fill_ellipses(wanted: Any, found: Any) -> Any:
    """Return the expected schema with each ellipsis replaced by the actual value."""
    if wanted is ...:
        return "…" if found is ... else _sort_required(found)  # "…" shows a value that is missing
    if isinstance(wanted, Mapping):
        ours, theirs = cast("Mapping[Any, Any]", wanted), as_object(found)
        more: dict[str, Any] = _sort_required(theirs) if ... in ours else {}
        named = {name: _fill_ellipses(ours[name], theirs.get(name, ...)) for name in ours if name is not ...}
        return more | _sort_required(named)
    if isinstance(wanted, list):
        pairs = zip_longest(as_list(wanted), as_list(found)[: len(as_list(wanted))], fillvalue=...)
        return [_fill_ellipses(*pair) for pair in pairs]
    return wanted


def _sort_required(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_sort_required(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    members = {name: _sort_required(value) for name, value in cast("dict[str, Any]", schema).items()}
    required = members.get("required")
    if isinstance(required, list):
        members["required"] = sorted(cast("list[Any]", required), key=str)
    return members


# --------------------------------------------------------------------- mistakes


def lint_tools(tools: ToolSource) -> list[str]:
    """Return the mistakes in the tools of a server, one line for each.

    Validates schemas as JSON Schema if `jsonschema-rs` is installed (extra `schema`).

    Example:
        >>> from toolpost.types import Tool
        >>> lint_tools([Tool(name="add", input_schema={"type": "array"})])
        ['add: no description', "add: the type of the input schema must be 'object', not 'array'"]

    Args:
        tools: a server, or any other target of a client; or tools that were listed.
    """
    return [f"{tool.name}: {text}" for tool in _list_tools(tools) for _, text in lint_tool(tool)]


def lint_tool(tool: Tool) -> Iterator[Finding]:
    """Yield the findings about one tool."""
    if not _TOOL_NAME.fullmatch(tool.name):
        yield "fail", "invalid name: use 1 to 128 letters, digits, and _ - . /"
    if not _PORTABLE_NAME.fullmatch(tool.name):
        yield "warn", "many hosts only accept names of 1 to 64 letters, digits, '_' and '-'"
    length = len((tool.description or "").strip())
    if not length:
        yield "warn", "no description"
    elif length > MAX_DESCRIPTION_LENGTH:
        yield "warn", f"description of {length} characters; some hosts cut at {MAX_DESCRIPTION_LENGTH}"
    if (found := tool.input_schema.get("type")) != "object":
        yield "fail", f"the type of the input schema must be 'object', not {found!r}"
    yield from _lint_schema("input", tool.input_schema)
    yield from _lint_schema("output", tool.output_schema or {})
    yield from _lint_parameters(tool.input_schema)


def _lint_parameters(schema: Mapping[str, Any]) -> Iterator[Finding]:
    known = as_object(schema.get("properties"))
    odd = next((name for name in known if not _PARAMETER_NAME.fullmatch(name)), None)
    if odd is not None:
        yield "warn", f"some hosts reject parameter names such as {shorten(odd)!r}"
    parameters = get_properties(schema).items()
    mute = [name for name, each in parameters if "description" not in resolve_schema(each, schema)]
    if mute:
        names = shorten(", ".join(mute), 60)
        yield "warn", f"{len(mute)} of {len(known)} parameters have no description: {names}"


def _lint_schema(kind: str, schema: dict[str, Any]) -> Iterator[Finding]:
    for branch in filter(schema.__contains__, _COMBINATORS):
        yield "warn", f"the {kind} schema has {branch} at the top level; some hosts reject that"
    properties = schema.get("properties")
    for name in as_list(schema.get("required")) if isinstance(properties, dict) else ():
        if name not in properties:
            yield "warn", f"the {kind} schema requires {name!r}, which is not in its properties"
    remote = find_remote_references(schema)
    for reference in remote:
        yield "warn", f"the {kind} schema references {shorten(reference)}, which hosts do not fetch"
    try:
        if not remote:
            make_validator(schema)
    except ValueError as error:
        where = ".".join(str(step) for step in getattr(error, "instance_path", ()))
        reason = shorten(str(error).splitlines()[0], MAX_REASON_LENGTH)
        yield "fail", f"the {kind} schema is not valid: {f'{where}: ' if where else ''}{reason}"
