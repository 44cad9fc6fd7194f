"""What the login keeps in the store: clients, logins in progress, codes, grants, tokens of the provider.

Every value is encrypted with the keys of the server and bound to its key, so that a store can neither read
nor move or change it. Names of records are digests. Single use is a swap or a delete, as in the store.
"""

import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec

from toolpost.errors import InvalidSeal, MCPError
from toolpost.protocol.seal import KeyRing
from toolpost.stores.store import RecordStore
from toolpost.types.base import Struct

T = TypeVar("T", bound=Struct)

LOGIN_LIFETIME: Final = 600  # seconds for a user to read the consent page, and again to log in
CODE_LIFETIME: Final = 60  # seconds until a code has to be redeemed
USED_CODE_LIFETIME: Final = 600  # seconds for which a code is known as used: as long as its access token
GRANT_LIFETIME: Final = 30 * 86400  # seconds without a refresh until a login ends
NEW_CLIENT_LIFETIME: Final = 86400  # seconds until a client without a login is forgotten
CLIENT_LIFETIME: Final = 365 * 86400  # seconds since its last login or refresh


class ClientRecord(Struct):
    """A client that has registered."""

    redirects: tuple[str, ...]
    name: str


class PendingLogin(Struct):
    """A login that a user has consented to, until the provider sends them back."""

    client: str
    redirect: str
    state: str | None
    challenge: str
    scopes: tuple[str, ...]
    resource: str
    verifier: str = ""
    nonce: str = ""
    browser: str = ""
    """The digest of the cookie of the browser in which the user has consented."""


class LoginGrant(Struct):
    """What a user has granted to a client. The refresh token of the latest generation is valid."""

    client: str
    subject: str
    scopes: tuple[str, ...]
    resource: str
    claims: dict[str, Any]
    generation: int = 0
    rotated_at: float = 0.0


class IssuedCode(Struct):
    """A code, and what it is for; `grant` is the id that the grant has from its redemption on."""

    grant: str
    redirect: str = ""
    challenge: str = ""
    content: LoginGrant | None = None
    """None if the code was redeemed."""


class EncryptedRecords:
    """Records of one issuer, by kind and name."""

    def __init__(
        self, issuer: str, records: Callable[[], RecordStore], keys: Callable[[], Awaitable[KeyRing]]
    ) -> None:
        self._issuer = issuer
        self._get_records = records
        self._get_keys = keys

    def _make_key(self, kind: str, name: str) -> str:
        return f"login/{kind}/{sha256(f'{self._issuer} {name}'.encode()).hexdigest()}"

    async def _seal(self, kind: str, name: str, value: Struct) -> bytes:
        keys = await self._get_keys()
        if not keys.encrypts:
            raise MCPError(
                "a login provider needs keys that encrypt: its tokens are kept in the store",
                hint="pass Server(keys=KeyRing([…])) without encrypt=False",
            )
        packed = msgspec.msgpack.encode(value)
        return keys.seal(packed, audience=f"login {kind}", binding=(self._issuer, name)).encode()

    async def find(self, kind: str, name: str, shape: type[T]) -> tuple[bytes, T] | tuple[None, None]:
        """Return the stored bytes and the value; None for both if there is none."""
        stored = await self._get_records().get(self._make_key(kind, name))
        if stored is None:
            return None, None
        keys, binding = await self._get_keys(), (self._issuer, name)
        try:
            text = stored.decode("ascii")
            packed = keys.open(text, audience=f"login {kind}", binding=binding, now=int(time.time()))
            return stored, msgspec.msgpack.decode(packed, type=shape)
        except (InvalidSeal, msgspec.MsgspecError, UnicodeDecodeError):  # another key, or another release
            return None, None

    async def get(self, kind: str, name: str, shape: type[T]) -> T | None:
        """Return the value, if there is one."""
        return (await self.find(kind, name, shape))[1]

    async def put(self, kind: str, name: str, value: Struct, ttl: float) -> None:
        """Write a value."""
        await self._get_records().put(self._make_key(kind, name), await self._seal(kind, name, value), ttl)

    async def touch(self, kind: str, name: str, ttl: float) -> None:
        """Keep a value for this time from now on."""
        await self._get_records().touch(self._make_key(kind, name), ttl)

    async def swap(self, kind: str, name: str, old: bytes, value: Struct, ttl: float) -> bool:
        """Replace a value if it is still the one with these bytes; return whether it was."""
        sealed = await self._seal(kind, name, value)
        return await self._get_records().swap(self._make_key(kind, name), old, sealed, ttl)

    async def delete(self, kind: str, name: str) -> bool:
        """Delete a value; of several callers, one gets True."""
        return await self._get_records().delete(self._make_key(kind, name))

    async def lock(self, kind: str, name: str, mark: bytes | None, new: bytes | None, ttl: float) -> bool:
        """Take a lock, or give it back: swap a plain mark."""
        return await self._get_records().swap(self._make_key(f"{kind} lock", name), mark, new, ttl)
