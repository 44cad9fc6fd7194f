"""A signed text in three parts (JWS, compact): what its header says, before anybody trusts it.

Owns the shape and its bounds. Which algorithms and keys are good is for others to say; nothing is verified
here.
"""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final, NamedTuple, cast

import msgspec

__all__ = ["Compact", "Malformed", "decoded", "object_in", "split"]

_PART: Final = re.compile(r"[A-Za-z0-9_-]*")
_DEEP: Final = re.compile(rb"[\[{]")
MAX_BRACKETS: Final = 2048
"""Objects and lists in a part: claims are flat, and a decoder should not be sent into the depths."""


class Malformed(ValueError):
    """A text is no compact JWS; says why, without repeating it."""


class Compact(NamedTuple):
    """A compact JWS, taken apart."""

    header: dict[str, Any]
    payload: bytes
    signed: bytes
    signature: bytes

    @property
    def algorithm(self) -> str:
        """What it says it is signed with."""
        named = self.header.get("alg")
        return named if isinstance(named, str) else ""

    @property
    def kid(self) -> str | None:
        """The name of the key that it says it is signed with."""
        named = self.header.get("kid")
        return named if isinstance(named, str) else None

    @property
    def typ(self) -> str:
        """What it says it is, in lower case and without the prefix that may be left out (RFC 7515 §4.1.9)."""
        named = self.header.get("typ", "")
        return named.lower().removeprefix("application/") if isinstance(named, str) else "?"


def split(text: str) -> Compact:
    """A compact JWS, taken apart.

    Raises:
        Malformed: it is none, or demands extensions that nobody here knows.
    """
    parts = text.split(".", 3)
    if len(parts) != 3:
        raise Malformed("it does not have three parts")
    head, payload, signature = parts
    header = object_in(decoded(head))
    if "crit" in header or header.get("b64", True) is not True:
        raise Malformed("it demands extensions")
    return Compact(header, decoded(payload), f"{head}.{payload}".encode(), decoded(signature))


def decoded(part: str) -> bytes:
    """The bytes in base64url without padding, written in the one way that there is.

    Raises:
        Malformed: it is something else.
    """
    if _PART.fullmatch(part) is None:
        raise Malformed("a part is not in base64url")
    try:
        data = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise Malformed("a part is not in base64url") from None
    # Some bits of the last letter carry nothing. They have to be zero, or many texts would be one token.
    if urlsafe_b64encode(data).rstrip(b"=") != part.encode():
        raise Malformed("a part is not in base64url")
    return data


def object_in(data: bytes) -> dict[str, Any]:
    """The JSON object in some bytes.

    Raises:
        Malformed: there is none.
    """
    if len(_DEEP.findall(data)) > MAX_BRACKETS:
        raise Malformed("a part is nested too much")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Malformed("a part is no JSON") from None
    if not isinstance(found, dict):
        raise Malformed("a part is no JSON object")
    return cast("dict[str, Any]", found)
