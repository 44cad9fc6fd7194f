"""Sealed strings: values that a server hands to an untrusted client and wants back unchanged.

Cursors, request states and session handles are sealed here, on one worker, and opened on any other that has
the key. Promised: integrity always; the same audience and binding as at the sealing; the expiry; secrecy of
the payload only where the ring `encrypts`. Not promised: single use. A sealed string opens as often as it is
shown, so single use must be remembered elsewhere. Knows no clock, no store and no principal.

    sealed = base64url without padding of  header · body
    header = form (1 byte) · key id (4) · expires (8, Unix seconds, big-endian; all ones: never)
    body   = in form 1: payload · HMAC-SHA256 (32)
             in form 2: nonce (12) · AES-256-GCM of the payload · its tag (16)

Both forms authenticate header · audience · binding; the last two are never in the string.
"""

import base64
import hmac
import re
import secrets
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, Self

from toolpost.errors import InvalidSeal, MCPError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MIN_KEY: Final = 32  # bytes of key material: as many as the keys derived from it have
MAX_SEALED: Final = 64 * 1024  # characters: room for a journal, a bound on the work for untrusted input

_MAC_FORM: Final = 1
_AES_FORM: Final = 2

_HEADER: Final = Struct(">B4sQ")
_PART: Final = Struct(">cQ")
_COUNT: Final = Struct(">Q")
_NEVER: Final = 2**64 - 1
_TAG: Final = 32
_NONCE: Final = 12
_AES_TAG: Final = 16

MAX_PAYLOAD: Final = MAX_SEALED // 4 * 3 - _HEADER.size - max(_TAG, _NONCE + _AES_TAG)
"""Bytes of payload that fit in a sealed string of either form."""

_SALT: Final = b"toolpost seal 1"
_ALPHABET: Final = re.compile(r"[A-Za-z0-9_-]*")
_KEY_HINT: Final = "make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"


class _SealKey:
    """One key of a ring, with its public id. `bound` is authenticated, but not part of the body.

    In form 1 the same input gives the same body. In form 2 each nonce is random: 96 bits are safe for about
    2**32 strings per key (NIST SP 800-38D, 8.3); a ring that seals more than that has its key rotated.
    """

    def __init__(self, material: bytes, cipher: "type[AESGCM] | None") -> None:
        root = hmac.digest(_SALT, material, "sha256")
        self.id = _derive(root, b"id")[:4]
        self._mac_key = _derive(root, b"mac")
        self._cipher = None if cipher is None else cipher(_derive(root, b"encrypt"))

    def seal(self, form: int, bound: bytes, payload: bytes) -> bytes:
        if form == _MAC_FORM:
            return payload + self._compute_tag(bound, payload)
        assert self._cipher is not None, "the ring chose a form that it has"
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, payload, bound)

    def open(self, form: int, bound: bytes, body: bytes) -> bytes | None:
        """Return the payload; None if the body is not one that this key has sealed."""
        if form == _MAC_FORM:
            payload, tag = body[:-_TAG], body[-_TAG:]
            return payload if hmac.compare_digest(tag, self._compute_tag(bound, payload)) else None
        if self._cipher is None:
            raise InvalidSeal("it is encrypted, but the package `cryptography` cannot be imported")
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional

        try:
            return self._cipher.decrypt(body[:_NONCE], body[_NONCE:], bound)
        except (InvalidTag, ValueError):  # ValueError: too short for a nonce
            return None

    def _compute_tag(self, bound: bytes, payload: bytes) -> bytes:
        return hmac.digest(self._mac_key, bound + payload, "sha256")


