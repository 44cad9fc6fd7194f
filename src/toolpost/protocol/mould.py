"""What the calls of one tool by one client have in common: all of their bytes but the id and the arguments.

A client that calls a tool again sends the same text with another number and another object in it. What was
read in a text before, and found right, is so in all that differ from it in these two values alone: then only
they are read, which takes less than half of the time. Owns where the two stand; knows nothing else of a
message.
"""

from collections.abc import Iterator
from itertools import islice, product
from typing import Final

from msgspec.structs import replace

from toolpost.errors import RemoteProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import DECODE_ERRORS, MAX_DEPTH, InvalidJSONValue, JSONReader, JSONRPCRequest
from toolpost.types.base import UNSET, Raw
from toolpost.types.initialize import RequestMeta
from toolpost.types.tools import CallToolParams

MAX_DIGITS: Final = 15
"""Of an id that is read here: few enough to be a whole number everywhere."""

MAX_SIZE: Final = 4096
"""Bytes of a text that a mould is taken of: ten times as many as usual. Those that are read may have more."""

MAX_PLACES: Final = 4
"""Where an id, or arguments, may seem to stand: a text that repeats itself more often is left alone."""

_SHALLOW: Final = 2 * (MAX_DEPTH - 4)
"""Bytes of arguments that cannot nest too deeply: each level takes two."""

_ENVELOPE: Final = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_META: Final = frozenset(RequestMeta.__struct_encode_fields__) - {"progressToken"}
"""The members of texts that are kept: others may be secret, or different each time."""

_ZERO: Final = ord("0")
_OTHER_ID: Final = 10**MAX_DIGITS - 1
_OTHER: Final = b'{"other":null}'
_VALUE: Final = JSONReader(Raw)
_MEMBERS: Final = JSONReader(dict[str, Raw])


class Mould:
    """The bytes before, between and behind the two values of a call that vary. Made by `from_call`.

    Args:
        pieces: these.
        like: a call that was read. Nothing of it is kept but who called which tool.
        leading: whether the id comes before the arguments.
    """

    __slots__ = ("_first", "_last", "_leading", "_middle", "_name", "_peer", "_row")

    def __init__(self, pieces: tuple[bytes, bytes, bytes], like: InboundRequest, *, leading: bool) -> None:
        self._first, self._middle, self._last = pieces
        self._leading = leading
        self._row, self._peer = like.row, like.peer
        self._name: str = like.params.name

    @classmethod
    def from_call(cls, data: bytes, like: InboundRequest) -> "Mould | None":
        """The mould of a call that was read in this text; None if there is none.

        Args:
            data: the text.
            like: the call of a tool.
        """
        number, arguments = like.id, like.params.arguments
        if type(number) is not int or not 0 < number < _OTHER_ID or arguments is UNSET:
            return None
        if len(data) > MAX_SIZE or not _is_plain(data):
            return None
        digits, value = b"%d" % number, bytes(arguments)
        for one, other in product(_places(data, b'"id"', digits), _places(data, b'"arguments"', value)):
            leading = one < other
            (start, first), (end, last) = sorted(((one, digits), (other, value)))
            if start + len(first) <= end:
                pieces = data[:start], data[start + len(first) : end], data[end + len(last) :]
                if _is_sound(pieces, like, leading=leading):
                    return cls(pieces, like, leading=leading)
        return None

    def read(self, data: bytes) -> InboundRequest | None:
        """The call that a text is, without its raw parameters; None if it has to be read as a whole."""
        first, last = self._first, self._last
        if not (data.startswith(first) and data.endswith(last)):
            return None
        inner = data[len(first) : -len(last)]
        if self._leading:
            digits, found, value = inner.partition(self._middle)
        else:
            value, found, digits = inner.rpartition(self._middle)
        if not found or not digits.isdigit() or digits[0] == _ZERO or len(digits) > MAX_DIGITS:
            return None
        if not value.isascii() or (len(value) > _SHALLOW and jsonrpc.is_deep(data, MAX_DEPTH)):
            return None
        try:
            arguments = _VALUE.decode(value)
        except DECODE_ERRORS:  # it is not one value, so that something else may be in it
            return None
        return InboundRequest(int(digits), self._row, CallToolParams(self._name, arguments), self._peer)


def _is_plain(data: bytes) -> bool:
    """Whether all that a text says is what nearly every call says."""
    try:
        whole = _MEMBERS(data)
        params = _MEMBERS(whole.get("params", UNSET))
        meta = _MEMBERS(params.get("_meta", UNSET))
    except InvalidJSONValue:
        return False
    return _ENVELOPE.issuperset(whole) and _PARAMS.issuperset(params) and _META.issuperset(meta)


def _places(data: bytes, name: bytes, value: bytes) -> Iterator[int]:
    """Where a member of this name and value may stand in a text."""
    return islice(_all_places(data, name, value), MAX_PLACES)


def _all_places(data: bytes, name: bytes, value: bytes) -> Iterator[int]:
    for label in (name + b":", name + b": "):
        at = data.find(label + value)
        while at >= 0:
            yield at + len(label)
            at = data.find(label + value, at + 1)


def _is_sound(pieces: tuple[bytes, bytes, bytes], like: InboundRequest, *, leading: bool) -> bool:
    """Whether it is the id, and the arguments, that stand between these pieces: with others, they change."""
    first, second = (b"%d" % _OTHER_ID, _OTHER) if leading else (_OTHER, b"%d" % _OTHER_ID)
    read = like.row.read_params
    try:
        message = jsonrpc.decode(b"".join((pieces[0], first, pieces[1], second, pieces[2])))
        if (
            not isinstance(message, JSONRPCRequest)
            or message.id != _OTHER_ID
            or message.method != like.row.name
        ):
            return False
        return read(message.params) == replace(read(like.raw), arguments=Raw(_OTHER))
    except (RemoteProtocolError, InvalidJSONValue):
        return False
