"""Reads what a function says about itself: names in its annotations, descriptions in its docstring.

What the annotated types mean is the business of `type_compiler`.
"""

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import (
    Annotated,
    Any,
    Final,
    ForwardRef,
    LiteralString,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from msgspec import Struct

from toolpost.server.signature.errors import SignatureError

UNION_TYPES: Final = frozenset({Union, types.UnionType})


def unwrap_layers(fn: Any) -> Iterator[Any]:
    """Yield the callable, and what it calls in turn, down to the function that was written."""
    while True:
        yield fn
        if isinstance(fn, functools.partial):
            fn = cast("functools.partial[Any]", fn).func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif not inspect.isroutine(fn) and not isinstance(fn, type):
            fn = type(fn).__call__
        else:
            return


class AnnotationScope:
    """Looks up the names in the annotations of one function, or of a callable that leads to one.

    First where Python looks. A name that is not found there may be local to the function that is defining
    this one right now, so the callers of `bind` in the same module come next; nothing of them is kept.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._globals: dict[str, Any] = {}
        self._locals: dict[str, Any] = {}
        *_, written = unwrap_layers(fn)
        if isinstance(written, types.FunctionType):
            self._globals = written.__globals__
            for name, cell in zip(written.__code__.co_freevars, written.__closure__ or (), strict=True):
                with suppress(ValueError):  # empty: the name gets its value later
                    self._locals[name] = cell.cell_contents
            self._locals |= {kind.__name__: kind for kind in getattr(written, "__type_params__", ())}

    def evaluate(self, annotation: Any) -> Any:
        """Return the type that an annotation of the function means."""
        if isinstance(annotation, type) and get_origin(annotation) is None:
            return cast("Any", annotation)
        return self._evaluate(annotation, self._globals, self._locals)[0]

    def resolve_class_hints(self, it: Any) -> tuple[dict[str, Any], bool]:
        """Return the annotations of a class, and whether the class's own module has all names in them."""
        cls = get_origin(it) or it
        found: dict[str, Any] = {}
        complete = True
        for owner, variables in _iter_bases(cls, get_args(it)):
            home = getattr(sys.modules.get(owner.__module__), "__dict__", {})
            local = {kind.__name__: kind for kind in getattr(owner, "__type_params__", ())}
            for name, annotation in inspect.get_annotations(owner).items():
                if name not in found:
                    # The module comes first, as in msgspec: a field may be called like its type.
                    kind, known = self._evaluate(annotation, {**vars(owner), **local}, home)
                    found[name] = _substitute(kind, variables)
                    complete = complete and known
        return found, complete

    def _evaluate(self, annotation: Any, outer: dict[str, Any], inner: dict[str, Any]) -> tuple[Any, bool]:
        """Return the type, and whether it was found without the callers."""
        if isinstance(annotation, ForwardRef):
            annotation = annotation.__forward_arg__
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            try:
                return typing.get_type_hints(holder, outer, inner, include_extras=True)["it"], True
            except NameError:
                inner = self._find_caller_locals() | self._locals | inner
                return typing.get_type_hints(holder, outer, inner, include_extras=True)["it"], False
        except Exception as error:  # an annotation is code: it may raise anything
            shown = annotation if isinstance(annotation, str) else repr(annotation)
            raise SignatureError(
                f"the annotation {shown!r} cannot be evaluated: {error}",
                hint="define or import what it names, outside of `if TYPE_CHECKING`",
            ) from error

    def _find_caller_locals(self) -> dict[str, Any]:
        """Return the local names of the calls in progress in the function's module; inner ones win."""
        found: dict[str, Any] = {}
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_globals is self._globals:
                found = {**frame.f_locals, **found}
            frame = frame.f_back
        return found


def _iter_bases(cls: type[Any], args: tuple[Any, ...]) -> Iterator[tuple[type[Any], Mapping[Any, Any]]]:
    """Yield the bases of a class, each with the values of its type variables."""
    meant: dict[type[Any], dict[Any, Any]] = {cls: _pair_type_variables(cls, args)}
    for owner in cls.__mro__[:-1]:
        variables = meant.get(owner, {})
        for base in owner.__dict__.get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type):
                given = tuple(_substitute(arg, variables) for arg in get_args(base))
                meant.setdefault(origin, _pair_type_variables(origin, given))
        yield owner, variables


def _pair_type_variables(cls: type[Any], args: tuple[Any, ...]) -> dict[Any, Any]:
    return dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))


def _substitute(it: Any, variables: Mapping[Any, Any]) -> Any:
    """Return a type with its type variables replaced."""
    if isinstance(it, TypeVar):
        return variables.get(it, it)
    inner = getattr(it, "__parameters__", ()) if variables and get_origin(it) is not None else ()
    return it[tuple(variables.get(one, one) for one in inner)] if inner else it


# --------------------------------------------------------------------- types


def resolve_alias(it: Any) -> Any:
    """Return the type behind an alias, a `NewType` or a type variable; any other type is its own."""
    origin = get_origin(it)
    if hasattr(origin or it, "__value__"):  # `type X = …`, with or without arguments
        return it.__value__ if origin is None else origin.__value__[get_args(it)]
    if isinstance(it, TypeVar):
        return it.__bound__ or (Union[it.__constraints__] if it.__constraints__ else Any)  # noqa: UP007 - of a tuple
    return str if it is LiteralString else getattr(it, "__supertype__", it)


def describe_type(it: Any) -> str:
    """Return a type as its author wrote it, more or less."""
    if isinstance(it, type) and get_origin(it) is None:
        return it.__name__
    return repr(it).replace("typing.", "").replace("collections.abc.", "")


def make_label(it: Any) -> str:
    """Return a name for a type, made of the names of its parts."""
    if get_origin(it) is Annotated:
        return make_label(get_args(it)[0])
    names = [getattr(get_origin(it) or it, "__name__", "value"), *map(make_label, get_args(it))]
    return "_".join(names)


# --------------------------------------------------------------------- docstrings

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
