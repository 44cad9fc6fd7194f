"""Evaluates the annotations of a function, and reads the descriptions in its docstring.

`type_compiler` compiles the annotated types.
"""

import functools
import inspect
import re
import sys
import types
import typing
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, ForwardRef, TypeVar, Union, cast, get_args, get_origin

from toolpost.server.signature.errors import SignatureError

UNION_TYPES: Final = frozenset({Union, types.UnionType})


def unwrap_layers(fn: Any) -> Iterator[Any]:
    """Yield the callable and the callables that it wraps, down to the function of the author."""
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
    """Looks up the names in the annotations of one function, or of a callable that wraps one.

    A name that Python does not find may be local to the function that is defining this one right now, so the
    callers of `evaluate` in the same module are searched next.
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
        """Return the type of an annotation of the function."""
        if isinstance(annotation, type) and get_origin(annotation) is None:
            return cast("Any", annotation)
        return self._evaluate(annotation, self._globals, self._locals)[0]

    def resolve_class_hints(self, it: Any) -> tuple[dict[str, Any], bool]:
        """Return the annotations of a class, and whether its own module has all names in them."""
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
        except Exception as error:  # an annotation is code, and may raise anything
            shown = annotation if isinstance(annotation, str) else repr(annotation)
            raise SignatureError(
                f"the annotation {shown!r} cannot be evaluated: {error}",
                hint="define or import its names outside of `if TYPE_CHECKING`",
            ) from error

    def _find_caller_locals(self) -> dict[str, Any]:
        """Return the local names of the running calls in the function's module; inner ones win."""
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
    if isinstance(it, TypeVar):
        return variables.get(it, it)
    inner = getattr(it, "__parameters__", ()) if variables and get_origin(it) is not None else ()
    return it[tuple(variables.get(one, one) for one in inner)] if inner else it


def resolve_alias(it: Any) -> Any:
    """Return the type behind an alias, a `NewType` or a type variable; any other type is its own."""
    origin = get_origin(it)
    if hasattr(origin or it, "__value__"):  # `type X = …`, with or without arguments
        return it.__value__ if origin is None else origin.__value__[get_args(it)]
    if isinstance(it, TypeVar):
        return it.__bound__ or (Union[it.__constraints__] if it.__constraints__ else Any)  # noqa: UP007 - of a tuple
    return str if it is typing.LiteralString else getattr(it, "__supertype__", it)


def describe_type(it: Any) -> str:
    """Return a type as its author wrote it, roughly."""
    if isinstance(it, type) and get_origin(it) is None:
        return it.__name__
    return repr(it).replace("typing.", "").replace("collections.abc.", "")


def make_label(it: Any) -> str:
    """Return a label for a type, from the names of its parts."""
    if get_origin(it) is Annotated:
        return make_label(get_args(it)[0])
    names = [getattr(get_origin(it) or it, "__name__", "value"), *map(make_label, get_args(it))]
    return "_".join(names)


# --------------------------------------------------------------------- docstrings

_PARAMETER_SECTIONS: Final = frozenset(
    {"args", "arguments", "attributes", "parameters", "params"}
    | {"keyword args", "keyword arguments", "other parameters"}
)
# Strings: `re` compiles one when it is first needed, and caches it. A type in Google's style may have
# parentheses of its own, two levels of them.
_GOOGLE_PATTERN: Final = r"\*{0,2}(\w+)\s*(?:\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))?\s*:(.*)"
_NUMPY_PATTERN: Final = r"\*{0,2}\w+(?:, ?\*{0,2}\w+)*(?: ?:.*)?"
_SPHINX_PATTERN: Final = (
    r":(param|parameter|arg|argument|key|keyword|type)\s+(?:[^:]*\s)?\*{0,2}([^:\s]+)\s*:(.*)"
)


def parse_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """Split a docstring in the style of Google, NumPy or Sphinx into prose and descriptions by parameter."""
    blocks: deque[list[str]] = deque()  # each is a line with the indented and empty lines below it
    for line in inspect.cleandoc(doc or "").splitlines():
        if blocks and (not line or line[0].isspace()):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    prose: list[str] = []
    found: dict[str, list[str]] = {}
    while blocks:
        block = blocks.popleft()
        is_section = block[0].rstrip(": ").lower() in _PARAMETER_SECTIONS
        if is_section and _is_heading(block, blocks):
            blocks.popleft()
            _read_numpy_entries(blocks, found)
        elif is_section and block[0].endswith(":"):
            _read_google_entries(block[1:], found)
        elif block[0].startswith(":") and (field := re.match(_SPHINX_PATTERN, block[0])):
            if field[1] != "type":
                found[field[2]] = [field[3], *block[1:]]
        else:
            prose += block
    summary = "\n".join(prose).strip()
    if "\n\n\n" in summary:
        summary = re.sub(r"\n{3,}", "\n\n", summary)
    described = {name: " ".join(filter(None, map(str.strip, lines))) for name, lines in found.items()}
    return summary, {name: text for name, text in described.items() if text}


def _is_heading(block: list[str], following: deque[list[str]]) -> bool:
    """Return whether a block is a heading in NumPy's style: one line, and a line of dashes below."""
    return len(block) == 1 and len(following) > 0 and not following[0][0].strip("-= ")


def _read_google_entries(lines: list[str], found: dict[str, list[str]]) -> None:
    """Read the indented lines below `Args:`; the first one has the indentation of a name."""
    indents = [len(line) - len(line.lstrip()) for line in lines]
    level = next((indent for line, indent in zip(lines, indents, strict=True) if line.strip()), 0)
    description: list[str] = []
    for line, indent in zip(lines, indents, strict=True):
        entry = re.match(_GOOGLE_PATTERN, line.strip()) if indent == level else None
        if entry is not None:
            description = found.setdefault(entry[1], [])
        description.append(line if entry is None else entry[2])


def _read_numpy_entries(blocks: deque[list[str]], found: dict[str, list[str]]) -> None:
    """Read the entries below an underlined heading, up to another heading or prose."""
    while blocks and re.fullmatch(_NUMPY_PATTERN, blocks[0][0]):
        block = blocks.popleft()
        if _is_heading(block, blocks):
            blocks.appendleft(block)
            return
        for name in block[0].partition(":")[0].split(","):
            found[name.strip("* ")] = block[1:]
