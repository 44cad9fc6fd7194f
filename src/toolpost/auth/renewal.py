"""One attempt to get tokens from an authorization server: by a refresh token, or by a new grant.

Owns what is checked of what comes back, and that a refresh is finished whoever waits for it. Which of the two
is tried, and where tokens are kept, is not known here.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from msgspec.structs import replace

from toolpost.auth.demand import load_prover
from toolpost.auth.dpop import DpopProver
from toolpost.auth.endpoint import is_client_unknown, request_token
from toolpost.auth.grant import Grant, TokenRequest
from toolpost.auth.tokens import Tokens, parse_token_response
from toolpost.errors import AuthError, AuthorizationDenied

__all__ = ["obtain_tokens", "refresh_tokens", "run_to_completion"]

REFRESH_GRACE_PERIOD: Final = 10.0
"""Seconds that a refresh gets to end if nobody waits for it any more."""

logger: Final = logging.getLogger("toolpost.auth")


async def run_to_completion(work: Coroutine[Any, Any, bool]) -> bool:
    """What comes of work that is finished, for a while, also if nobody waits for it any more.

    A refresh token that was shown is not good any more: who does not keep what came for it has none.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=REFRESH_GRACE_PERIOD)
        task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # nobody is left to hear of it
        raise


async def refresh_tokens(grant: Grant, visit: TokenRequest, last: Tokens) -> Tokens | None:
    """What a refresh token gives; None if it is not good any more.

    Raises:
        AuthError: nobody can say at the moment, or what it gives must not be used.
    """
    assert last.refresh is not None
    identity = await grant.identity(visit)
    if identity is None:
        return None
    proofs = load_prover(last)
    form = {"grant_type": "refresh_token", "refresh_token": last.refresh, **visit.resource_param}
    try:
        document = await request_token(visit.fetch, visit.server.issuer, form, identity, proofs)
    except AuthorizationDenied as error:
        logger.debug("a token could not be refreshed: %s", error)
        if is_client_unknown(error):
            await grant.forget_registration(visit)
        return None
    return _bind_to_key(grant, parse_token_response(document, last.asked, last), proofs)


async def obtain_tokens(grant: Grant, visit: TokenRequest) -> Tokens:
    """What a new grant gives.

    Raises:
        AuthError: nothing, or nothing that may be used.
    """
    return _bind_to_key(grant, await grant.obtain(visit), visit.proofs)


def _bind_to_key(grant: Grant, tokens: Tokens, proofs: DpopProver | None) -> Tokens:
    """Tokens with the key that they are bound to, if they are bound as they should be.

    Raises:
        AuthError: they are not.
    """
    if tokens.kind == "dpop":
        if proofs is None:
            raise AuthError("the authorization server bound the token to a key, though none was shown to it")
        return replace(tokens, key=proofs.jwk)
    if grant.settings.dpop is True:
        raise AuthError(
            "the authorization server did not bind the token to our key, though dpop=True wants it"
        )
    return tokens
