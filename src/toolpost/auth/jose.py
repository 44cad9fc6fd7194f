"""The one place that imports joserfc, which is an extra: compact JWS, taken apart before it is trusted.

joserfc does the parsing and the arithmetic. Which algorithms, keys and claims are good is decided elsewhere;
nothing is verified here.
"""

import base64
import hashlib
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

import msgspec

from toolpost.errors import AuthError

MAX_JWS_PART: Final = 32 * 1024  # characters of a part of a JWS: more than a header of HTTP carries


class JoseModules(NamedTuple):
    """The modules of joserfc that are used."""

    jwk: Any
    jws: Any


def import_jose() -> JoseModules:
    """Import joserfc, which only users of signatures need."""
    try:
        return JoseModules(import_module("joserfc.jwk"), import_module("joserfc.jws"))
    except ImportError as error:
        raise AuthError("signatures need joserfc", hint="pip install 'toolpost[auth]'") from error


def hash_s256(text: str) -> str:
    """Return the SHA-256 of a string in base64url: a PKCE challenge, or the `ath` of a proof."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


class MalformedToken(ValueError):
    """A string is no compact JWS with claims; the text says why, without repeating it."""


class CompactJws(NamedTuple):
    """A compact JWS, taken apart."""

    header: dict[str, Any]
    claims: dict[str, Any]
    signing_input: bytes
    signature: bytes

    @property
    def algorithm(self) -> str:
        """The algorithm that the header names."""
        named = self.header.get("alg")
        return named if isinstance(named, str) else ""

    @property
    def kid(self) -> str | None:
        """The name of the key that the header names."""
        named = self.header.get("kid")
        return named if isinstance(named, str) else None

    @property
    def typ(self) -> str:
        """The type in lower case, without the prefix that may be left out (RFC 7515 §4.1.9)."""
        named = self.header.get("typ", "")
        return named.lower().removeprefix("application/") if isinstance(named, str) else "?"


@cache
def _make_registry() -> Any:
    registry = import_jose().jws.JWSRegistry()
    # A proof brings a key along, and RSA signatures may be long: more than joserfc allows by default.
    registry.max_header_length = registry.max_payload_length = registry.max_signature_length = MAX_JWS_PART
    return registry


def parse_jws(text: str) -> CompactJws:
    """Take a compact JWS apart, whose payload is a JSON object; MalformedToken if it is none."""
    jws, decode = import_jose().jws, import_module("joserfc.util").urlsafe_b64decode
    try:
        found = jws.extract_compact(text.encode("ascii"), registry=_make_registry())
        # Strictly, as all other JSON: joserfc would also take NaN, a byte order mark and UTF-16.
        header = msgspec.json.decode(decode(found.segments["header"]), type=dict[str, Any])
        claims = msgspec.json.decode(found.payload, type=dict[str, Any])
        signed = found.segments["header"] + b"." + found.segments["payload"]
        signature = decode(found.segments["signature"])
    except Exception:  # noqa: BLE001 - joserfc raises errors of several kinds, and some repeat the text
        raise MalformedToken("it has no three parts in base64url, of which two are JSON objects") from None
    if "crit" in header or header.get("b64", True) is not True:
        raise MalformedToken("it demands extensions")
    return CompactJws(header, claims, signed, signature)
