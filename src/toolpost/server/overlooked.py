"""Limits inside a type that pydantic reads, and would ignore: those of `msgspec.Meta`, and ours.

Finds them wherever pydantic looks for types: in annotations, in its own classes, and in dataclasses, typed
dicts and named tuples. What else a type means is not known here.
"""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Final, Literal, cast, get_args, get_origin

from msgspec import Meta

from toolpost.server.signature.annotations import Limit, read_annotation_metadata
from toolpost.server.signature.names import AnnotationScope, resolve_alias
from toolpost.server.signature.validation import SignatureError, prefix_signature_errors

_LEAVES: Final = frozenset({Literal, ClassVar})
"""What has no type in it that a value is read by."""

_WITH_FIELDS: Final = ("__dataclass_fields__", "__required_keys__", "_fields")
"""What tells a dataclass, a typed dict, be it of typing or of its extensions, and a named tuple."""


def refuse_overlooked(it: Any, scope: AnnotationScope) -> None:
    """Return if pydantic heeds all limits in a type.

    Args:
        it: the type. Pydantic has read it before, so that it knows its fields.
        scope: where the names in annotations are looked up.

    Raises:
        SignatureError: there is one that it would ignore; the text names it, and the field.
    """
    _visit(it, scope, set())


def _visit(it: Any, scope: AnnotationScope, seen: set[Any]) -> None:
    origin, args = get_origin(it), get_args(it)
    if origin in _LEAVES:
        return
    if origin is Annotated:
        _check(args[1:])
        args = args[:1]
    for arg in args:
        _visit(arg, scope, seen)
    behind, named = resolve_alias(it), origin or it
    # A name is followed once, whatever its arguments: these have been visited, and may have no hash.
    if (behind is it and not inspect.isclass(named)) or named in seen:
        return
    seen.add(named)
    if behind is not it:
        with suppress(SignatureError):  # pydantic found what the names mean elsewhere
            behind = scope.evaluate(behind)
        _visit(behind, scope, seen)
        return
    for name, kind, marks in _fields(it, named, scope):
        with prefix_signature_errors(f"`{name}` of {named.__name__}"):
            _check(marks)
            _visit(kind, scope, seen)


def _check(marks: Iterable[Any]) -> None:
    for limit in read_annotation_metadata(mark for mark in marks if isinstance(mark, Meta | Limit)).limits:
        raise SignatureError(
            f"pydantic reads this, and would ignore the limit `{limit.name}`",
            hint="write it as `pydantic.Field`, in the same `Annotated` as what else is for pydantic",
        )


def _fields(it: Any, cls: Any, scope: AnnotationScope) -> Iterator[tuple[str, Any, Any]]:
    """The fields that pydantic reads or writes in a class: name, type, and marks that stand beside it."""
    own = cast("dict[str, Any] | None", getattr(cls, "__pydantic_fields__", None))
    if own is not None:
        yield from ((name, field.annotation, field.metadata) for name, field in own.items())
        computed = cast("dict[str, Any]", getattr(cls, "__pydantic_computed_fields__", {}))
        yield from ((name, field.return_type, ()) for name, field in computed.items())
    elif any(hasattr(cls, mark) for mark in _WITH_FIELDS):
        with suppress(SignatureError):  # pydantic found what the names mean elsewhere
            yield from ((name, kind, ()) for name, kind in scope.resolve_class_hints(it)[0].items())
