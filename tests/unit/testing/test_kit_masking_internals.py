"""Secrets are found by name, by pattern and by value, and nothing else is masked."""

import pytest

from toolpost.testing import Mask
from toolpost.testing.masking import MASKED, is_secret


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "x-api-key", "apiKey", "refresh_token", "accessToken", "password", "DB_PASSWORD"),
        *("pass", "jwt", "requestState", "api_keys"),
        *("Set-Cookie", "clientSecret", "Mcp-Session-Id", "privateKey", "credentials", "proxy-authorization"),
    ],
)
def test_names_of_secrets(name):
    assert is_secret(name)
    assert Mask()({name: "hidden"}) == {name: MASKED}
    assert Mask()({name: ["a", "b"]}) == {name: [MASKED, MASKED]}
    assert Mask().headers({name: "hidden"}) == {name: MASKED}
