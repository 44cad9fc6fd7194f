"""Arguments of a call against a signature with many types.

The function itself looks whether it got what its signature promises. The judge is the schema that the
signature became: what that accepts has to be bound, where no format or limit says more than a schema can.
"""

import datetime as dt
import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict
from uuid import UUID

import jsonschema_rs
import msgspec
from annotated_types import Ge, Len
from msgspec import UNSET

from fuzz.cuts import pumped
from toolpost.errors import InvalidParams, RemoteProtocolError
from toolpost.protocol import jsonrpc
from toolpost.server.signature.errors import MAX_ISSUES, ArgumentError
from toolpost.server.signature.function_schema import BoundFunction

__all__ = ["TOKENS", "target"]

TOKENS: Final = (
    *(b'"number":', b'"exact":', b'"flag":', b'"text":', b'"items":', b'"table":', b'"colour":', b'"place":'),
    *(b'"either":', b'"when":', b'"day":', b'"span":', b'"price":', b'"key":', b'"raw":', b'"unique":'),
    *(b'"tree":', b'"left":', b'"size":', b'"few":', b'"pair":', b'"extra":', b'"x":', b"null", b"1.0"),
    *(b"1e400", b"9007199254740993", b'"\\ud800"', b'"1"', b'"[1]"', b'"null"', b"NaN", b"-0.0", b'"red"'),
    *(b'"2026-02-30"', b'"P1D"', b'"PT1H"', b'"24:00:00Z"', b'"1e999999999"', b'"AA=="', b"[[", b"{}"),
)
MAX_TOLD: Final = 20_000
"""Characters of an answer: twenty problems, each of which may show several names of some length."""


class Colour(enum.Enum):
    """One of few."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    """A class as authors write them."""

    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list[str])


class Extra(TypedDict):
    """A dict with known keys."""

    name: str
    count: NotRequired[int]


class Tree(msgspec.Struct):
    """What contains itself."""

    value: int
    left: "Tree | None" = None
    right: "Tree | None" = None


def plain(  # noqa: PLR0917 - many types are the point
    number: int,
    exact: float = 0.5,
    flag: bool = False,
    text: str | None = None,
    items: list[int] | None = None,
    table: dict[str, list[float]] | None = None,
    colour: Colour = Colour.RED,
    mode: Literal["fast", "slow", 3] = "fast",
    place: Place | None = None,
    either: int | str | list[bool] = 0,
    pair: tuple[int, str] | None = None,
    extra: Extra | None = None,
    tree: Tree | None = None,
    anything: Any = None,
) -> None:
    """Types that a schema says all of."""
    assert type(number) is int
    assert type(exact) in {int, float}
    assert type(flag) is bool
    assert text is None or type(text) is str
    assert items is None or all(type(item) is int for item in items)
    assert table is None or all(type(each) in {int, float} for row in table.values() for each in row)
    assert isinstance(colour, Colour)
    assert mode in {"fast", "slow", 3}
    assert place is None or (isinstance(place, Place) and type(place.x) in {int, float})
    assert isinstance(either, int | str | list)
    assert pair is None or (type(pair[0]), type(pair[1]), len(pair)) == (int, str, 2)
    assert extra is None or (type(extra["name"]) is str and type(extra.get("count", 0)) is int)
    assert tree is None or isinstance(tree, Tree)
    assert anything is not NotImplemented


def strict(  # noqa: PLR0917 - many types are the point
    when: dt.datetime | None = None,
    day: dt.date | None = None,
    clock: dt.time | None = None,
    span: dt.timedelta | None = None,
    price: Decimal | None = None,
    key: UUID | None = None,
    raw: bytes | None = None,
    unique: set[str] | None = None,
    size: Annotated[int, Ge(1)] = 1,
    few: Annotated[list[str], Len(1, 3)] | None = None,
    frozen: frozenset[tuple[int, ...]] | None = None,
    moments: dict[dt.date, list[Decimal]] | None = None,
    loose: set[Any] | None = None,
) -> None:
    """Types whose values a schema cannot check."""
    assert when is None or isinstance(when, dt.datetime)
    assert day is None or type(day) is dt.date
    assert clock is None or isinstance(clock, dt.time)
    assert span is None or isinstance(span, dt.timedelta)
    assert price is None or isinstance(price, Decimal)
    assert key is None or isinstance(key, UUID)
    assert raw is None or isinstance(raw, bytes)
    assert unique is None or isinstance(unique, set)
    assert size >= 1
    assert few is None or 1 <= len(few) <= 3
    assert frozen is None or isinstance(frozen, frozenset)
    assert loose is None or isinstance(loose, set)
    assert moments is None or all(type(key) is dt.date for key in moments)


_PLAIN: Final = BoundFunction(plain)
_STRICT: Final = BoundFunction(strict)
_JUDGE: Final = jsonschema_rs.validator_for(_PLAIN.input_schema)


def target(data: bytes) -> None:
    """Arguments are bound, and are what the signature says, or are refused in words that have an end."""
    if _arrives(data):
        bound = _called(_PLAIN, data)
        _called(_STRICT, data)
        value = _value(data)
        if not bound and value is not UNSET and _same_to_all(value):
            assert not _JUDGE.is_valid(value), "the schema accepts what is refused"
    _strings(data)
    for long in pumped(data, 64 * 1024):
        if _arrives(long):
            _called(_PLAIN, long)
            _called(_STRICT, long)


def _arrives(data: bytes) -> bool:
    """Whether the text can be the arguments of a call: `jsonrpc` lets no other in."""
    try:
        message = jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"method":"a","params":%b}' % data)
    except RemoteProtocolError:
        return False
    assert isinstance(message, jsonrpc.JSONRPCRequest)
    return message.params is not UNSET and bytes(message.params).strip() == data.strip()


def _value(data: bytes) -> Any:
    """The value; UNSET for JSON that no value of ours can hold."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return UNSET


def _called(bound: BoundFunction, data: bytes) -> bool:
    try:
        arguments = bound.read(data)
    except ArgumentError as error:
        assert 0 < len(error.issues) <= MAX_ISSUES
        assert len(str(error)) <= MAX_TOLD, "a refusal has no end"
        str(error).encode()
        return False
    except InvalidParams:
        return False
    bound.call(arguments)
    return True


def _same_to_all(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_same_to_all, value.values()))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType] - JSON
    if isinstance(value, list):
        return all(map(_same_to_all, value))  # pyright: ignore[reportUnknownArgumentType] - JSON
    return not isinstance(value, int | float) or abs(value) < 2**53


def _strings(data: bytes) -> None:
    """The same signatures, filled in by strings, as prompts and templates do."""
    pairs = [line.decode("utf-8", "replace").partition("=") for line in data.split(b"\n")]
    values = {name: text for name, _, text in pairs}
    for bound in (_PLAIN, _STRICT):
        try:
            arguments = bound.read_strings(values)
        except ArgumentError as error:
            assert 0 < len(error.issues) <= MAX_ISSUES
            assert len(str(error)) <= MAX_TOLD, "a refusal has no end"
            continue
        bound.call(arguments)
