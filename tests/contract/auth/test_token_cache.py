"""The token cache of a server: digests, a bounded size; and session ids that cannot be guessed."""

import math
from typing import Any

import pytest

from hosted import run
from protected_server import RESOURCE, bearer, guarded
from toolpost.errors import MissingScopes
from toolpost.testing import AuthorizationServer

ISSUER = "https://login.example.com"


@pytest.mark.requirement("SEC-7", "SEC-10")
def test_ids_of_sessions_cannot_be_guessed():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            token = bearer(mint.token(RESOURCE, scopes=["read"]))
            ids = [await site.open(headers=token) for _ in range(8)]
            assert len(set(ids)) == len(ids)
            # At least 128 bits behind what all of them begin with: letters of base64 that differ.
            varying = [place for place in range(len(ids[0])) if len({each[place] for each in ids}) > 1]
            assert len(varying) * math.log2(64) >= 128

    run(main)


def test_an_error_names_all_scopes():
    error = MissingScopes.for_scopes(["b", "a"])
    assert (error.scopes, error.data) == (["a", "b"], {"scope": "a b"})
    assert MissingScopes("no").scopes == []


@pytest.mark.requirement("AS-12")
def test_tokens_for_tests_are_short_lived():
    claims: Any = AuthorizationServer(ISSUER).claims_of(AuthorizationServer(ISSUER).token(RESOURCE))
    assert claims["exp"] - claims["iat"] <= 600
