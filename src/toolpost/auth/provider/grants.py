"""Grants: what a user has granted to a client, from the code to the end of the login.

Refresh tokens rotate: each names a grant and a generation, and only the latest generation is valid. The one
before is valid for a moment longer, because a response may be lost, and some clients refresh twice at once.
An older one was stolen, or its successor was: the grant ends. Tokens of the provider are renewed here, by
one worker at a time.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Final

from msgspec.structs import replace

from toolpost.auth.jose import hash_s256
from toolpost.auth.provider.clients import LoginClient, OAuthRefusal
from toolpost.auth.provider.providers import OAuthProvider
from toolpost.auth.provider.records import (
    CODE_LIFETIME,
    GRANT_LIFETIME,
    USED_CODE_LIFETIME,
    EncryptedRecords,
    IssuedCode,
    LoginGrant,
    PendingLogin,
)
from toolpost.auth.provider.upstream import LoginEnded, ProviderClient, UpstreamTokens
from toolpost.errors import InvalidSeal, MCPError, StoreUnavailable
from toolpost.principal import parse_scopes
from toolpost.protocol.seal import KeyRing

logger: Final = logging.getLogger("toolpost.auth")

REUSE_GRACE: Final = 30.0  # seconds for which a refresh token may be used again after its rotation
LOCK_LIFETIME: Final = 30.0  # seconds after which a worker that renews a token is taken for dead
LOCK_POLL_INTERVAL: Final = 0.1  # seconds between two looks at what another worker has renewed

_REFRESH_AUDIENCE: Final = "refresh token"


class Grants:
    """The grants of one issuer."""

    def __init__(
        self,
        issuer: str,
        records: EncryptedRecords,
        keys: Callable[[], Awaitable[KeyRing]],
        upstream: ProviderClient,
    ) -> None:
        self._issuer = issuer
        self._records = records
        self._get_keys = keys
        self._upstream = upstream

    # ----------------------------------------------------------------- codes

    async def issue_code(
        self, login: PendingLogin, tokens: UpstreamTokens, claims: dict[str, Any], scopes: tuple[str, ...]
    ) -> str:
        """Return the code for a login that has succeeded."""
        code, grant = secrets.token_urlsafe(32), secrets.token_urlsafe(16)
        shown = self._select_claims(claims)
        content = LoginGrant(login.client, claims["sub"], scopes, login.resource, shown)
        await self._records.put("upstream", grant, tokens, USED_CODE_LIFETIME)
        issued = IssuedCode(grant, login.redirect, login.challenge, content)
        await self._records.put("code", code, issued, CODE_LIFETIME)
        return code

    async def redeem(
        self, client: LoginClient, code: str, verifier: str, redirect: str | None
    ) -> tuple[str, LoginGrant]:
        """Return the grant of a code with its id. A second use of a code ends it (RFC 6749 §4.1.2)."""
        stored, issued = await self._records.find("code", code, IssuedCode)
        if stored is None or issued is None:
            raise _make_invalid_grant("the code is unknown, or has expired")
        content = issued.content
        if content is not None:
            if content.client != client.id:
                raise _make_invalid_grant("the code was issued to another client")
            if redirect not in {None, issued.redirect}:
                raise _make_invalid_grant("redirect_uri is not that of the login")
            if not secrets.compare_digest(hash_s256(verifier).encode(), issued.challenge.encode()):
                raise _make_invalid_grant("code_verifier does not fit the code_challenge of the login")
            # In this order: a second request that finds the code used must find the grant to end it.
            await self._records.put("grant", issued.grant, content, GRANT_LIFETIME)
            await self._records.touch("upstream", issued.grant, GRANT_LIFETIME)
            used = IssuedCode(issued.grant)
            if await self._records.swap("code", code, stored, used, USED_CODE_LIFETIME):
                return issued.grant, content
        logger.warning("a code was used twice: the login of client %.100s has ended", client.id)
        await self.end(issued.grant)
        raise _make_invalid_grant("the code has already been used")

    # ----------------------------------------------------------------- refresh tokens

    async def make_refresh_token(self, grant: str, generation: int) -> str:
        """Return the refresh token of a generation."""
        keys, payload = await self._get_keys(), f"{generation} {grant}".encode()
        expires = int(time.time()) + GRANT_LIFETIME
        return keys.seal(payload, audience=_REFRESH_AUDIENCE, binding=[self._issuer], expires=expires)

    async def read_refresh_token(self, token: str) -> tuple[str, int]:
        """Return the grant and the generation of a refresh token."""
        keys = await self._get_keys()
        try:
            payload = keys.open(
                token, audience=_REFRESH_AUDIENCE, binding=[self._issuer], now=int(time.time())
            )
        except InvalidSeal:
            raise _make_invalid_grant("the refresh token is not valid") from None
        generation, _, grant = payload.decode().partition(" ")
        return grant, int(generation)

    async def rotate(self, client: LoginClient, token: str) -> tuple[str, LoginGrant]:
        """Return the grant of a refresh token with its id, in its next generation."""
        name, generation = await self.read_refresh_token(token)
        stored, grant = await self._records.find("grant", name, LoginGrant)
        if stored is None or grant is None or grant.client != client.id:
            raise _make_invalid_grant("the login has ended")
        if generation == grant.generation:
            claims = await self._check_upstream(name, grant)
            following = replace(grant, generation=generation + 1, rotated_at=time.time(), claims=claims)
            if await self._records.swap("grant", name, stored, following, GRANT_LIFETIME):
                await self._records.touch("upstream", name, GRANT_LIFETIME)
                return name, following
            grant = await self._records.get("grant", name, LoginGrant)  # another request was faster
        if grant is None:
            raise _make_invalid_grant("the login has ended")
        is_recent = time.time() - grant.rotated_at < REUSE_GRACE
        if generation == grant.generation - 1 and is_recent:
            return name, grant
        logger.warning("a refresh token was used again: the login of client %.100s has ended", client.id)
        await self.end(name)
        raise _make_invalid_grant("the refresh token has already been used")

    async def _check_upstream(self, name: str, grant: LoginGrant) -> dict[str, Any]:
        """Check that the provider still knows the user; return the claims of the grant, up to date."""
        allowed: tuple[str, ...] | None = None
        try:
            _, claims = await self._renew(name, grant)
            if claims is None:
                return grant.claims
            _check_subject(claims, grant)
            allowed = await choose_scopes(self._upstream.provider, claims, grant.scopes)
        except LoginEnded as error:
            logger.info("a login has ended: %s", error)
            allowed, claims = None, {}
        if allowed != grant.scopes:
            await self.end(name)
            raise _make_invalid_grant("the login has ended at the provider; log in again")
        return {**grant.claims, **self._select_claims(claims)}

    def _select_claims(self, claims: dict[str, Any]) -> dict[str, Any]:
        chosen = self._upstream.provider.claims
        return {name: value for name, value in claims.items() if name in chosen and value is not None}

    async def end(self, name: str) -> None:
        """End a grant: its refresh tokens are no longer valid, and those of the provider are revoked."""
        tokens = await self._records.get("upstream", name, UpstreamTokens)
        await self._records.delete("grant", name)
        if tokens is not None and await self._records.delete("upstream", name):
            try:
                await self._upstream.revoke(tokens)
            except (MCPError, ValueError) as error:
                logger.warning("could not revoke the token of the provider: %s", error)

    async def revoke(self, client: LoginClient, name: str) -> None:
        """End a grant if it belongs to this client."""
        grant = await self._records.get("grant", name, LoginGrant)
        if grant is not None and grant.client == client.id:
            await self.end(name)

    # ----------------------------------------------------------------- tokens of the provider

    async def find_upstream_token(self, name: str) -> str:
        """Return the access token of the provider for a grant, renewed if it has expired."""
        try:
            return (await self._renew(name, None))[0].access
        except LoginEnded as error:
            raise MCPError(
                f"there is no token of the provider: {error}", hint="the user has to log in again"
            ) from None

    async def _renew(
        self, name: str, grant: LoginGrant | None
    ) -> tuple[UpstreamTokens, dict[str, Any] | None]:
        """Return the tokens of the provider, and the claims of the user if they were read.

        A token without an end is tried out for a `grant` that is about to be continued. Others show at their
        renewal whether the provider still knows the user; what the userinfo endpoint says of them may differ
        from the ID token, and some are for another API.
        """
        mark = secrets.token_bytes(16)
        while True:
            tokens = await self._records.get("upstream", name, UpstreamTokens)
            if tokens is None:
                raise LoginEnded("it has ended, or was revoked")
            if not tokens.is_over:
                has_end = tokens.expires is not None
                return tokens, None if grant is None or has_end else await self._try_out(tokens)
            if await self._records.lock("upstream", name, None, mark, LOCK_LIFETIME):
                break
            await asyncio.sleep(LOCK_POLL_INTERVAL)  # another worker renews it
        try:
            tokens = await self._records.get("upstream", name, UpstreamTokens) or tokens
            if not tokens.is_over:
                return tokens, None
            renewed, claims = await self._upstream.refresh(tokens)
            await self._records.put("upstream", name, renewed, GRANT_LIFETIME)
            return renewed, claims
        finally:
            await self._records.lock("upstream", name, mark, None, LOCK_LIFETIME)

    async def _try_out(self, tokens: UpstreamTokens) -> dict[str, Any] | None:
        """Read the user again, unless the provider is unavailable: its outage must not end logins."""
        try:
            return await self._upstream.fetch_user(tokens.access)
        except StoreUnavailable:
            raise
        except MCPError as error:
            logger.warning("could not ask the provider about a user: %s", error)
            return None


def _check_subject(claims: dict[str, Any], grant: LoginGrant) -> None:
    if claims["sub"] != grant.subject:
        raise LoginEnded("the provider names another user")


async def choose_scopes(
    provider: OAuthProvider, claims: dict[str, Any], wanted: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the scopes that a user may have. Raises LoginEnded if they may not log in at all."""
    allowed: Any = True
    if provider.allow is not None:
        allowed = provider.allow(dict(claims))
        if isawaitable(allowed):
            allowed = await allowed
    if allowed is False or allowed is None:
        raise LoginEnded("the user is not allowed to log in")
    if allowed is True:
        return wanted
    allowed_scopes = parse_scopes(allowed)
    return tuple(scope for scope in wanted if scope in allowed_scopes)


def _make_invalid_grant(text: str) -> OAuthRefusal:
    return OAuthRefusal("invalid_grant", text)
