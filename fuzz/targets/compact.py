"""Compact JWS. Only its shape is judged here, so any signature will do."""

from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Final

from fuzz.cuts import pumped
from toolpost.auth.server import jwks

__all__ = ["TOKENS", "target"]


def _part(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


TOKENS: Final = (
    *(b".", b"..", b"=", b"A", b"-_", b"\n", b"\xc3\xa9", _part(b"{}"), _part(b'{"alg":"none"}')),
    *(_part(b'{"crit":["b64"],"b64":false}'), _part(b'{"typ":1,"kid":[],"alg":{}}'), _part(b"[" * 3000)),
)


def target(data: bytes) -> None:
    """A text is taken apart or malformed; and so is one that is made of the input."""
    _split(data.decode("latin-1"))
    _split(data.decode("utf-8", "replace"))
    head, _, rest = data.partition(b"\n")
    made = b".".join(map(_part, (head, rest, data))).decode()
    if (found := _split(made)) is not None:
        assert (found.payload, found.signature) == (rest, data)
    with suppress(jwks.MalformedToken):
        jwks.decode_object(data)
    for long in pumped(data):
        _split(long.decode("latin-1"))
        with suppress(jwks.MalformedToken):
            jwks.decode_object(long)


def _split(text: str) -> jwks.CompactJws | None:
    try:
        found = jwks.split_jws(text)
    except jwks.MalformedToken as error:
        assert len(str(error)) < 100, "a token is repeated in an error"
        return None
    head, payload, signature = text.split(".")
    assert found.signing_input == f"{head}.{payload}".encode()
    written = [_part(each).decode() for each in (found.payload, found.signature)]
    assert written == [payload, signature], "two texts are one"
    assert "crit" not in found.header
    assert all(isinstance(word, str) for word in (found.algorithm, found.typ, found.kid or ""))
    return found
