"""Limits next to pydantic metadata: some would be ignored, others are enforced."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NewType

import annotated_types as at
import pydantic
import pytest
from msgspec import Meta
from pydantic import BaseModel

from toolpost import Server
from toolpost.server.signature.errors import ArgumentError, SignatureError
from toolpost.server.signature.function_schema import BoundFunction
from toolpost.server.signature.results import ResultConverter

Natural = Annotated[int, Meta(ge=1)]
Absolute: Any = NewType("Absolute", Annotated[int, pydantic.AfterValidator(abs)])  # pyright: ignore - made by hand

Size = NewType("Size", int)


@dataclass
class Plain:
    y: Natural


@pytest.mark.parametrize("mark", [Meta(ge=3), at.Ge(3), pydantic.Field(ge=3)])
def test_a_limit_that_pydantic_would_ignore_is_refused(mark: Any):
    def takes(it) -> None: ...

    def gives(): ...

    takes.__annotations__["it"] = gives.__annotations__["return"] = Annotated[Absolute, mark]
    for register in (BoundFunction, ResultConverter.for_function):
        with pytest.raises(SignatureError, match="would ignore the limit") as refused:
            register(takes if register is BoundFunction else gives)
        assert "pydantic.Field" in (refused.value.hint or "")


@dataclass
class Kept:
    n: Annotated[int, at.Ge(1)]
    kind: Literal["a", "b"] = "a"
    most: ClassVar[Natural] = 3


class Heeded(BaseModel):
    """pydantic enforces all of it, or it is not a limit."""

    x: Annotated[int, at.Ge(1), Meta(description="words")]
    y: Annotated[str, pydantic.Field(min_length=2)] = "yy"
    kept: Kept | None = None
    more: "list[Heeded]" = []
    size: Size = Size(1)


def test_constraints_that_pydantic_enforces_are_accepted():
    server = Server("s")

    @server.tool
    def takes(it: Heeded, them: list[Heeded]) -> Heeded: ...

    assert set(takes.tool.input_schema["properties"]) == {"it", "them"}


def test_a_limit_of_a_known_class_is_kept_in_a_union_with_one_of_pydantics():
    class Other(BaseModel):
        y: str

    def takes(first: Plain, it: Plain | Other) -> None: ...

    bound = BoundFunction(takes)
    with pytest.raises(ArgumentError, match="expected an integer >= 1"):
        bound.read(b'{"first":{"y":1},"it":{"y":0}}')
    assert bound.read(b'{"first":{"y":1},"it":{"y":2}}') == bound.read(b'{"it":{"y":2},"first":{"y":1}}')
