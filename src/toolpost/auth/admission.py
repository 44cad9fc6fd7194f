"""Where a request shows its token, before anything else is looked at: whom a protected resource lets in.

Owns the order of the checks; what makes a token good is for the verifier to say, and how a refusal is put for
the front. Knows headers and URLs, no message, no session and no socket.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from traceback import extract_tb
from typing import Final

from toolpost.auth.denial import Denial
from toolpost.auth.front import Front
from toolpost.auth.issuer import MAX_NAMED
from toolpost.auth.places import WELL_KNOWN, origin_of
from toolpost.auth.proof import Keys, Records, ShownProofs, Stale, nonce_of
from toolpost.auth.resource import Auth
from toolpost.auth.verifier import Memory
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.principal import Principal

__all__ = ["Admission"]

logger: Final = logging.getLogger("toolpost.auth")

MAX_TOKEN: Final = 16 * 1024
"""Characters of a token: those with many groups in them have a few thousand."""

SHOWN: Final = 6
"""Letters of a token that a text may have in common with it by accident."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCHEMES: Final = {"bearer": "Bearer", "dpop": "DPoP"}


class Admission:
    """Lets in whoever has a good token.

    Args:
        auth: what is demanded.
        resource: the URL of the endpoint, as tokens name it.
        path: where the endpoint is, below the place where it is mounted.
        records: where proofs are remembered.
        keys: gives what nonces are sealed with.
        sse: where clients of HTTP+SSE come, and where they post; empty if they do not. They know the server
            by a URL of its own, so tokens may name that one there as well.

    Attributes:
        published: what is published about the resource, by path.
    """

    def __init__(
        self,
        auth: Auth,
        resource: str,
        path: str,
        records: Callable[[], Records],
        *,
        keys: Callable[[], Awaitable[Keys]],
        sse: tuple[str, ...] = (),
    ) -> None:
        self._auth = auth
        self._base = resource.removesuffix(path) if path != "/" else resource.rstrip("/")
        self._records = records
        self._keys = keys
        self._memory = Memory()
        self._proofs: ShownProofs | None = None
        self._front = self._sse_front = Front(auth, resource)
        # Otherwise the URL for HTTP+SSE is below the resource, or nobody knows it.
        apart = path != "/" and resource.endswith(path)
        self._sse = frozenset(sse if apart else ())
        if self._sse:
            self._sse_front = Front(auth, self._base + sse[0])
        self.published = _placed(self._front, "" if path == "/" else path.rstrip("/"))
        if self._sse:
            for place, document in _placed(self._sse_front, sse[0]).items():
                self.published.setdefault(place, document)

    async def admit(self, method: str, path: str, headers: Mapping[str, str]) -> Principal:
        """On whose behalf a request speaks.

        Args:
            method: of HTTP.
            path: below the place where the endpoint is mounted.
            headers: by their names in lower case.

        Raises:
            Denial: it is not good enough.
        """
        front = self._sse_front if path.rstrip("/") in self._sse else self._front
        resources = tuple(dict.fromkeys((self._front.url, front.url)))
        scheme, token = _credentials(front, headers.get("authorization", ""))
        about = f"{front.url} {token}"  # what is good at one of our URLs may not be at the other
        principal = self._memory.recall(about)
        if not isinstance(principal, Principal):
            principal = await self._verified(front, token, scheme, resources)
            if self._auth.verifier.keep > 0:
                self._memory.note(about, principal, self._auth.verifier.keep)
        bound = principal.claims.get("cnf")
        if scheme == "DPoP" or bound is not None or self._auth.dpop:
            if scheme != "DPoP" or "dpop" not in headers:
                why = "a token that has to be proven came without a proof"
                raise front.unfit(why, "DPoP", hint="needs_proof")
            whole = path == "/" and self._base != origin_of(front.url)
            url = self._base if whole else self._base + path
            await self._prove(front, headers["dpop"], principal, method=method, url=url, token=token)
        if not self._auth.scopes <= principal.scopes:
            raise Denial(
                403, "The token lacks a scope that every request needs.", front.step_up((), principal)
            )
        return principal

    async def _verified(self, front: Front, token: str, scheme: str, resources: tuple[str, ...]) -> Principal:
        try:
            return self._auth.recognised(await self._auth.verifier.verify(token, *resources))
        except TokenRejected as error:
            raise front.unfit(error.message, scheme) from None
        except MCPError as error:
            raise _later(f"a token cannot be checked: {error}") from None
        except Exception as error:  # noqa: BLE001 - its text may hold the token, and a traceback shows it
            place, told = extract_tb(error.__traceback__)[-1], f"{type(error).__name__}: {error}"[:MAX_NAMED]
            logger.error(  # noqa: TRY400 - see above
                "a token cannot be checked: the verifier raised %s, in %s (%s:%s)",
                _without(token, told), place.name, place.filename, place.lineno,
            )  # fmt: skip
            raise Denial(
                500, "The token cannot be checked: a fault of the server, which its log tells."
            ) from None

    async def _prove(self, front: Front, proof: str, principal: Principal, **request: str) -> None:
        """Return if whoever sends a token holds the key that it is bound to."""
        if self._proofs is None:
            self._proofs = ShownProofs()
        keys = await self._keys() if self._auth.nonce else None
        try:
            await self._proofs.check(proof, **request, whose=principal, records=self._records(), keys=keys)
        except Stale:
            told = [(b"dpop-nonce", nonce_of(keys).encode())] if keys is not None else []
            raise front.unfit("", "DPoP", "use_dpop_nonce", told) from None  # how every client begins
        except TokenRejected as error:
            raise front.unfit(error.message, "DPoP", "invalid_dpop_proof") from None
        except RequestFailed as error:
            raise _later(f"a proof cannot be checked: {error}") from None

    def step_up(
        self, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The challenge for what a token may not do."""
        return (self._sse_front if sse else self._front).step_up(scopes, principal)


def _placed(front: Front, path: str) -> dict[str, bytes]:
    """What is published where: at the path in the public URL, and at our own; and one at the root."""
    at = front.place.removeprefix(origin_of(front.url)).partition("?")[0]
    return dict.fromkeys((at, f"{WELL_KNOWN}{path}", WELL_KNOWN), front.metadata)


def _without(token: str, text: str) -> str:
    """A text that somebody else wrote, if it shows nothing of a token; only its first word otherwise."""
    parts = (token[start : start + SHOWN] for start in range(max(len(token) - SHOWN, 0) + 1))
    return text.partition(":")[0] if any(part in text for part in parts) else text


def _credentials(front: Front, sent: str) -> tuple[str, str]:
    """The scheme and the token that a request came with."""
    name, _, token = sent.partition(" ")
    scheme = _SCHEMES.get(name.lower())
    if scheme is None:
        raise Denial(401, "This server wants an access token.", [front.challenge()])
    token = token.strip(" ")
    if len(token) > MAX_TOKEN or _TOKEN.fullmatch(token) is None:
        told = front.challenge(scheme, error="invalid_request")
        raise Denial(400, "The Authorization header is malformed.", [told])
    return scheme, token


def _later(why: str) -> Denial:
    """How a request is refused that may well be good: a token is not bad because nobody can check it."""
    return Denial(503, "The token cannot be checked at the moment.", [(b"retry-after", b"5")], why)
