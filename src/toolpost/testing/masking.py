"""Takes secrets out of what was said, before it is kept or shown.

Owns which names stand for secrets, what secrets look like in a text, and what is put in their place. Knows
nothing of messages: it is handed JSON values. All work is linear.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

__all__ = ["MASKED", "Mask", "is_secret"]

MASKED: Final = "<masked>"
"""What stands in the place of a secret."""

MAX_DEPTH: Final = 100
"""How deeply a value is looked into: what nests deeper than any message is masked as a whole."""

_ENDINGS: Final = (
    "accesskey",
    "apikey",
    "authorization",
    "clientassertion",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "pwd",
    "secret",
    "secretkey",
    "secrets",
    "sessionid",
    "token",
)
"""How the names of secrets end, in lower case and without hyphens and the like."""

_HARMLESS: Final = frozenset({"pagetoken", "nextpagetoken", "nexttoken", "progresstoken"})
"""Names that end so, and stand for something that everybody may know."""

_TELLING: Final = (
    re.compile(r"(\b(?:Bearer|Basic|DPoP) +)[\w.~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"((?<![\w-]))eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),  # a JWT
    re.compile(r"((?<![\w-])(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abps])[-_])[\w-]{12,}"),
    re.compile(
        r"([?&][\w.-]{0,40}(?:token|secret|password|key|code|signature|sig)=)[^&#\s\"]+", re.IGNORECASE
    ),
)
"""What secrets look like where no name tells. The first group is kept."""

_WORD: Final = re.compile(r"[^a-z0-9]")


class Mask:
    """Finds secrets and masks them.

    A value is masked if the name of its member says that it is secret (`Authorization`, `api_key`,
    `refreshToken`, …); in every text, what looks like a token; and everywhere, the values that are named.

    Example:
        >>> mask = Mask(["tiger"])
        >>> mask({"api_key": "1234", "city": "Oslo", "note": "ask the tiger"})
        {'api_key': '<masked>', 'city': 'Oslo', 'note': 'ask the <masked>'}

    Args:
        secrets: values to mask wherever they stand.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        named = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._named = re.compile("|".join(map(re.escape, named))) if named else None

    def __call__(self, value: Any) -> Any:
        """The value without its secrets. What was handed over is not changed."""
        return self._masked(value, MAX_DEPTH)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """HTTP headers without their secrets."""
        return {name: self._member(name, value, 1) for name, value in headers.items()}

    def _masked(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict | list) and not depth:
            return MASKED
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value).items()
            return {self._text(name): self._member(name, each, depth) for name, each in members}
        if isinstance(value, list):
            return [self._masked(each, depth - 1) for each in cast("list[Any]", value)]
        return value

    def _member(self, name: str, value: Any, depth: int) -> Any:
        # An object stays: it may be the schema of a parameter with such a name.
        if not is_secret(name) or isinstance(value, dict | bool) or value is None:
            return self._masked(value, depth - 1)
        return [MASKED for _ in cast("list[Any]", value)] if isinstance(value, list) else MASKED

    def _text(self, text: str) -> str:
        if self._named is not None:
            text = self._named.sub(MASKED, text)
        for pattern in _TELLING:
            text = pattern.sub(rf"\1{MASKED}", text)
        return text


def is_secret(name: str) -> bool:
    """Whether a member or a header with this name holds a secret."""
    word = _WORD.sub("", name.lower())
    return word.endswith(_ENDINGS) and word not in _HARMLESS
