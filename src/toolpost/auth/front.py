"""A protected resource as others see it: what it publishes about itself, and what its challenges say.

Owns the document of RFC 9728 and the words of a refusal. A server that is reached under two URLs has two
fronts, for a client takes only what is about the URL that it uses. Who is let in is not known here.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from toolpost.auth.denial import AccessDenied, encode_challenge
from toolpost.auth.places import build_metadata_url
from toolpost.auth.proof import PROOF_ALGORITHMS
from toolpost.principal import Principal

if TYPE_CHECKING:
    from toolpost.auth.resource import Auth

__all__ = ["ProtectedResource"]

_INVALID_TOKEN_MESSAGE: Final = "The token is not good for this server."  # noqa: S105 - a message
_ERROR_HINTS: Final = {
    "invalid_token": "It may have expired, or be for another server. The log of the server tells more.",
    "invalid_dpop_proof": "A proof is for one request, and made just before it: see that the clock is right.",
    "needs_proof": "The token has to be bound to a key of the client, and come with a proof (RFC 9449).",
}
"""What an error may be about; the same for all checks that it stands for."""


class ProtectedResource:
    """What a server says of itself, and to those whom it refuses.

    Args:
        auth: what is demanded.
        url: the resource, as tokens name it.

    Attributes:
        metadata: what is published about it, as JSON (RFC 9728).
        metadata_url: where that is published.
    """

    def __init__(self, auth: "Auth", url: str) -> None:
        self._auth = auth
        self.url = url
        self.metadata_url = build_metadata_url(url)
        self.metadata = self._build_metadata()

    def _build_metadata(self) -> bytes:
        auth = self._auth
        told = {
            "resource": self.url,
            "authorization_servers": auth.issuers,
            "scopes_supported": sorted(auth.scopes) or None,
            "bearer_methods_supported": ["header"],
            "resource_name": auth.name,
            "dpop_signing_alg_values_supported": PROOF_ALGORITHMS,
            "dpop_bound_access_tokens_required": True if auth.dpop else None,
        }
        return msgspec.json.encode({name: value for name, value in told.items() if value is not None})

    def build_step_up_headers(
        self, scopes: Iterable[str], principal: Principal | None
    ) -> list[tuple[bytes, bytes]]:
        """The challenge for what a token may not do: all that is needed for it, granted or not (AUTH-52)."""
        bound = principal is not None and "cnf" in principal.claims
        wanted = " ".join(sorted(self._auth.scopes.union(scopes)))
        return [self.build_challenge("DPoP" if bound else "Bearer", error="insufficient_scope", scope=wanted)]

    def make_denial(
        self,
        why: str,
        scheme: str,
        error: str = "invalid_token",
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        hint: str | None = None,
    ) -> AccessDenied:
        """How a token is refused; `why` is for the log."""
        told = self.build_challenge(scheme, error=error, hint=hint or error)
        return AccessDenied(401, _INVALID_TOKEN_MESSAGE, [told, *headers], why=why)

    def build_challenge(
        self, scheme: str = "", *, error: str | None = None, scope: str | None = None, hint: str = ""
    ) -> tuple[bytes, bytes]:
        """The header that tells a client what to do."""
        scheme = "DPoP" if self._auth.dpop else scheme or "Bearer"
        return encode_challenge(
            scheme,
            error=error,
            scope=" ".join(sorted(self._auth.scopes)) if scope is None else scope,
            resource_metadata=self.metadata_url,
            algs=" ".join(PROOF_ALGORITHMS) if scheme == "DPoP" else None,
            error_description=_ERROR_HINTS.get(hint),
        )
