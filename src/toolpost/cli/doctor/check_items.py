"""Lints the tools, resources and prompts of a server: schemas, names, missing descriptions.

Pure: takes the items as decoded JSON, and yields findings, each with a verdict. The rules that authors can
use in their tests are in `toolpost.testing.schemas`; the rest is about hosts and revisions.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from toolpost.cli.doctor.report import Verdict
from toolpost.json_schema import as_object
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.revisions import Revision
from toolpost.testing.schemas import LINT_RULES
from toolpost.types.tools import Tool

MAX_TOOLS: Final = 128  # the number of tools that all common model APIs accept at once
MAX_DESCRIPTION_LENGTH: Final = 1024  # the length of a description that all common model APIs accept
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")  # the names that the specification allows
_PARAMETER_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_URI_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_COMBINATORS: Final = frozenset({"anyOf", "oneOf", "allOf"})


class LintFinding(NamedTuple):
    """A finding: how bad it is, and what is wrong with which item."""

    verdict: Verdict
    text: str


def lint_tools(tools: Sequence[Any], revision: Revision) -> Iterator[LintFinding]:
    """Yield the findings about a list of tools."""
    if len(tools) > MAX_TOOLS:
        yield LintFinding("warn", f"there are {len(tools)} tools; some hosts take no more than {MAX_TOOLS}")
    for tool, name in _iterate_named("name", tools):
        for verdict, text in _lint_tool(tool, revision):
            yield LintFinding(verdict, f"tool {name}: {text}")
    yield from _lint_names("tool", "name", tools)


def _lint_tool(item: Mapping[str, Any], revision: Revision) -> Iterator[LintFinding]:
    try:
        tool = msgspec.convert(item, Tool)
    except msgspec.ValidationError as error:
        yield LintFinding("fail", f"no client can read it: {error}")
        return
    if not _TOOL_NAME.fullmatch(tool.name):
        yield LintFinding("fail", "a name has 1 to 128 letters, digits, and _ - . /")
    for rule, verdict in LINT_RULES.items():
        yield from (LintFinding(verdict, wrong) for wrong in rule(tool))
    length = len(tool.description or "")
    if length > MAX_DESCRIPTION_LENGTH:
        text = f"its description has {length} characters; some hosts cut at {MAX_DESCRIPTION_LENGTH}"
        yield LintFinding("warn", text)
    for kind, schema in (("input", tool.input_schema), ("output", tool.output_schema or {})):
        for branch in _COMBINATORS & schema.keys():
            yield LintFinding("warn", f"its {kind} schema has {branch} at the top: some hosts refuse that")
    output = tool.output_schema
    if output is not None and revision.structured != "any" and output.get("type") != "object":
        yield LintFinding("fail", f"the type of its output schema has to be 'object' in {revision.date}")
    yield from _lint_parameters(tool.input_schema)


def _lint_parameters(schema: Mapping[str, Any]) -> Iterator[LintFinding]:
    known = as_object(schema.get("properties"))
    odd = next((name for name in known if not _PARAMETER_NAME.fullmatch(name)), None)
    if odd is not None:
        yield LintFinding("warn", f"some hosts refuse parameters that are called like {shorten(odd)!r}")
    mute = [name for name, each in known.items() if isinstance(each, dict) and "description" not in each]
    if mute:
        names = shorten(", ".join(mute), 60)
        yield LintFinding("warn", f"{len(mute)} of {len(known)} parameters have no description: {names}")


def lint_resources(resources: Sequence[Any], revision: Revision) -> Iterator[LintFinding]:  # noqa: ARG001 - as for tools
    """Yield the findings about a list of resources."""
    for item, uri in _iterate_named("uri", resources):
        if not _URI_SCHEME.match(item["uri"]):
            yield LintFinding("fail", f"resource {uri}: a URI begins with a scheme, such as file: or notes:")
        elif not isinstance(item.get("name"), str):
            yield LintFinding("fail", f"resource {uri}: it has no name")
    yield from _lint_names("resource", "uri", resources)


def lint_templates(templates: Sequence[Any], revision: Revision) -> Iterator[LintFinding]:  # noqa: ARG001 - as for tools
    """Yield the findings about a list of resource templates."""
    from toolpost.protocol.uri_template import UriTemplate  # noqa: PLC0415 - few servers have any

    for item, uri in _iterate_named("uriTemplate", templates):
        try:
            UriTemplate(item["uriTemplate"])
        except ValueError as error:
            yield LintFinding("fail", f"template {uri}: {error}")
    yield from _lint_names("template", "uriTemplate", templates)


def lint_prompts(prompts: Sequence[Any], revision: Revision) -> Iterator[LintFinding]:  # noqa: ARG001 - as for tools
    """Yield the findings about a list of prompts."""
    for item, name in _iterate_named("name", prompts):
        if not item.get("description") and not item.get("title"):
            text = f"prompt {name}: it has neither title nor description: a person chooses by it"
            yield LintFinding("warn", text)
    yield from _lint_names("prompt", "name", prompts)


def _iterate_named(key: str, items: Sequence[Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the items that have a name, each with a short form of it."""
    for item in map(as_object, items):
        if isinstance(item.get(key), str):
            yield item, shorten(item[key])


def _lint_names(what: str, key: str, items: Sequence[Any]) -> Iterator[LintFinding]:
    """Yield the findings about names that are missing, or given twice."""
    for index, item in enumerate(items):
        if not isinstance(as_object(item).get(key), str):
            yield LintFinding("fail", f"{what} number {index + 1} has no {key}")
    for name, count in Counter(name for _, name in _iterate_named(key, items)).items():
        if count > 1:
            yield LintFinding("fail", f"{what} {name}: {count} have this {key}")
