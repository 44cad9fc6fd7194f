"""What the calls of one tool by one client have in common: all of their bytes but the id and the arguments.

A client that calls a tool again sends the same text with another number and another object in it. What was
read in a text before, and found right, is so in all that differ from it in these two values alone: then only
they are read, which takes a quarter of the time. Owns where the two stand; knows nothing else of a message.
"""

from collections.abc import Iterator
from itertools import islice, product
from typing import Final

from msgspec.structs import replace

from toolpost.errors import RemoteProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import Incoming
from toolpost.protocol.jsonrpc import MAX_DEPTH, MISFITS, Reader, Request
from toolpost.types.base import UNSET, Raw
from toolpost.types.tools import CallToolParams

__all__ = ["Mould"]

MAX_DIGITS: Final = 15
"""Of an id that is read here: few enough to be a whole number everywhere."""

MAX_SIZE: Final = 4096
"""Bytes that are kept: ten times as many as usual."""

MAX_PLACES: Final = 4
"""Where an id, or arguments, may seem to stand: a text that repeats itself more often is left alone."""

_SHALLOW: Final = 2 * (MAX_DEPTH - 4)
"""Bytes of arguments that cannot nest too deeply: each level takes two."""

_ZERO: Final = ord("0")
_OTHER_ID: Final = 10**MAX_DIGITS - 1
_OTHER: Final = b'{"other":null}'
_VALUE: Final = Reader(Raw)


class Mould:
    """What does not change, in three pieces: before, between and behind the two values that do. Made by `of`.

    Args:
        pieces: these.
        like: a call that was read.
        leading: whether the id comes before the arguments.

    Attributes:
        peer: who has sent it.
    """

    __slots__ = ("_first", "_last", "_leading", "_middle", "_name", "_row", "_token", "peer")

    def __init__(self, pieces: tuple[bytes, bytes, bytes], like: Incoming, *, leading: bool) -> None:
        # Nothing of the call itself is kept: what it was called with is nobody else's business.
        self._first, self._middle, self._last = pieces
        self._leading = leading
        self._row, self._token, self.peer = like.row, like.token, like.peer
        self._name: str = like.params.name

    @classmethod
    def of(cls, data: bytes, like: Incoming) -> "Mould | None":
        """The mould of a call that was read in this text; None if there is none.

        Args:
            data: the text.
            like: the call.
        """
        params, number = like.params, like.id
        if like.row.params is not CallToolParams or type(number) is not int or not 0 < number < _OTHER_ID:
            return None
        if params.arguments is UNSET or params.task or params.input_responses or params.request_state:
            return None
        digits, value = b"%d" % number, bytes(params.arguments)
        if len(data) - len(value) > MAX_SIZE:
            return None
        for one, other in product(_places(data, b'"id"', digits), _places(data, b'"arguments"', value)):
            leading = one < other
            (start, first), (end, last) = sorted(((one, digits), (other, value)))
            if start + len(first) <= end:
                pieces = data[:start], data[start + len(first) : end], data[end + len(last) :]
                if _is_sound(pieces, like, leading=leading):
                    return cls(pieces, like, leading=leading)
        return None

    def read(self, data: bytes, peer: Peer) -> Incoming | None:
        """The call that a text of this peer's is; None if it has to be read as a whole."""
        if self._leading:
            before, _, behind = data.partition(self._middle)
            digits, value = before.removeprefix(self._first), behind.removesuffix(self._last)
            framed = len(value) < len(behind)
        else:
            before, _, behind = data.rpartition(self._middle)
            digits, value = behind.removesuffix(self._last), before.removeprefix(self._first)
            framed = len(value) < len(before)
        # What frames the digits was there as well, or they were none.
        if not framed or not digits.isdigit() or digits[0] == _ZERO or len(digits) > MAX_DIGITS:
            return None
        if not value.isascii() or (len(value) > _SHALLOW and jsonrpc.is_deep(data, MAX_DEPTH)):
            return None
        try:
            arguments = _VALUE.decode(value)
        except MISFITS:  # it is not one value, so that something else may be in it
            return None
        params = CallToolParams(self._name, arguments)
        return Incoming(int(digits), self._row, params, peer, UNSET, self._token)


def _places(data: bytes, name: bytes, value: bytes) -> Iterator[int]:
    """Where a member of this name and value may stand in a text."""
    return islice(_all_places(data, name, value), MAX_PLACES)


def _all_places(data: bytes, name: bytes, value: bytes) -> Iterator[int]:
    for label in (name + b":", name + b": "):
        at = data.find(label + value)
        while at >= 0:
            yield at + len(label)
            at = data.find(label + value, at + 1)


def _is_sound(pieces: tuple[bytes, bytes, bytes], like: Incoming, *, leading: bool) -> bool:
    """Whether it is the id, and the arguments, that stand between these pieces: with others, they change."""
    first, second = (b"%d" % _OTHER_ID, _OTHER) if leading else (_OTHER, b"%d" % _OTHER_ID)
    read = like.row.read_params
    try:
        message = jsonrpc.decode(b"".join((pieces[0], first, pieces[1], second, pieces[2])))
        if not isinstance(message, Request) or message.id != _OTHER_ID or message.method != like.row.name:
            return False
        return read(message.params) == replace(read(like.raw), arguments=Raw(_OTHER))
    except (RemoteProtocolError, jsonrpc.Unfit):
        return False
