"""`Edit`: changes what clients see of a mounted tool, and translates their calls back.

Works on the JSON of list items, whatever server they come from. Names and prefixes are left to `mount`.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Final, cast

from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import MEMBERS_READER, InvalidJSONValue, JSONReader
from toolpost.server.context_request import decode_arguments
from toolpost.types.base import JSON, UNSET, Raw, Struct, Unset
from toolpost.types.tools import CallToolResult, ToolAnnotations

_OBJECT: Final = JSONReader(dict[str, Any])
_MAX_REFERENCES: Final = 20
"""Steps from one `$ref` to the next."""


class EditedArgument(Struct, frozen=True):
    """How clients see an argument of a tool; None leaves a part as it is.

    Attributes:
        name: its new name.
        description: its new description.
        default: a value for calls without it.
        required: whether a call needs it.
        schema: the JSON Schema that replaces its own, such as one that allows fewer values.
    """

    name: str | None = None
    description: str | None = None
    default: JSON | Unset = UNSET
    required: bool | None = None
    schema: dict[str, JSON] | None = None


class ConstantArgument(Struct, frozen=True):
    """An argument that clients neither see nor set: every call gets this value."""

    value: JSON


class Edit(Struct, frozen=True, kw_only=True):
    """Changes of a tool of a mounted server; None leaves a part as it is.

    Attributes:
        name: its new name; the prefix of the mount goes before it.
        title: its new title.
        description: its new description.
        tags: tags for `select`.
        annotations: hints that replace those of the server, one by one.
        hide: whether clients neither see nor call it.
        arguments: by the server's name of the argument, an `Edit.Argument` or an `Edit.Constant`.
        result: a function that gets the `CallToolResult` and returns the one for the client.

    Examples:
        >>> Edit(name="find", arguments={"q": Edit.Argument("query"), "tenant": Edit.Constant("eu")}).name
        'find'
    """

    Argument: ClassVar = EditedArgument
    Constant: ClassVar = ConstantArgument

    name: str | None = None
    title: str | None = None
    description: str | None = None
    tags: Iterable[str] = ()
    annotations: ToolAnnotations | None = None
    hide: bool = False
    arguments: Mapping[str, EditedArgument | ConstantArgument] | None = None
    result: Callable[[CallToolResult], CallToolResult] | None = None

    @property
    def has_constants(self) -> bool:
        """Whether an argument has a value that clients must not change."""
        return any(isinstance(each, ConstantArgument) for each in (self.arguments or {}).values())


class ArgumentPlan:
    """Translates the arguments of a call for the server."""

    def __init__(self, edits: Mapping[str, EditedArgument | ConstantArgument]) -> None:
        self._inside: dict[str, str] = {}  # new name → the server's
        self._defaults: dict[str, JSON] = {}
        self._constants: dict[str, JSON] = {}
        for name, edit in edits.items():
            if isinstance(edit, ConstantArgument):
                self._constants[name] = edit.value
                continue
            if edit.name is not None:
                self._inside[edit.name] = name
            if edit.default is not UNSET:
                self._defaults[name] = edit.default
        self._hidden = {*self._constants, *self._inside.values()} - self._inside.keys()

    def translate(self, arguments: Any) -> Raw:
        """Return the arguments under the server's names, with defaults and constants."""
        given = decode_arguments(arguments)
        inside = {self._inside.get(name, name): given[name] for name in given if name not in self._hidden}
        return Raw(jsonrpc.encode({**self._defaults, **inside, **self._constants}))


class EditError(ValueError):
    """An edit does not fit the tool."""


def edit_item(item: Raw, edit: Edit) -> Raw:
    """Return the list item of a tool as clients see it, but for its name. Raises EditError."""
    members: dict[str, Any] = {**MEMBERS_READER(item)}
    if edit.title is not None:
        members["title"] = edit.title
    if edit.description is not None:
        members["description"] = edit.description
    if edit.annotations is not None:
        hints = _OBJECT(jsonrpc.encode(edit.annotations))
        members["annotations"] = {**_read_object(members.get("annotations")), **hints}
    if edit.arguments:
        members["inputSchema"] = _edit_schema(_read_object(members.get("inputSchema")), edit.arguments)
    return Raw(jsonrpc.encode(members))


def _read_object(raw: Any) -> dict[str, Any]:
    try:
        return {} if raw is None else _OBJECT(raw)
    except InvalidJSONValue:
        return {}


def _edit_schema(
    schema: dict[str, Any], edits: Mapping[str, EditedArgument | ConstantArgument]
) -> dict[str, Any]:
    given: Any = schema.get("properties")
    before: dict[str, Any] = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    unknown = [name for name in edits if name not in before]
    if unknown:
        known = ", ".join(before) or "none"
        raise EditError(f"unknown argument {unknown[0]!r} (expected one of: {known})")
    listed: Any = schema.get("required")
    required: list[Any] = list(cast("list[Any]", listed)) if isinstance(listed, list) else []
    after: dict[str, Any] = {}
    for name, property_schema in before.items():
        edit = edits.get(name)
        shown = name if not isinstance(edit, EditedArgument) or edit.name is None else edit.name
        if isinstance(edit, ConstantArgument):
            required = [each for each in required if each != name]
            continue
        if shown in after or (shown != name and shown in before and shown not in edits):
            raise EditError(f"two arguments would be named {shown!r}")
        after[shown] = property_schema if edit is None else _edit_property(property_schema, edit, schema)
        if edit is None:
            continue
        is_required = name in required and edit.default is UNSET
        required = [each for each in required if each != name]
        if is_required if edit.required is None else edit.required:
            required.append(shown)
    changed = {**schema, "properties": after, "required": required}
    if not required:
        del changed["required"]
    return changed


def _edit_property(property_schema: Any, edit: EditedArgument, root: dict[str, Any]) -> Any:
    """Return the schema of an argument, its `$ref` resolved, since members beside one may be ignored."""
    shown: Any = property_schema if edit.schema is None else edit.schema
    if edit.description is None and edit.default is UNSET:
        return shown
    for _ in range(_MAX_REFERENCES):
        target = cast("dict[str, Any]", shown).get("$ref") if isinstance(shown, dict) else None
        found = _find_definition(root, target) if isinstance(target, str) else None
        if found is None:
            break
        others = {key: value for key, value in cast("dict[str, Any]", shown).items() if key != "$ref"}
        shown = {**found, **others}
    if not isinstance(shown, dict):
        shown = {}
    changed: dict[str, Any] = deepcopy(cast("dict[str, Any]", shown))
    if edit.description is not None:
        changed["description"] = edit.description
    if edit.default is not UNSET:
        changed["default"] = edit.default
    return changed


def _find_definition(root: dict[str, Any], reference: str) -> dict[str, Any] | None:
    """Return the schema that a reference within the document names; None if there is none."""
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        found = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None
