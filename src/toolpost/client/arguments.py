"""Validates arguments of public client methods, so that errors name the argument.

Makes the checks that a type checker would make, for callers who run none, and encodes the arguments of tools.
Sending is left to others.
"""

from collections.abc import Mapping
from typing import Any

from toolpost.errors import LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.types.base import JSON, Raw
from toolpost.types.prompts import Prompt, PromptReference, Reference, ResourceReference
from toolpost.types.resources import ResourceTemplate


def check_seconds(what: str, value: Any) -> None:
    """Check that a value is None or a positive number of seconds."""
    if value is None:
        return
    if not isinstance(value, int | float):
        raise TypeError(f"{what}: a number of seconds or None, not {value!r}")
    if not value > 0:
        raise ValueError(f"{what}: more than 0 seconds, not {value!r}")


def check_mapping(what: str, value: Any) -> dict[str, Any]:
    """Return a mapping of names to values as a dict, empty for None. Raises `TypeError` for anything else."""
    if value is None:
        return {}
    # Nearly all are plain dicts; to ask the abstract class takes four times as long.
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(
            f'{what}: a mapping of names to values, such as {{"name": value}}, not a {type(value).__name__}'
        )
    plain: dict[Any, Any] = {**value}
    for key in plain:
        if not isinstance(key, str):
            raise TypeError(f"{what}: names are strings, not {key!r}")
    return plain


def encode_arguments(tool: str, arguments: Any) -> Raw:
    """Encode the arguments of a tool as JSON. Raises `LocalProtocolError` naming the one that cannot be."""
    plain: Any = arguments
    if type(arguments) is not dict:  # as nearly all are, and need no copy
        plain = check_mapping("arguments", arguments)
    for key in plain:
        if type(key) is not str:
            plain = check_mapping("arguments", plain)  # which says what is wrong with it
            break
    try:
        return Raw(jsonrpc.encode(plain))
    except LocalProtocolError as error:
        guilty = ", ".join(repr(key) for key, value in plain.items() if not _is_encodable({key: value}))
        raise LocalProtocolError(f"tool {tool!r}, argument {guilty}: {error.message}") from error


def _is_encodable(value: JSON) -> bool:
    try:
        jsonrpc.encode(value)
    except LocalProtocolError:
        return False
    return True


def make_reference(ref: JSON) -> Reference:
    """Return the reference that a completion belongs to. An ambiguous string is a `ValueError`."""
    if isinstance(ref, PromptReference | ResourceReference):
        return ref
    if isinstance(ref, Prompt):
        return PromptReference(name=ref.name)
    if isinstance(ref, ResourceTemplate):
        return ResourceReference(uri=ref.uri_template)
    if not isinstance(ref, str):
        raise TypeError(
            f"ref: a prompt, a resource template, a reference or a string, not a {type(ref).__name__}"
        )
    if "{" in ref or "://" in ref:
        return ResourceReference(uri=ref)
    if ":" in ref:
        raise ValueError(
            f"ref: {ref!r} may be a prompt or a template: "
            f"give PromptReference(name={ref!r}) or ResourceReference(uri={ref!r})"
        )
    return PromptReference(name=ref)
