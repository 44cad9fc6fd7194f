"""Compact JWS. Only its shape is judged here, so any signature will do."""

from base64 import urlsafe_b64encode
from typing import Final

from fuzz.cuts import pumped
from toolpost.auth import jose
from toolpost.errors import TokenRejected

__all__ = ["TOKENS", "target"]


def _part(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


TOKENS: Final = (
    *(b".", b"..", b"=", b"A", b"-_", b"\n", b"\xc3\xa9", _part(b"{}"), _part(b'{"alg":"none"}')),
    *(_part(b'{"crit":["b64"],"b64":false}'), _part(b'{"typ":1,"kid":[],"alg":{}}'), _part(b"[" * 3000)),
)


def target(data: bytes) -> None:
    """A text is taken apart or malformed; and so is one that is made of the input."""
    _parse(data.decode("latin-1"))
    _parse(data.decode("utf-8", "replace"))
    head, _, rest = data.partition(b"\n")
    made = b".".join(map(_part, (head, rest, data))).decode()
    if (found := _parse(made)) is not None:
        assert found.signature == data
    for long in pumped(data):
        _parse(long.decode("latin-1"))


def _parse(text: str) -> jose.CompactJws | None:
    try:
        found = jose.parse_jws(text)
    except TokenRejected as error:
        assert len(str(error)) < 120, "a token is repeated in an error"
        return None
    head, payload, signature = text.split(".")
    assert found.signing_input == f"{head}.{payload}".encode()
    assert _part(found.signature).decode() == signature, "two texts are one"
    assert "crit" not in found.header
    assert all(isinstance(word, str) for word in (found.algorithm, found.typ, found.kid or ""))
    return found
