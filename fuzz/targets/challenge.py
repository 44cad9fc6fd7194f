"""`WWW-Authenticate`. What was read is written in the one plain form, and must be read the same."""

import re
from typing import Final

from fuzz.cuts import pumped
from toolpost.auth.client import discovery
from toolpost.auth.client.discovery import Challenge

__all__ = ["TOKENS", "target"]

TOKENS: Final = (
    *(b"Bearer ", b"DPoP ", b"Basic ", b'realm="', b'error="invalid_token"', b'scope="a b"', b", ", b"="),
    *(
        b'resource_metadata="https://a/.well-known/b"',
        b'\\"',
        b"\\",
        b'"',
        b" = ",
        b"\t",
        b"\0",
        b"algs=ES256",
    ),
)
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")


def target(data: bytes) -> None:
    """Nothing raises; what was read can be written and read again."""
    text = data.decode("latin-1")
    found = discovery.parse_challenges(text)
    for one in found:
        assert _TOKEN.fullmatch(one.scheme)
        assert all(_TOKEN.fullmatch(name) for name in one.params)
        assert all(" " not in scope and '"' not in scope for scope in one.scopes)
    written = ", ".join(map(_written, found))
    if len(written) <= discovery.MAX_CHALLENGE_LENGTH:
        assert discovery.parse_challenges(written) == found, "what was read is written differently"
    scopes = discovery.find_scopes(text)
    assert discovery.find_scopes(" ".join(scopes)) == scopes
    for long in pumped(data):
        discovery.parse_challenges(long.decode("latin-1"))
        discovery.find_scopes(long.decode("latin-1"))


def _written(one: Challenge) -> str:
    params = ", ".join(f'{name}="{_escaped(value)}"' for name, value in one.params.items())
    return f"{one.scheme} {params}".strip(" ")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
