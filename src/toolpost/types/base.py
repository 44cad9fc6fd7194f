"""What every struct of the vocabulary shares: names on the wire, `_meta`, icons, annotations, open unions.

Structs have snake_case fields and camelCase members; a field that is None is not written. Also the result
that asks for input (2026-07-28) and the retry that brings it, which stay undecoded here.
"""

from typing import Any, Literal, Self, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, ValidationError, field

__all__ = [
    "JSON",
    "UNSET",
    "Annotations",
    "Icon",
    "InputRequest",
    "InputRequiredResult",
    "InputResponseParams",
    "Meta",
    "Number",
    "OpenUnion",
    "Params",
    "ProgressToken",
    "Raw",
    "RequestId",
    "Result",
    "Role",
    "Unset",
    "WireStruct",
]

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
    """A struct as it goes over the wire."""


class OpenUnion:
    """A value of several kinds, to which later revisions may add.

    A field annotated with a subclass is decoded by `read`, so that an unknown kind becomes a value.
    """

    __slots__ = ()

    @classmethod
    def read(cls, value: JSON) -> Self:  # noqa: ARG003 - for subclasses
        """Return the value for decoded JSON; ValueError if it lacks the shape that every kind shares."""
        raise TypeError(f"{cls.__name__} does not say how it is read")

    def write(self) -> JSON:
        """The JSON of a value that is not a struct."""
        raise TypeError(f"{type(self).__name__} does not say how it is written")


def dec_hook(kind: type[Any], value: JSON) -> Any:
    """Decode a type that msgspec does not know: our open kinds."""
    if issubclass(kind, OpenUnion):
        try:
            return kind.read(value)
        except ValidationError as error:
            # msgspec adds the path to a ValueError, but takes its own error for complete.
            raise ValueError(str(error)) from error
    # msgspec takes a TypeError for a fault of the data; this one is ours.
    raise NotImplementedError(f"{kind.__name__} is not a type of the protocol")


def enc_hook(value: Any) -> JSON:
    """Encode a value that msgspec does not know: our open kinds that are no structs."""
    if isinstance(value, OpenUnion):
        return value.write()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


class Params(WireStruct, kw_only=True):
    """The parameters of a request from the client.

    `_meta` stays undecoded: what the protocol needs of it is read once, before the parameters are.
    """

    meta: Raw | Unset = field(name="_meta", default=UNSET)


class Result(WireStruct, kw_only=True, dict=True):
    """The result of a request.

    `result_type` belongs to the stateless era and is written by it; absent means "complete".
    """

    meta: Meta | None = field(name="_meta", default=None)
    result_type: str | None = None

    @property
    def raw(self) -> bytes | None:
        """The bytes as they were received, with all that the struct does not know; None if made here."""
        raw: Raw | bytes | None = self.__dict__.get("raw")
        return None if raw is None else bytes(raw)


class Icon(WireStruct):
    """A picture that a user interface may show.

    Examples:
        >>> Icon("https://example.com/pen.png", mime_type="image/png").src
        'https://example.com/pen.png'
    """

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: str | None = None


class Annotations(WireStruct, kw_only=True):
    """Hints for whom something is, how much it matters and when it changed.

    Examples:
        >>> block = TextContent("for people", annotations=Annotations(audience=["user"], priority=0.5))
    """

    audience: list[str] | None = None
    priority: Number | None = None
    last_modified: str | None = None


# --------------------------------------------------------------------- input_required


class InputRequest(WireStruct):
    """An ask inside a result: the method and its parameters."""

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
