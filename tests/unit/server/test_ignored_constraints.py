"""Limits that pydantic would ignore in what it reads: refused at registration."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, TypeVar

import annotated_types as at
import pydantic
import pytest
from msgspec import Meta
from pydantic import BaseModel
from typing_extensions import TypedDict  # as pydantic wants it on Python 3.11

from toolpost import Server
from toolpost.server.signature.bind import bind
from toolpost.server.signature.results import ResultConverter
from toolpost.server.signature.validation import ArgumentError, SignatureError

T = TypeVar("T")
Natural = Annotated[int, Meta(ge=1)]
Absolute: Any = NewType("Absolute", Annotated[int, pydantic.AfterValidator(abs)])  # pyright: ignore - made by hand
Name: Any = NewType("Name", Annotated[str, Meta(max_length=3)])  # pyright: ignore - made by hand

Size = NewType("Size", int)


class Model(BaseModel):
    x: Natural


class Deep(BaseModel):
    rows: dict[str, list[Natural | None]]


@pydantic.dataclasses.dataclass
class Made:
    x: Natural


@dataclass
class Plain:
    y: Natural


class HoldsPlain(BaseModel):
    plain: Plain


class Keys(TypedDict, total=False):
    y: Natural


class HoldsKeys(BaseModel):
    keys: Keys


class Pair(NamedTuple):
    left: int
    right: Natural


class HoldsPair(BaseModel):
    pair: Pair


class Box(BaseModel, Generic[T]):
    it: T


class Child(Model):
    z: int


class Tree(BaseModel):
    kids: "list[Tree]" = []
    name: "Annotated[str, Meta(min_length=1)]" = "x"


class Named(BaseModel):
    name: Name  # pyright: ignore - made by hand, for the limit in it


class Computed(BaseModel):
    @pydantic.computed_field
    @property
    def total(self) -> Natural:
        return 0


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (Model, "`x` of Model: "),
        (list[Model], "`x` of Model: "),
        (Model | None, "`x` of Model: "),
        (Deep, "`rows` of Deep: "),
        (Made, "`x` of Made: "),
        (HoldsPlain, "`plain` of HoldsPlain: `y` of Plain: "),
        (HoldsKeys, "`keys` of HoldsKeys: `y` of Keys: "),
        (HoldsPair, "`pair` of HoldsPair: `right` of Pair: "),
        (Box[Natural], "`it` of Box"),
        (Child, "`x` of Child: "),
        (Tree, "`name` of Tree: "),
        (Named, "`name` of Named: "),
        (Computed, "`total` of Computed: "),
        (Annotated[Absolute, Meta(ge=3)], ""),
        (Annotated[Absolute, at.Ge(3)], ""),
        (Annotated[Absolute, pydantic.Field(ge=3)], ""),
    ],
)
def test_a_limit_that_pydantic_would_ignore_is_refused(kind: Any, where: str):
    def takes(it) -> None: ...

    def gives(): ...

    takes.__annotations__["it"] = gives.__annotations__["return"] = kind
    for register in (bind, ResultConverter.for_function):
        with pytest.raises(SignatureError, match="would ignore the limit") as refused:
            register(takes if register is bind else gives)
        assert where in refused.value.message
        assert "pydantic.Field" in (refused.value.hint or "")


@dataclass
class Kept:
    n: Annotated[int, at.Ge(1)]
    kind: Literal["a", "b"] = "a"
    most: ClassVar[Natural] = 3


class Heeded(BaseModel):
    """Everything in it is heeded by pydantic, or is no limit."""

    x: Annotated[int, at.Ge(1), Meta(description="words")]
    y: Annotated[str, pydantic.Field(min_length=2)] = "yy"
    kept: Kept | None = None
    more: "list[Heeded]" = []
    size: Size = Size(1)


def test_what_pydantic_heeds_is_not_refused():
    server = Server("s")

    @server.tool
    def takes(it: Heeded, them: list[Heeded]) -> Heeded: ...

    assert set(takes.tool.input_schema["properties"]) == {"it", "them"}


def test_a_limit_of_a_known_class_is_kept_in_a_union_with_one_of_pydantics():
    class Other(BaseModel):
        y: str

    def takes(first: Plain, it: Plain | Other) -> None: ...

    bound = bind(takes)
    with pytest.raises(ArgumentError, match="expected an integer >= 1"):
        bound.read(b'{"first":{"y":1},"it":{"y":0}}')
    assert bound.read(b'{"first":{"y":1},"it":{"y":2}}') == bound.read(b'{"it":{"y":2},"first":{"y":1}}')
