"""What a refusal wants, and so what is asked for: scopes, and whether tokens are bound to a key.

Owns which of several challenges is answered, and how the wishes of a server, of the user and of the last
time come together. Makes the key that tokens are to be bound to. Asks nobody.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from toolpost.auth.challenge import Challenge, parse_challenges
from toolpost.auth.dpop import DpopProver
from toolpost.auth.signing import DPOP_ALGORITHM
from toolpost.errors import AuthError

if TYPE_CHECKING:
    from toolpost.auth.discovery import DiscoveredServer
    from toolpost.auth.grant import Grant
    from toolpost.auth.tokens import Tokens

__all__ = ["SelectedChallenge", "load_prover", "select_challenge"]

OFFLINE_ACCESS: Final = "offline_access"


class SelectedChallenge(NamedTuple):
    """What a refusal wants.

    Args:
        challenge: the one to answer.
        schemes: every scheme that would do.
    """

    challenge: Challenge
    schemes: frozenset[str]

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs, as far as told."""
        return self.challenge.scopes

    def compute_scopes(
        self, grant: "Grant", found: "DiscoveredServer", last: "Tokens | None"
    ) -> tuple[str, ...]:
        """The scopes to ask for: what server and user want, and what was asked for before (AUTH-12)."""
        own = grant.settings.scopes
        wanted = self.scopes or (() if own else found.resource.scopes_supported or ())
        before = () if last is None else last.asked
        scopes = [*dict.fromkeys((*before, *wanted, *own))]
        listed = found.issuer.scopes_supported or ()
        if OFFLINE_ACCESS in scopes and OFFLINE_ACCESS not in listed and OFFLINE_ACCESS not in own:
            scopes.remove(OFFLINE_ACCESS)
        elif scopes and OFFLINE_ACCESS in listed and OFFLINE_ACCESS not in scopes and grant.asks_user:
            scopes.append(OFFLINE_ACCESS)
        return tuple(scopes)

    def make_prover(self, grant: "Grant", found: "DiscoveredServer") -> DpopProver | None:
        """What binds new tokens to a key, where that is wanted.

        Raises:
            AuthError: it is wanted, and cannot be done.
        """
        dpop = grant.settings.dpop
        if dpop is False or (dpop == "auto" and "dpop" not in self.schemes):
            return None
        if DPOP_ALGORITHM in (found.issuer.dpop_signing_alg_values_supported or ()):
            return DpopProver()
        if dpop == "auto" and "bearer" in self.schemes:
            return None
        raise AuthError(
            f"tokens shall be bound to a key, but the authorization server does not list {DPOP_ALGORITHM}"
        )


def select_challenge(challenge: str, dpop: object) -> SelectedChallenge:
    """What a refusal wants; a token that is bound to a key rather than another, if we may.

    Args:
        challenge: what it says in `WWW-Authenticate`.
        dpop: what the user says about keys.
    """
    by_scheme = {each.scheme: each for each in reversed(parse_challenges(challenge))}
    order = ("bearer", "dpop") if dpop is False else ("dpop", "bearer")
    chosen = next((by_scheme[scheme] for scheme in order if scheme in by_scheme), Challenge("", {}))
    return SelectedChallenge(chosen, frozenset(by_scheme))


def load_prover(tokens: "Tokens | None") -> DpopProver | None:
    """What proves that tokens are ours, if they are bound to a key."""
    return None if tokens is None or tokens.key is None else DpopProver(tokens.key)
