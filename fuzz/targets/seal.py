"""Sealed strings. What a stranger makes up does not open; what was sealed opens for its audience alone."""

from typing import Final

from toolpost.errors import InvalidSeal
from toolpost.protocol.seal import MAX_SEALED, KeyRing

__all__ = ["TOKENS", "target"]

_OLD: Final = b"an old key that nobody uses, 32 B"
_NEW: Final = b"a new key that everybody uses, 32"
_AUDIENCE: Final = "cursor of shop"
_NOW: Final = 1_800_000_000
_SIGNS: Final = KeyRing([_NEW, _OLD], encrypt=False)
_ENCRYPTS: Final = KeyRing([_NEW, _OLD], encrypt=True)
_BEFORE: Final = KeyRing([_OLD], encrypt=False)
_SEALED: Final = _BEFORE.seal(b"page 2", audience=_AUDIENCE, expires=_NOW + 1)
TOKENS: Final = (_SEALED.encode(), _SEALED[:18].encode(), b"AA", b"=", b"-", b"_", b"\xc3\xa9", b"\xff")


def target(data: bytes) -> None:
    """Any text is refused in one way; any payload comes back, and to nobody else."""
    text = data.decode("utf-8", "surrogateescape")
    for ring in (_SIGNS, _ENCRYPTS):
        opened = _open(ring, text)
        assert (opened is not None) == (text == _SEALED), "a made-up string was opened"
    _there_and_back(data, text)


def _open(ring: KeyRing, text: str, audience: str = _AUDIENCE, *binding: str | bytes) -> bytes | None:
    try:
        return ring.open(text, audience=audience, binding=binding, now=_NOW)
    except InvalidSeal as error:
        assert str(error) == str(InvalidSeal("")), "the reason is told"
        return None


def _there_and_back(data: bytes, text: str) -> None:
    for ring in (_SIGNS, _ENCRYPTS):
        sealed = ring.seal(data, audience=text, binding=[data, text], expires=_NOW + len(data) % 3)
        assert len(sealed) <= MAX_SEALED
        alive = len(data) % 3 > 0
        assert _open(ring, sealed, text, data, text) == (data if alive else None)
        assert _open(ring, sealed, text, text, data) is None, "the binding has types"
        assert _open(ring, sealed, text, data) is None
        assert _open(ring, sealed, f"{text}.", data, text) is None
        at = sum(data) % len(sealed)
        other = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
        assert _open(ring, other, text, data, text) is None, "a changed string was opened"
        assert _open(ring, sealed[:at], text, data, text) is None
        assert _open(ring, f"{sealed}A", text, data, text) is None
