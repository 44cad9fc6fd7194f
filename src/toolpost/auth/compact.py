"""A signed text in three parts (JWS, compact): what its header says, before anybody trusts it.

Owns the shape and its bounds. Which algorithms and keys are good is for others to say; nothing is verified
here.
"""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final, NamedTuple, cast

import msgspec

__all__ = ["CompactJws", "MalformedToken", "decode_base64url", "decode_object", "split_jws"]

_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")
_OPENING_BRACKET: Final = re.compile(rb"[\[{]")
MAX_BRACKETS: Final = 2048
"""Objects and lists in a part: claims are flat, and a decoder should not be sent into the depths."""


class MalformedToken(ValueError):
    """A text is no compact JWS; says why, without repeating it."""


class CompactJws(NamedTuple):
    """A compact JWS, taken apart."""

    header: dict[str, Any]
    payload: bytes
    signing_input: bytes
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


def split_jws(text: str) -> CompactJws:
    """A compact JWS, taken apart.

    Raises:
        MalformedToken: it is none, or demands extensions that nobody here knows.
    """
    parts = text.split(".", 3)
    if len(parts) != 3:
        raise MalformedToken("it does not have three parts")
    head, payload, signature = parts
    header = decode_object(decode_base64url(head))
    if "crit" in header or header.get("b64", True) is not True:
        raise MalformedToken("it demands extensions")
    return CompactJws(
        header, decode_base64url(payload), f"{head}.{payload}".encode(), decode_base64url(signature)
    )


def decode_base64url(part: str) -> bytes:
    """The bytes in base64url without padding, written in the one way that there is.

    Raises:
        MalformedToken: it is something else.
    """
    if _BASE64URL.fullmatch(part) is None:
        raise MalformedToken("a part is not in base64url")
    try:
        data = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise MalformedToken("a part is not in base64url") from None
    # Some bits of the last letter carry nothing. They have to be zero, or many texts would be one token.
    if urlsafe_b64encode(data).rstrip(b"=") != part.encode():
        raise MalformedToken("a part is not in base64url")
    return data


def decode_object(data: bytes) -> dict[str, Any]:
    """The JSON object in some bytes.

    Raises:
        MalformedToken: there is none.
    """
    if len(_OPENING_BRACKET.findall(data)) > MAX_BRACKETS:
        raise MalformedToken("a part is nested too much")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise MalformedToken("a part is no JSON") from None
    if not isinstance(found, dict):
        raise MalformedToken("a part is no JSON object")
    return cast("dict[str, Any]", found)
