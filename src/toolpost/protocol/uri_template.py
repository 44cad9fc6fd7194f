"""URI templates (RFC 6570): parsed once, then matched against URIs.

Owns the grammar and the rules of matching, which the RFC leaves open. A match follows a plan that is made
once, without backtracking, and keeps decoded values inside their directory. Expanding a template is left to
clients. Knows nothing of resources or of any file system.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, NoReturn, TypeAlias
from urllib.parse import quote, unquote_to_bytes

MAX_TEMPLATE: Final = 4096  # characters of a template
MAX_VARIABLES: Final = 64  # variables of a template, repetitions counted
MAX_URI: Final = 128 * 1024  # characters of a URI that is matched: room for a long query

UriValues: TypeAlias = dict[str, str | list[str] | dict[str, str]]
"""The values in a URI: text, the segments of `{/name*}`, the parameters of `{?name*}`."""

_OPERATORS: Final = "+#./;?&"
_SAFE_CHARACTERS: Final = ":/?#[]@!$&'()*+,;=%"
# Characters that neither a URI nor the literals of a template allow (RFC 6570, 2.1, with erratum 6937).
_ILLEGAL: Final = re.compile(r'[\x00-\x20"<>\\^`{|}\x7f-\x9f\ud800-\udfff]|%(?![0-9A-Fa-f]{2})')
_WORD: Final = r"(?:\w|%[0-9A-Fa-f]{2})"
_VARIABLE_SPEC: Final = re.compile(rf"({_WORD}(?:\.?{_WORD})*)(?:\*|:([1-9][0-9]{{0,3}}))?", re.ASCII)


class Variable(NamedTuple):
    """A variable of an expression, with its modifier: `:3` or `*`."""

    name: str
    prefix: int = 0
    explode: bool = False


class Expression(NamedTuple):
    """An expression in braces."""

    operator: str
    variables: tuple[Variable, ...]

    @property
    def names(self) -> list[str]:
        """The names of its variables."""
        return [variable.name for variable in self.variables]


TemplateParts: TypeAlias = list[str | Expression]
"""A parsed template. The literals are percent-encoded."""


class UriTemplate:
    """A URI template; ValueError if the text is invalid, or exceeds `MAX_TEMPLATE` or `MAX_VARIABLES`.

    `variables` are the names in order of appearance, each once. `unmatchable` explains why `match` could not
    separate the variables, and what to do; it is None if it can.

    Example:
        >>> template = UriTemplate("repo://{owner}/{name}{/path*}{?ref}")
        >>> template.match("repo://ann/shop/src/a%20b.py?ref=v2")
        {'owner': 'ann', 'name': 'shop', 'path': ['src', 'a b.py'], 'ref': 'v2'}
    """

    __slots__ = ("_parts", "_plan", "text", "unmatchable", "variables")

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self._parts: Final = _parse_template(text)
        self.variables: Final = tuple(dict.fromkeys(_list_names(self._parts)))
        self.unmatchable: str | None = None
        self._plan: _MatchPlan | None = None
        try:
            self._plan = _make_match_plan(self._parts)
        except ValueError as reason:
            self.unmatchable = (
                f"the URI template {_quote_text(text)} can be expanded but not matched: {reason}"
            )

    def match(self, uri: str) -> UriValues | None:
        r"""Return the values of the variables in a URI, or None if it does not match the whole template.

        - `{name}` takes one character or more, without a raw `/`, `?` or `#`, nor a raw `&` if the template
          has a literal `?`. It ends where the literal after it occurs first; the last one takes the rest.
        - One expression of the path may vary in width: `{+name}`, `{/…}`, `{.…}` or `{;…}`. It takes what the
          others leave over, so `{+path}/end` works. Right of it, a literal counts where it occurs last.
        - `{/a,b}` and `{.a,b}` fill their names in order; the last label may hold dots. `{/a,name*}` gives
          `name` the list of the segments that are left. No segment is empty.
        - `{;a,b}`, `{?a,b}` and `{&a,b}` find parameters by name, in any order. Unknown ones are ignored in a
          query, or gathered by `{?name*}`. One that appears twice does not match. A `+` is not a space.
        - Query and fragment come last, in one expression each, at the first raw `?`, `&` or `#` that the
          literals do not account for.

        A value is percent-decoded exactly once, as UTF-8. So that no value leads out of a directory, there is
        no match where, after decoding, a value of `{name}`, `{.name}`, `{/name}` or `{;name}` is `.` or `..`
        or holds `/`, `\` or NUL, or one of `{+name}` holds NUL, has `.` or `..` as a segment (`\` counts as a
        slash), or is absolute: write `file:///{+path}` and not `file://{+path}`. Queries and fragments are
        free text, left for the author to check. Raises ValueError if the template is `unmatchable`.
        """
        if self._plan is None:
            raise ValueError(self.unmatchable)
        if len(uri) > MAX_URI or _ILLEGAL.search(uri):
            return None
        try:
            found = _read_uri(self._plan, quote(uri, safe=_SAFE_CHARACTERS))
        except ValueError:
            return None
        return {name: found[name] for name in self.variables if name in found}


# --------------------------------------------------------------------- parse


def _parse_template(text: str) -> TemplateParts:
    if len(text) > MAX_TEMPLATE:
        raise ValueError(f"URI template too long: {len(text)} characters (limit: {MAX_TEMPLATE})")
    literal, *chunks = text.split("{")
    parts: TemplateParts = [_parse_literal(text, 0, literal)]
    at = len(literal) + 1
    for chunk in chunks:
        inner, closed, literal = chunk.partition("}")
        if not closed:
            raise _make_syntax_error(text, at - 1, "unclosed expression", "close it with '}'")
        parts += _parse_expression(text, at, inner), _parse_literal(text, at + len(inner) + 1, literal)
        at += len(chunk) + 1
    if (count := len(_list_names(parts))) > MAX_VARIABLES:
        raise ValueError(f"too many variables in the URI template: {count} (limit: {MAX_VARIABLES})")
    return [part for part in parts if part]


def _parse_literal(text: str, at: int, literal: str) -> str:
    if wrong := _ILLEGAL.search(literal):
        do = "open an expression with '{', or remove it" if wrong[0] == "}" else "percent-encode it"
        raise _make_syntax_error(text, at + wrong.start(), f"unexpected {wrong[0]!r}", do)
    return quote(literal, safe=_SAFE_CHARACTERS)


def _parse_expression(text: str, at: int, inner: str) -> Expression:
    if not inner:
        raise _make_syntax_error(text, at, "empty expression", "name a variable, as in {name}")
    if inner[0] in "=,!@|":
        problem = f"reserved operator {inner[0]!r}"
        raise _make_syntax_error(text, at, problem, "use one of + # . / ; ? & or none")
    operator = inner[0] if inner[0] in _OPERATORS else ""
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
        do = "use letters, digits, '_' and single dots, then nothing, '*', or ':' and a number up to 9999"
        raise _make_syntax_error(text, at + end, f"invalid variable {_quote_text(spec)}", do)
    return Variable(found[1], prefix=int(found[2] or 0), explode=spec.endswith("*"))


def _list_names(parts: TemplateParts) -> list[str]:
    return [name for part in parts if isinstance(part, Expression) for name in part.names]


def _make_syntax_error(text: str, at: int, problem: str, do: str) -> ValueError:
    return ValueError(f"{problem} at position {at} of the URI template {_quote_text(text)}: {do}")


def _quote_text(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


# --------------------------------------------------------------------- match: the plan

_SEGMENT_ENDS: Final = frozenset("/?#")
_DOT_SEGMENTS: Final = frozenset({".", ".."})
_UNSAFE_CHARACTERS: Final = frozenset("/\\\0")
_MatchStep: TypeAlias = tuple[str, str]  # the name in a {name}, or nothing, and the literal where it ends


class _MatchPlan(NamedTuple):
    """The path as two sides of fixed shape and a middle between them; then query and fragment."""

    left: list[_MatchStep]
    middle: Expression | None
    right: list[_MatchStep]  # mirrored, to be read from the end of the path
    ends: frozenset[str]  # characters that are never raw in a segment
    endings: list[tuple[Expression, int]]  # the last first, with how many of its sign the literals have


def _make_match_plan(parts: TemplateParts) -> _MatchPlan:
    """Plan the match of a template; ValueError if it is ambiguous."""
    _check_variables(parts)
    body = parts.copy()
    endings: list[tuple[Expression, int]] = []
    for signs in ({"#"}, {"?", "&"}):
        if body and not isinstance(last := body[-1], str) and last.operator in signs:
            body.pop()
            endings.append((last, sum(part.count(last.operator) for part in body if isinstance(part, str))))
    literals, places = _split_path(body)
    middle = _find_middle(literals, places)
    names = [place.names[0] for place in places]
    left = zip(["", *names[:middle]], literals[: middle + 1], strict=True)
    mirrored = [literal[::-1] for literal in literals[:middle:-1]]
    right = zip(["", *names[:middle:-1]], mirrored, strict=False)
    ends = _SEGMENT_ENDS | {"&"} if any("?" in literal for literal in literals) else _SEGMENT_ENDS
    return _MatchPlan(list(left), places[middle] if places else None, list(right), ends, endings)


def _check_variables(parts: TemplateParts) -> None:
    expressions = [part for part in parts if not isinstance(part, str)]
    names = [name for expression in expressions for name in expression.names]
    for expression in expressions:
        operator, variables = expression
        last = variables[-1]
        if operator in {"+", "#"} and len(variables) > 1:
            _refuse(expression.names, "the values of %s may contain the comma between them; keep only one")
        for variable in variables:
            name, prefix, explode = variable
            if prefix:
                _refuse([name], "%s is only a prefix of the value; remove the ':' and its number")
            if explode and (variable is not last or operator not in {"/", "?", "&"}):
                _refuse([name], "the '*' of %s is allowed only at the end of {/…*} and {?…*}; remove it")
            if "%" in name:
                _refuse([name], "the name %s has percent escapes; choose a plain name")
            if names.count(name) > 1:
                _refuse([name], "%s appears twice; use different names")


def _split_path(body: TemplateParts) -> tuple[list[str], list[Expression]]:
    """Split the path into literals, perhaps empty, and the expressions between them."""
    literals = [""]
    places: list[Expression] = []
    for part in body:
        if isinstance(part, str):
            literals[-1] += part
        elif part.operator in {"#", "?", "&"}:
            _refuse(
                part.names, "the query or fragment with %s is not at the end; use the order path{?a,b}{#c}"
            )
        elif part.operator:
            places.append(part)
            literals.append("")
        else:
            places += [part._replace(variables=(variable,)) for variable in part.variables]
            literals += [","] * (len(part.variables) - 1) + [""]
    return literals, places


def _find_middle(literals: list[str], places: list[Expression]) -> int:
    """Return the index of the expression that takes the rest: the one of varying width, or the last."""
    wide = [number for number, place in enumerate(places) if place.operator]
    if len(wide) > 1:
        names = [name for number in wide for name in places[number].names]
        _refuse(names, "it is ambiguous where each of %s ends; use one expression, as in {/a,b}")
    for number, literal in enumerate(literals[1:-1]):
        one, other = places[number : number + 2]
        if not literal and other.operator in {"", "+"}:
            _refuse(one.names + other.names, "nothing separates %s; put a literal between them: {a}/{b}")
    return wide[0] if wide else max(len(places) - 1, 0)


def _refuse(names: Iterable[str], why: str) -> NoReturn:
    raise ValueError(why % " and ".join(map(repr, names)))


# --------------------------------------------------------------------- match: reading


def _read_uri(plan: _MatchPlan, uri: str) -> UriValues:
    """Return the values in a URI, which is ASCII without a broken escape; ValueError if it does not match."""
    found: UriValues = {}
    for expression, before in plan.endings:
        pieces = uri.split(expression.operator, before + 1)
        if len(pieces) > before + 1:
            uri = uri[: -len(pieces[-1]) - 1]
            found |= _read_values(expression, pieces[-1], plan.ends)
    mirrored, length = _walk_steps(plan.right, uri[::-1], "")
    path = uri[: len(uri) - length]
    sign = plan.middle.operator.strip("+") if plan.middle else ""
    taken, length = _walk_steps(plan.left, path, sign)
    taken += [(name, text[::-1]) for name, text in mirrored]
    found |= {name: _read_segment(text, plan.ends) for name, text in taken}
    rest = path[length:]
    if plan.middle and rest.startswith(sign):
        found |= _read_values(plan.middle, rest[len(sign) :], plan.ends)
    elif rest:
        raise ValueError  # no match
    return found


def _walk_steps(steps: list[_MatchStep], text: str, sign: str) -> tuple[list[tuple[str, str]], int]:
    """Return what each `{name}` takes from the text, and where the steps end."""
    taken: list[tuple[str, str]] = []
    at = 0
    for name, literal in steps:
        end = at
        if name:
            # Without a literal the sign of the middle ends it, and the middle may be undefined.
            end = text.find(literal or sign, at + 1)
            end = len(text) if end < 0 else end
            taken.append((name, text[at:end]))
        if not text.startswith(literal, end):
            raise ValueError  # no match
        at = end + len(literal)
    return taken, at


def _read_values(expression: Expression, text: str, ends: frozenset[str]) -> UriValues:
    """Read the values of an expression behind its operator."""
    operator, variables = expression
    name, _, explode = variables[-1]
    if operator in {";", "?", "&"}:
        return _read_parameters(expression, text, ends)
    if operator in {"+", "#"}:
        return {name: _percent_decode(text) if operator == "#" else _read_tail(text)}
    pieces = text.split(operator, -1 if explode else len(variables) - 1) if operator else [text]
    values = [_read_segment(piece, ends) for piece in pieces]
    found: UriValues = dict(zip(expression.names, values, strict=False))
    if explode and name in found:
        found[name] = values[len(variables) - 1 :]
    return found


def _read_parameters(expression: Expression, text: str, ends: frozenset[str]) -> UriValues:
    if "#" in text:
        raise ValueError  # no match
    operator, variables = expression
    names = [variable.name for variable in variables if not variable.explode]
    gathers = variables[-1].explode
    seen: dict[str, str] = {}
    for piece in filter(None, text.split(";" if operator == ";" else "&")):
        key, _, raw = piece.partition("=")
        key = _percent_decode(key)
        if key in names or gathers:
            if key in seen:
                raise ValueError  # no match
            seen[key] = _read_segment(raw, ends) if raw and operator == ";" else _percent_decode(raw)
        elif operator == ";":
            raise ValueError  # no match
    found: UriValues = {name: seen.pop(name) for name in names if name in seen}
    if gathers and seen:
        found[variables[-1].name] = seen
    return found


# --------------------------------------------------------------------- match: one value


def _percent_decode(text: str) -> str:
    # A literal may have been found inside an escape: then the text before it ends in the middle of one.
    if "%" in text[-2:]:
        raise ValueError  # no match
    return unquote_to_bytes(text).decode()


def _read_segment(text: str, ends: frozenset[str]) -> str:
    value = _percent_decode(text)
    if (
        not value
        or value in _DOT_SEGMENTS
        or not ends.isdisjoint(text)
        or not _UNSAFE_CHARACTERS.isdisjoint(value)
    ):
        raise ValueError  # no match
    return value


def _read_tail(text: str) -> str:
    value = _percent_decode(text)
    segments = value.replace("\\", "/").split("/")
    # An empty first segment is the slash of an absolute path, and a colon in it that of a Windows drive:
    # joined to a directory, either would replace it.
    if not segments[0] or segments[0][1:2] == ":" or "\0" in value or not _DOT_SEGMENTS.isdisjoint(segments):
        raise ValueError  # no match
    return value
