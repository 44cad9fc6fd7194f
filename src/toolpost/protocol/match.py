"""How a template takes a URI apart: the inverse of expansion, which RFC 6570 leaves open.

The reading half of `uri`, which owns the grammar and tells the rules (`UriTemplate.match`). A plan is made
once; a scan without backtracking follows it, so the work grows with the length of the URI and no faster. Owns
the checks that keep a decoded value inside its directory. Knows nothing of resources or of any file system.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeAlias
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from toolpost.protocol.uri import Expression, TemplateParts

__all__ = ["MatchPlan", "UriValues", "make_match_plan", "match_uri"]

UriValues: TypeAlias = dict[str, str | list[str] | dict[str, str]]
"""What a URI carries: text, the segments of `{/name*}`, the parameters of `{?name*}`."""

_SEGMENT_ENDS: Final = frozenset("/?#")
_DOT_SEGMENTS: Final = frozenset({".", ".."})
_UNSAFE_CHARACTERS: Final = frozenset("/\\\0")
_MatchStep: TypeAlias = tuple[str, str]  # the name in a {name}, or nothing, and the literal where it ends


class MatchPlan(NamedTuple):
    """The path as a middle that takes what two sides of fixed shape leave over; then query and fragment."""

    left: list[_MatchStep]
    middle: "Expression | None"
    right: list[_MatchStep]  # mirrored, to be read from the end of the path
    ends: frozenset[str]  # what never stands raw in a segment
    endings: "list[tuple[Expression, int]]"  # the last first, with how many of its sign the literals have


# --------------------------------------------------------------------- plan


def make_match_plan(parts: "TemplateParts") -> MatchPlan:
    """How to match a template.

    Raises:
        ValueError: it cannot be matched sensibly; the text says why and what to do.
    """
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
    return MatchPlan(list(left), places[middle] if places else None, list(right), ends, endings)


def _check_variables(parts: "TemplateParts") -> None:
    expressions = [part for part in parts if not isinstance(part, str)]
    names = [name for expression in expressions for name in expression.names]
    for expression in expressions:
        operator, variables = expression
        last = variables[-1]
        if operator in {"+", "#"} and len(variables) > 1:
            _raise_unmatchable(
                expression.names, "their values may hold the comma between them", "keep one of them"
            )
        for variable in variables:
            name, prefix, explode = variable
            if prefix:
                _raise_unmatchable([name], "a prefix is not the whole value", "remove the ':' and its number")
            if explode and (variable is not last or operator not in {"/", "?", "&"}):
                _raise_unmatchable([name], "'*' is read back only at the end of {/…*} and {?…*}", "remove it")
            if "%" in name:
                _raise_unmatchable([name], "its name has percent escapes", "choose a plain name")
            if names.count(name) > 1:
                _raise_unmatchable([name], "it stands there twice", "give each place a name of its own")


def _split_path(body: "TemplateParts") -> "tuple[list[str], list[Expression]]":
    """The path as literals, some of them empty, and between each two of them a place for values."""
    literals = [""]
    places: list[Expression] = []
    for part in body:
        if isinstance(part, str):
            literals[-1] += part
        elif part.operator in {"#", "?", "&"}:
            _raise_unmatchable(
                part.names, "more follows the query or fragment", "keep the order path{?a,b}{#c}"
            )
        elif part.operator:
            places.append(part)
            literals.append("")
        else:
            places += [part._replace(variables=(variable,)) for variable in part.variables]
            literals += [","] * (len(part.variables) - 1) + [""]
    return literals, places


def _find_middle(literals: list[str], places: "list[Expression]") -> int:
    """Which place takes what the others leave over: the one of varying width, or else the last."""
    wide = [number for number, place in enumerate(places) if place.operator]
    if len(wide) > 1:
        names = [name for number in wide for name in places[number].names]
        _raise_unmatchable(
            names, "each could take what the other leaves over", "keep one expression, as in {/a,b}"
        )
    for number, literal in enumerate(literals[1:-1]):
        one, other = places[number : number + 2]
        if not literal and other.operator in {"", "+"}:
            _raise_unmatchable(
                one.names + other.names, "nothing stands between them", "put a literal there: {a}/{b}"
            )
    return wide[0] if wide else max(len(places) - 1, 0)


def _raise_unmatchable(names: Iterable[str], why: str, do: str) -> NoReturn:
    raise ValueError(f"{' and '.join(repr(name) for name in names)}: {why}; {do}")


# --------------------------------------------------------------------- read


class _NoMatch(ValueError):
    """The URI is none of the template's, or carries a value that is not safe."""


def match_uri(plan: MatchPlan, uri: str) -> UriValues | None:
    """The values in a URI, or None where it does not match.

    Args:
        plan: of the template.
        uri: in plain ASCII, without a broken escape.
    """
    found: UriValues = {}
    try:
        for expression, before in plan.endings:
            pieces = uri.split(expression.operator, before + 1)
            if len(pieces) > before + 1:
                uri = uri[: -len(pieces[-1]) - 1]
                found |= _read_values(expression, pieces[-1], plan.ends)
        return found | _read_path(plan, uri)
    except ValueError:
        return None


def _read_path(plan: MatchPlan, path: str) -> UriValues:
    mirrored, length = _walk_steps(plan.right, path[::-1], "")
    path = path[: len(path) - length]
    sign = plan.middle.operator.strip("+") if plan.middle else ""
    taken, length = _walk_steps(plan.left, path, sign)
    taken += [(name, text[::-1]) for name, text in mirrored]
    found: UriValues = {name: _read_segment(text, plan.ends) for name, text in taken}
    rest = path[length:]
    if plan.middle and rest.startswith(sign):
        found |= _read_values(plan.middle, rest[len(sign) :], plan.ends)
    elif rest:
        raise _NoMatch
    return found


def _walk_steps(steps: list[_MatchStep], text: str, sign: str) -> tuple[list[tuple[str, str]], int]:
    """What each `{name}` takes from the text, and how far the steps reach."""
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


def _read_values(expression: "Expression", text: str, ends: frozenset[str]) -> UriValues:
    """What an expression carries behind its sign."""
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


def _read_parameters(expression: "Expression", text: str, ends: frozenset[str]) -> UriValues:
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


# --------------------------------------------------------------------- decode one value


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