class KeyRing:
    """The keys of a server: the first one seals, all of them open.

    To rotate, put the new key in front and drop the old one when its last string has expired.

    Args:
        keys: each with at least `MIN_KEY` bytes; a str is taken as its UTF-8 bytes.
        encrypt: whether to encrypt what is sealed. None means: where `cryptography` can be imported. Opening
            does not depend on it.

    Raises:
        ValueError: there is no key, or one is too short.
        MCPError: encryption is demanded and `cryptography` cannot be imported.

    Examples:
        >>> ring = KeyRing(["an example, far too well known!!"])
        >>> sealed = ring.seal(b"page 2", audience="cursor of shop", binding=["ann"], expires=1_800_000_000)
        >>> ring.open(sealed, audience="cursor of shop", binding=["ann"], now=1_799_999_999)
        b'page 2'
    """

    def __init__(self, keys: Sequence[bytes | str], *, encrypt: bool | None = None) -> None:
        if isinstance(keys, str | bytes):
            raise TypeError("the keys must be a list, even if there is only one: KeyRing([key])")
        if not keys:
            raise ValueError(f"a key ring needs at least one key ({_KEY_HINT})")
        materials = [_to_bytes(key) for key in keys]
        for number, material in enumerate(materials, 1):
            if len(material) < MIN_KEY:
                found = f"key {number} of the ring has {len(material)} bytes"
                raise ValueError(f"{found}; at least {MIN_KEY} are required ({_KEY_HINT})")
        cipher = None
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM as cipher  # noqa: N811, PLC0415 - optional
        except ImportError as error:
            if encrypt:
                raise MCPError(
                    "encryption of sealed strings needs the package `cryptography`, which cannot be imported",
                    hint="pip install 'toolpost[auth]'",
                ) from error
        self._keys = [_SealKey(material, cipher) for material in materials]
        self._form = _MAC_FORM if cipher is None or encrypt is False else _AES_FORM

    @classmethod
    def random(cls, *, encrypt: bool | None = None) -> Self:
        """Return a ring with one random key, which exists in this process only."""
        return cls([secrets.token_bytes(MIN_KEY)], encrypt=encrypt)

    @property
    def encrypts(self) -> bool:
        """Whether new seals encrypt the payload, so that its bearer cannot read it."""
        return self._form == _AES_FORM

    def __repr__(self) -> str:
        return f"KeyRing(ids={[key.id.hex() for key in self._keys]}, encrypts={self.encrypts})"

    def seal(
        self,
        payload: bytes,
        *,
        audience: str,
        binding: Sequence[str | bytes] = (),
        expires: int | None = None,
    ) -> str:
        """Return a URL-safe string that only this ring opens, for the same audience and binding.

        The audience names the use and the server, such as "cursor of shop". The binding has what must be the
        same when the string comes back, such as the principal, and is not in the string. From the Unix time
        `expires` on, the string is refused. ValueError if the payload has more than `MAX_PAYLOAD` bytes.
        """
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"the payload has {len(payload)} bytes (limit: {MAX_PAYLOAD})")
        if expires is None:
            expires = _NEVER
        elif type(expires) is not int or not 0 <= expires < _NEVER:
            raise ValueError(f"the expiry must be a Unix time in whole seconds, not {expires}")
        key = self._keys[0]
        header = _HEADER.pack(self._form, key.id, expires)
        bound = header + _encode_context(audience, binding)
        return _encode_base64url(header + key.seal(self._form, bound, payload))

    def open(self, sealed: str, *, audience: str, binding: Sequence[str | bytes] = (), now: int) -> bytes:
        """Return the payload of a string. Raises InvalidSeal for any problem; its `reason` is for the log."""
        raw = _decode_base64url(sealed)
        if len(raw) < _HEADER.size:
            raise InvalidSeal("it is too short")
        header, body = raw[: _HEADER.size], raw[_HEADER.size :]
        form, key_id, expires = _HEADER.unpack(header)
        if form not in {_MAC_FORM, _AES_FORM}:
            raise InvalidSeal(f"its form {form} is unknown")
        keys = [key for key in self._keys if key.id == key_id]
        if not keys:
            raise InvalidSeal(f"no key of the ring has its key id {key_id.hex()}")
        bound = header + _encode_context(audience, binding)
        # Ids are short, so two keys may share one.
        opened = (key.open(form, bound, body) for key in keys)
        payload = next((found for found in opened if found is not None), None)
        if payload is None:
            raise InvalidSeal("it is forged or damaged, or was sealed for another audience or binding")
        if expires != _NEVER and expires <= now:
            raise InvalidSeal(f"it expired at {expires} (now: {now})")
        return payload


def _derive(root: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose: the first block of HKDF-Expand (RFC 5869, 2.3)."""
    return hmac.digest(root, purpose + b"\x01", "sha256")


def _to_bytes(text: str | bytes) -> bytes:
    """The bytes of a text. Lone surrogates pass: untrusted input must not raise."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _encode_context(audience: str, binding: Sequence[str | bytes]) -> bytes:
    """Audience and binding as bytes, each with its type and length, so that no two of them look alike."""
    if isinstance(binding, str | bytes):
        raise TypeError("binding must be a list of strings, such as binding=[principal]")
    pieces = [_COUNT.pack(len(binding))]
    for part in (audience, *binding):
        data = _to_bytes(part)
        pieces += _PART.pack(b"b" if isinstance(part, bytes) else b"s", len(data)), data
    return b"".join(pieces)


def _encode_base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _decode_base64url(sealed: str) -> bytes:
    if len(sealed) > MAX_SEALED:
        raise InvalidSeal(f"it has {len(sealed)} characters (limit: {MAX_SEALED})")
    if not _ALPHABET.fullmatch(sealed) or len(sealed) % 4 == 1:
        raise InvalidSeal("it is not base64url without padding")
    raw = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
    # Up to four bits of the last character carry nothing. They must be zero, or two strings would be one.
    if _encode_base64url(raw) != sealed:
        raise InvalidSeal("its base64url is not canonical")
    return raw
