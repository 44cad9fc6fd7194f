"""The access tokens of this server: signed JWTs, which only this server accepts, and only for a short time.

They are verified without the store. Their keys are derived from those of the server, so that all workers
that share its keys accept them.
"""

import base64
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

from msgspec.structs import replace

from toolpost.auth.jose import PrivateKey, import_jose
from toolpost.auth.provider.records import LoginGrant
from toolpost.auth.server.jwt import TOKEN_CACHE_SECONDS, Jwt, read_text
from toolpost.principal import Principal
from toolpost.protocol.seal import KeyRing

ACCESS_LIFETIME: Final = 600  # seconds: a revoked login ends after this time at the latest

_ALGORITHM: Final = "HS256"  # this server alone verifies them


class AccessTokens:
    """Issues access tokens and verifies them, as a `Verifier`.

    `find_upstream` returns the token of the provider for the id of a grant; None if it is not exposed.
    """

    cache_ttl = TOKEN_CACHE_SECONDS

    def __init__(
        self,
        issuer: str,
        keys: Callable[[], Awaitable[KeyRing]],
        find_upstream: Callable[[str], Awaitable[str]] | None,
    ) -> None:
        self._issuer = issuer
        self._get_keys = keys
        self._find_upstream = find_upstream
        self._key: PrivateKey | None = None
        self._jwt: Jwt | None = None

    async def verify(self, token: str, *resources: str) -> Principal:
        """Return the principal of a token, as `Verifier` describes it."""
        if self._jwt is None:
            await self._load_keys()
        assert self._jwt is not None, "the keys have been loaded"
        principal = await self._jwt.verify(token, *resources)
        if self._find_upstream is None:
            return principal
        find = partial(self._find_upstream, read_text(principal.claims, "sid"))
        return replace(principal, token_source=find)

    async def issue(self, name: str, grant: LoginGrant, scopes: Iterable[str]) -> str:
        """Return a new token for a grant with this id."""
        if self._key is None:
            await self._load_keys()
        assert self._key is not None, "the keys have been loaded"
        now = int(time.time())
        own = {
            "iss": self._issuer,
            "aud": grant.resource,
            "sub": grant.subject,
            "client_id": grant.client,
            "scope": " ".join(scopes),
            "sid": name,
            "jti": secrets.token_urlsafe(12),
            "iat": now,
            "exp": now + ACCESS_LIFETIME,
        }
        return self._key.sign({"typ": "at+jwt"}, {**grant.claims, **own})

    async def _load_keys(self) -> None:
        ring = await self._get_keys()
        keys = [
            {"kty": "oct", "k": base64.urlsafe_b64encode(key).rstrip(b"=").decode()}
            for key in ring.derive("access tokens")
        ]
        self._key = PrivateKey(import_jose().jwk.import_key(keys[0]), _ALGORITHM)
        self._jwt = Jwt(self._issuer, keys=keys, algorithms=_ALGORITHM)
