"""URI templates: parsed once, expanded by all of RFC 6570, and matched, which is the inverse.

Owns the grammar and the percent-encoding, and tells the rules of matching; the work of it is done in `match`.
Knows nothing of resources, of who asked, or of any file system.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from toolpost.protocol import match
from toolpost.protocol.match import UriValues

__all__ = [
    "MAX_TEMPLATE",
    "MAX_URI",
    "MAX_VARIABLES",
    "Expression",
    "TemplateParts",
    "UriTemplate",
    "UriValues",
    "Variable",
    "VariableValue",
]

MAX_TEMPLATE: Final = 4096
"""Characters of a template: a person writes it, and a host shows it to a person."""

MAX_VARIABLES: Final = 64
"""Variables in a template, repetitions counted: far more than a function has parameters."""

MAX_URI: Final = 128 * 1024
"""Characters of a URI to match: room for a long query, a bound on what a stranger makes us scan."""

VariableValue: TypeAlias = str | int | float | bool | Sequence[str] | Mapping[str, str] | None
"""What a variable may hold. None, an empty sequence and an empty mapping are undefined, as if left out."""

_SAFE_CHARACTERS: Final = ":/?#[]@!$&'()*+,;=%"
_LONE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# What stands neither in a URI nor in the literals of a template (RFC 6570, 2.1, with erratum 6937).
_ILLEGAL: Final = re.compile(r'[\x00-\x20"<>\\^`{|}\x7f-\x9f\ud800-\udfff]|' + _LONE_PERCENT.pattern)
_WORD: Final = r"(?:\w|%[0-9A-Fa-f]{2})"
_VARIABLE_SPEC: Final = re.compile(rf"({_WORD}(?:\.?{_WORD})*)(?:\*|:([1-9][0-9]{{0,3}}))?", re.ASCII)
# One character of a value, also where it comes percent-encoded, as one escape or as several.
_CHARACTER: Final = re.compile(r"%[0-9A-Fa-f]{2}(?:%[89ABab][0-9A-Fa-f])*|.", re.DOTALL)


class _OperatorForm(NamedTuple):
    """How an operator writes its variables (RFC 6570, appendix A)."""

    first: str
    separator: str
    named: bool = False
    empty: str = ""
    reserved: bool = False


_OPERATOR_FORMS: Final = {
    "": _OperatorForm("", ","),
    "+": _OperatorForm("", ",", reserved=True),
    "#": _OperatorForm("#", ",", reserved=True),
    ".": _OperatorForm(".", "."),
    "/": _OperatorForm("/", "/"),
    ";": _OperatorForm(";", ";", named=True),
    "?": _OperatorForm("?", "&", named=True, empty="="),
    "&": _OperatorForm("&", "&", named=True, empty="="),
}


class Variable(NamedTuple):
    """A name in an expression, with what stands behind it: `:3` or `*`."""

    name: str
    prefix: int = 0
    explode: bool = False


class Expression(NamedTuple):
    """What stands between braces."""

    operator: str
    variables: tuple[Variable, ...]

    @property
    def names(self) -> list[str]:
        """The names of its variables."""
        return [variable.name for variable in self.variables]


TemplateParts: TypeAlias = list[str | Expression]
"""A template, taken apart. The literals are percent-encoded."""


class UriTemplate:
    """A URI template. Two are equal when their texts are.

    Args:
        text: the template, such as `repo://{owner}/{name}{/path*}{?ref}`.

    Attributes:
        text: as given.
        variables: the names, in order of appearance, each once.
        unmatchable: why `match` could not tell the variables apart, and what to do; None where it can.

    Raises:
        ValueError: the text is not a template, or exceeds `MAX_TEMPLATE` or `MAX_VARIABLES`.

    Example:
        >>> template = UriTemplate("repo://{owner}/{name}{/path*}{?ref}")
        >>> template.expand({"owner": "ann", "name": "shop", "path": ["src", "a b.py"]})
        'repo://ann/shop/src/a%20b.py'
        >>> template.match("repo://ann/shop/src/a%20b.py?ref=v2")
        {'owner': 'ann', 'name': 'shop', 'path': ['src', 'a b.py'], 'ref': 'v2'}
    """

    __slots__ = ("_parts", "_plan", "text", "unmatchable", "variables")

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self._parts: Final = _parse_template(text)
        self.variables: Final = tuple(dict.fromkeys(_list_names(self._parts)))
        self.unmatchable: str | None = None
        self._plan: match.MatchPlan | None = None
        try:
            self._plan = match.make_match_plan(self._parts)
        except ValueError as reason:
            self.unmatchable = (
                f"the URI template {_quote_text(text)} can be expanded but not matched: {reason}"
            )

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, UriTemplate) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def expand(self, values: Mapping[str, VariableValue]) -> str:
        """The URI that these values give (RFC 6570, all four levels).

        Numbers and booleans are written as `str` writes them; a mapping keeps its order. What is missing is
        undefined; names that the template does not have are ignored.

        Raises:
            ValueError: a text has a lone surrogate, or a variable with a prefix (`{name:3}`) holds no text.
            TypeError: a value is none of the kinds in `VariableValue`.
        """
        return "".join(
            part if isinstance(part, str) else _expand_expression(part, values) for part in self._parts
        )

    def match(self, uri: str) -> UriValues | None:
        r"""The values that give this URI, or None where it is none of the template's.

        The whole URI must match. Literals match themselves. What the URI does not carry is absent from the
        result. A URI is taken apart by these rules:

        - `{name}` takes one character or more, without a raw `/`, `?` or `#`, nor a raw `&` if the template
          has a literal `?`. It ends where the literal after it occurs first; the last one takes all there is.
        - One expression of the path may vary in width: `{+name}`, `{/…}`, `{.…}` or `{;…}`. It takes what the
          others leave over, so `{+path}/end` works. Right of it, a literal counts where it occurs last.
        - `{/a,b}` and `{.a,b}` fill their names in order; the last label may hold dots. `{/a,name*}` gives
          `name` the list of the segments that are left. No segment is empty.
        - `{;a,b}`, `{?a,b}` and `{&a,b}` find parameters by name, in any order. Unknown ones are ignored in a
          query, or gathered by `{?name*}`. One that comes twice is no match. A `+` is not a space.
        - Query and fragment come last, in one expression each. It begins at the first raw `?`, `&` or `#` of
          the URI that the literals do not account for.

        A value is percent-decoded exactly once. A broken escape, or bytes that are not UTF-8, are no match.
        So that no value leads out of a directory, there is no match either where, after decoding,

        - a value of `{name}`, `{.name}`, `{/name}` or `{;name}` is `.` or `..` or holds `/`, `\` or NUL;
        - a value of `{+name}` holds NUL, has `.` or `..` as a segment, or begins with a slash. Here `\` is a
          slash as well. It is never an absolute path, so write `file:///{+path}` and not `file://{+path}`.

        Left for the author to check: queries and fragments, which are free text, and drives such as `C:`.

        For a matchable template `match(expand(values)) == values`, save for what is undefined; empty values
        but in `{;name}`, queries and fragments; numbers, lists but in `{/name*}` and mappings but in
        `{?name*}`, which come back as text or not at all; values that the rules refuse; values whose encoded
        form has in it what would end them; a name left out before one given in `{/a,b}` or `{.a,b}`; a key
        `a` in `{?a,name*}`; escapes in `{+name}` and `{#name}`, which come back decoded.

        Raises:
            ValueError: the template is `unmatchable`.
        """
        if self._plan is None:
            raise ValueError(self.unmatchable)
        if len(uri) > MAX_URI or _ILLEGAL.search(uri):
            return None
        found = match.match_uri(self._plan, quote(uri, safe=_SAFE_CHARACTERS))
        return None if found is None else {name: found[name] for name in self.variables if name in found}


# --------------------------------------------------------------------- parse


def _parse_template(text: str) -> TemplateParts:
    if len(text) > MAX_TEMPLATE:
        raise ValueError(f"a URI template has at most {MAX_TEMPLATE} characters, not {len(text)}: shorten it")
    literal, *chunks = text.split("{")
    parts: TemplateParts = [_parse_literal(text, 0, literal)]
    at = len(literal) + 1
    for chunk in chunks:
        inner, closed, literal = chunk.partition("}")
        if not closed:
            raise _make_syntax_error(text, at - 1, "an expression is not closed", "close it with '}'")
        parts += _parse_expression(text, at, inner), _parse_literal(text, at + len(inner) + 1, literal)
        at += len(chunk) + 1
    if (count := len(_list_names(parts))) > MAX_VARIABLES:
        raise ValueError(f"a URI template has at most {MAX_VARIABLES} variables, not {count}: use fewer")
    return [part for part in parts if part]


def _parse_literal(text: str, at: int, literal: str) -> str:
    if wrong := _ILLEGAL.search(literal):
        do = "open an expression with '{', or remove it" if wrong[0] == "}" else "percent-encode it"
        raise _make_syntax_error(text, at + wrong.start(), f"{wrong[0]!r} may not stand", do)
    return quote(literal, safe=_SAFE_CHARACTERS)


def _parse_expression(text: str, at: int, inner: str) -> Expression:
    if not inner:
        raise _make_syntax_error(text, at, "an expression is empty", "name a variable, as in {name}")
    if inner[0] in "=,!@|":
        raise _make_syntax_error(
            text, at, f"the operator {inner[0]!r} is reserved", "use one of + # . / ; ? & or none"
        )
    operator = inner[0] if inner[0] in _OPERATOR_FORMS else ""
    at += len(operator)
    variables: list[Variable] = []
    for spec in inner[len(operator) :].split(","):
        variables.append(_parse_variable(text, at, spec))
        at += len(spec) + 1
    return Expression(operator, tuple(variables))


def _parse_variable(text: str, at: int, spec: str) -> Variable:
    found = _VARIABLE_SPEC.match(spec)
    end = found.end() if found else 0
    if not found or end < len(spec):
        do = "write letters, digits, '_' and single dots, then nothing, '*', or ':' and a number up to 9999"
        raise _make_syntax_error(text, at + end, f"{_quote_text(spec)} is not a variable", do)
    return Variable(found[1], prefix=int(found[2] or 0), explode=spec.endswith("*"))


def _list_names(parts: TemplateParts) -> list[str]:
    return [name for part in parts if isinstance(part, Expression) for name in part.names]


def _make_syntax_error(text: str, at: int, what: str, do: str) -> ValueError:
    return ValueError(f"{what} at position {at} of the URI template {_quote_text(text)}: {do}")


def _quote_text(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


# --------------------------------------------------------------------- expand


def _expand_expression(expression: Expression, values: Mapping[str, VariableValue]) -> str:
    form = _OPERATOR_FORMS[expression.operator]
    pieces: list[str] = []
    for variable in expression.variables:
        pieces += _expand_variable(variable, values.get(variable.name), form)
    return form.first + form.separator.join(pieces) if pieces else ""


def _expand_variable(variable: Variable, value: VariableValue, form: _OperatorForm) -> list[str]:
    """What a variable gives, to be joined by the separator; nothing where it is undefined."""
    name, prefix, explode = variable
    if value is None:
        return []
    if isinstance(value, str | bytes) or not isinstance(value, Mapping | Sequence):
        return [_format_piece(name, _encode_value(name, value, form, prefix), form)]
    if not value:
        return []
    if prefix:
        raise ValueError(f"the variable {name!r} is cut to {prefix} characters: give it text, not a list")
    if isinstance(value, Mapping):
        # In the named forms the RFC keeps the reserved characters of keys. A key with "&" would then become
        # two parameters, so keys are encoded like values there too, as others do.
        pairs = [
            (_encode_value(name, key, form), _encode_value(name, item, form)) for key, item in value.items()
        ]
        exploded = [_format_piece(key, item, form) if form.named else f"{key}={item}" for key, item in pairs]
        joined = ",".join(f"{key},{item}" for key, item in pairs)
    else:
        items = [_encode_value(name, item, form) for item in value]
        exploded = [_format_piece(name, item, form) for item in items]
        joined = ",".join(items)
    if explode:
        return exploded
    return [f"{name}={joined}" if form.named else joined]


def _format_piece(key: str, text: str, form: _OperatorForm) -> str:
    if not form.named:
        return text
    return f"{key}={text}" if text else key + form.empty


def _encode_value(name: str, value: object, form: _OperatorForm, prefix: int = 0) -> str:
    if not isinstance(value, str | int | float):
        kinds = "give text, a number, or a list or mapping of texts"
        raise TypeError(f"the variable {name!r} holds a value of type {type(value).__name__}: {kinds}")
    text = str(value)
    if prefix:
        # Escapes pass through the reserved forms, so a prefix must not cut one in two.
        characters = (found[0] for found in _CHARACTER.finditer(text)) if form.reserved else text
        text = "".join(islice(characters, prefix))
    try:
        return (
            quote(_LONE_PERCENT.sub("%25", text), safe=_SAFE_CHARACTERS)
            if form.reserved
            else quote(text, safe="")
        )
    except UnicodeEncodeError as error:
        raise ValueError(f"the variable {name!r} holds a lone surrogate: no URI can carry it") from error
