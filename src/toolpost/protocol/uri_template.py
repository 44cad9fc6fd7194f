"""URI templates (RFC 6570): parsed once, then matched against URIs.

Owns the grammar and the rules of matching, which the RFC leaves open. A match follows a plan that is made
once, without backtracking, and keeps decoded values inside their directory. Expanding a template is left to
clients. Knows nothing of resources or of any file system.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, NoReturn, TypeAlias
from urllib.parse import quote, unquote_to_bytes

MAX_TEMPLATE: Final = 4096
"""How many characters a template may have."""

MAX_VARIABLES: Final = 64
"""How many variables a template may have, repetitions counted."""

MAX_URI: Final = 128 * 1024
"""How many characters a URI may have to be matched: room for a long query."""

UriValues: TypeAlias = dict[str, str | list[str] | dict[str, str]]
"""The values in a URI: text, the segments of `{/name*}`, the parameters of `{?name*}`."""

_OPERATORS: Final = "+#./;?&"
_SAFE_CHARACTERS: Final = ":/?#[]@!$&'()*+,;=%"
# What stands neither in a URI nor in the literals of a template (RFC 6570, 2.1, with erratum 6937).
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
    """A URI template; ValueError if the text is none, or exceeds `MAX_TEMPLATE` or `MAX_VARIABLES`.

    Attributes:
        text: as given.
        variables: the names, in order of appearance, each once.
        unmatchable: why `match` could not tell the variables apart, and what to do; None where it can.

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
        r"""Return the values of the variables in a URI, or None if it does not match the template.

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
        Raises ValueError if the template is `unmatchable`.
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
        what = f"the operator {inner[0]!r} is reserved"
        raise _make_syntax_error(text, at, what, "use one of + # . / ; ? & or none")
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
        do = "write letters, digits, '_' and single dots, then nothing, '*', or ':' and a number up to 9999"
        raise _make_syntax_error(text, at + end, f"{_quote_text(spec)} is not a variable", do)
    return Variable(found[1], prefix=int(found[2] or 0), explode=spec.endswith("*"))


def _list_names(parts: TemplateParts) -> list[str]:
    return [name for part in parts if isinstance(part, Expression) for name in part.names]


def _make_syntax_error(text: str, at: int, what: str, do: str) -> ValueError:
    return ValueError(f"{what} at position {at} of the URI template {_quote_text(text)}: {do}")


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
    ends: frozenset[str]  # what never stands raw in a segment
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
            _refuse(expression.names, "their values may hold the comma between them; keep one of them")
        for variable in variables:
            name, prefix, explode = variable
            if prefix:
                _refuse([name], "a prefix is not the whole value; remove the ':' and its number")
            if explode and (variable is not last or operator not in {"/", "?", "&"}):
                _refuse([name], "'*' is read back only at the end of {/…*} and {?…*}; remove it")
            if "%" in name:
                _refuse([name], "its name has percent escapes; choose a plain name")
            if names.count(name) > 1:
                _refuse([name], "it stands there twice; give each place a name of its own")


def _split_path(body: TemplateParts) -> tuple[list[str], list[Expression]]:
    """Split the path into literals, perhaps empty, and the expressions between them."""
    literals = [""]
    places: list[Expression] = []
    for part in body:
        if isinstance(part, str):
            literals[-1] += part
        elif part.operator in {"#", "?", "&"}:
            _refuse(part.names, "more follows the query or fragment; keep the order path{?a,b}{#c}")
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
        _refuse(names, "each could take what the other leaves over; keep one expression, as in {/a,b}")
    for number, literal in enumerate(literals[1:-1]):
        one, other = places[number : number + 2]
        if not literal and other.operator in {"", "+"}:
            _refuse(one.names + other.names, "nothing stands between them; put a literal there: {a}/{b}")
    return wide[0] if wide else max(len(places) - 1, 0)


def _refuse(names: Iterable[str], why: str) -> NoReturn:
    raise ValueError(f"{' and '.join(repr(name) for name in names)}: {why}")


# --------------------------------------------------------------------- match: reading


class _NoMatch(ValueError):
    """The URI does not match, or has a value that is not safe."""


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
        raise _NoMatch
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
            raise _NoMatch
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
        raise _NoMatch
    operator, variables = expression
    names = [variable.name for variable in variables if not variable.explode]
    gathers = variables[-1].explode
    seen: dict[str, str] = {}
    for piece in filter(None, text.split(";" if operator == ";" else "&")):
        key, _, raw = piece.partition("=")
        key = _percent_decode(key)
        if key in names or gathers:
            if key in seen:
                raise _NoMatch
            seen[key] = _read_segment(raw, ends) if raw and operator == ";" else _percent_decode(raw)
        elif operator == ";":
            raise _NoMatch
    found: UriValues = {name: seen.pop(name) for name in names if name in seen}
    if gathers and seen:
        found[variables[-1].name] = seen
    return found


# --------------------------------------------------------------------- match: one value


def _percent_decode(text: str) -> str:
    # A literal may have been found inside an escape: then what stands before it ends in the middle of one.
    if "%" in text[-2:]:
        raise _NoMatch
    return unquote_to_bytes(text).decode()


def _read_segment(text: str, ends: frozenset[str]) -> str:
    value = _percent_decode(text)
    if (
        not value
        or value in _DOT_SEGMENTS
        or not ends.isdisjoint(text)
        or not _UNSAFE_CHARACTERS.isdisjoint(value)
    ):
        raise _NoMatch
    return value


def _read_tail(text: str) -> str:
    value = _percent_decode(text)
    segments = value.replace("\\", "/").split("/")
    # An empty first segment is the slash of an absolute path, and a colon in it that of a Windows drive:
    # joined to a directory, either would replace it.
    if not segments[0] or segments[0][1:2] == ":" or "\0" in value or not _DOT_SEGMENTS.isdisjoint(segments):
        raise _NoMatch
    return value
