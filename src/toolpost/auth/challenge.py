"""What a server says in `WWW-Authenticate`: schemes, each with its parameters (RFC 9110, section 11.6.1).

Pure. Owns the grammar, read in one pass. What a challenge leads to is not known here.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

__all__ = ["MAX_CHALLENGE_LENGTH", "Challenge", "parse_challenges", "split_scopes"]

MAX_CHALLENGE_LENGTH: Final = 16 * 1024
"""How many characters are looked at: more than common servers send as all headers together."""

_CHALLENGE_PART: Final = re.compile(
    r"""[ \t,]*(?P<name>[!#$%&'*+\-.^_`|~0-9A-Za-z]+)"""
    r"""(?:[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[!#$%&'*+\-.^_`|~0-9A-Za-z:/?@=]+))"""
    r"""|(?=[ \t,]|$))"""
)
_ESCAPED_CHARACTER: Final = re.compile(r"\\(.)")
_SCOPE_TOKEN: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class Challenge(NamedTuple):
    """One scheme, and what it says.

    Args:
        scheme: in lower case, such as "bearer" or "dpop".
        params: its parameters, by their names in lower case. The first of a name counts.
    """

    scheme: str
    params: Mapping[str, str]

    @property
    def error(self) -> str | None:
        """What is wrong with the credentials, as a code."""
        return self.params.get("error")

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs (AUTH-10)."""
        return split_scopes(self.params.get("scope", ""))


def parse_challenges(text: str) -> list[Challenge]:
    """The challenges of a header; what cannot be read ends the list."""
    return list(_iterate_challenges(text[:MAX_CHALLENGE_LENGTH]))


def _iterate_challenges(text: str) -> Iterator[Challenge]:
    scheme, params, at = "", dict[str, str](), 0
    while (part := _CHALLENGE_PART.match(text, at)) is not None:
        at, name = part.end(), part["name"].lower()
        value = part["plain"] if part["quoted"] is None else _ESCAPED_CHARACTER.sub(r"\1", part["quoted"])
        if value is None:
            if scheme:
                yield Challenge(scheme, params)
            scheme, params = name, {}
        elif scheme:
            params.setdefault(name, value)
    if scheme:
        yield Challenge(scheme, params)


def split_scopes(text: str) -> tuple[str, ...]:
    """The scopes in a list that is separated by spaces, each once, in their order; no error for others."""
    return tuple(dict.fromkeys(word for word in text.split(" ") if _SCOPE_TOKEN.fullmatch(word)))
