"""Base types of the vocabulary: names on the wire, `_meta`, icons, annotations, open unions.

Structs have snake_case fields and camelCase members; a field that is None is not written. Also the result
that asks for input (2026-07-28) and the retry that brings it, both undecoded.
"""

from typing import Any, Literal, Self, TypeAlias, cast

from msgspec import UNSET, Raw, Struct, UnsetType, ValidationError, field

__all__ = [
    "JSON", "UNSET", "Annotations", "Icon", "InputRequest", "InputRequiredResult", "InputResponseParams",
    "Meta", "Number", "OpenUnion", "Params", "ProgressToken", "Raw", "RequestId", "Result", "Role",
    "Unset", "WireStruct",
]  # fmt: skip

JSON: TypeAlias = Any
"""Any JSON value. The one place where `Any` is meant."""

Meta: TypeAlias = dict[str, JSON]
"""A `_meta` object: keys as the specification names them, values untouched."""

Number: TypeAlias = int | float
RequestId: TypeAlias = int | str
ProgressToken: TypeAlias = int | str
Role: TypeAlias = Literal["user", "assistant"]
Unset: TypeAlias = UnsetType


class WireStruct(Struct, rename="camel", omit_defaults=True):
    """A struct that is sent and received as a JSON object."""


class MetaStruct(WireStruct, kw_only=True):
    """A struct with a decoded `_meta`."""

    meta: Meta | None = field(name="_meta", default=None)


class OpenUnion:
    """A value of one of several kinds; later revisions may add kinds.

    A field annotated with a subclass is decoded by `read`, so that a value of an unknown kind is kept.
    """

    __slots__ = ()

    @classmethod
    def read(cls, value: JSON) -> Self:  # noqa: ARG003 - for subclasses
        """Return the value for decoded JSON; ValueError if it lacks the shape that every kind shares."""
        raise TypeError(f"{cls.__name__} does not implement read()")


class UnknownKind(OpenUnion):
    """A value of a kind that this library does not know. `raw` is the whole value."""

    __slots__ = ("raw",)

    def __init__(self, raw: dict[str, JSON]) -> None:
        self.raw = raw

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.raw == cast("Self", other).raw

    __hash__ = None  # pyright: ignore[reportAssignmentType] - the raw value is mutable, as a dict is

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.raw!r})"


def dec_hook(kind: type[Any], value: JSON) -> Any:
    """Decode an open union, which msgspec does not know."""
    if issubclass(kind, OpenUnion):
        try:
            return kind.read(value)
        except ValidationError as error:
            # msgspec adds the path to a ValueError, but not to its own ValidationError.
            raise ValueError(str(error)) from error
    # A TypeError would make msgspec blame the data.
    raise NotImplementedError(f"{kind.__name__} is not a protocol type")


def enc_hook(value: Any) -> JSON:
    """Encode a value of an unknown kind as it came."""
    if isinstance(value, UnknownKind):
        return value.raw
    raise TypeError(f"object of type {type(value).__name__} is not JSON serializable")


class Params(WireStruct, kw_only=True):
    """The parameters of a request from the client. The protocol reads `_meta` before it decodes them."""

    meta: Raw | Unset = field(name="_meta", default=UNSET)


class Result(WireStruct, kw_only=True, dict=True):
    """The result of a request. Only the stateless era sets `result_type`; absent means "complete"."""

    meta: Meta | None = field(name="_meta", default=None)
    result_type: str | None = None

    @property
    def raw(self) -> bytes | None:
        """The received bytes, with all members that the struct does not have; None if made here."""
        raw: Raw | bytes | None = self.__dict__.get("raw")
        return None if raw is None else bytes(raw)


class Icon(WireStruct):
    """An icon that a user interface may show.

    Examples:
        >>> Icon("https://example.com/pen.png", mime_type="image/png").src
        'https://example.com/pen.png'
    """

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: str | None = None


class Annotations(WireStruct, kw_only=True):
    """Hints about an object: its audience, its importance and when it changed.

    Examples:
        >>> block = TextContent("for people", annotations=Annotations(audience=["user"], priority=0.5))
    """

    audience: list[str] | None = None
    priority: Number | None = None
    last_modified: str | None = None


# --------------------------------------------------------------------- input_required


class InputRequest(WireStruct):
    """A client request inside a result: the method and its parameters."""

    method: str
    params: Raw | Unset = UNSET


class InputRequiredResult(Result):
    """The server needs answers before it can go on; the client retries with them."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


class InputResponseParams(Params, kw_only=True):
    """The parameters of a request that may be a retry with answers."""

    input_responses: dict[str, Raw] | None = None
    request_state: str | None = None
