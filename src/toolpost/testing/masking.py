"""Masks secrets in JSON values, before they are recorded or shown.

Defines the names of secrets, the patterns of secrets in strings, and their replacement. All work is linear.
Encoded secrets, as in base64, are not found.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec

MASKED: Final = "<masked>"  # the replacement of a secret
MAX_DEPTH: Final = 100  # levels of a value; deeper ones are masked as a whole

_SECRET_ENDING: Final = re.compile(
    r"(?:accesskey|apikeys?|authorization|clientassertion|cookies?|credentials?|passphrase|passwd|passwords?"
    r"|privatekey|pwd|secret|secretkey|secrets|sessionid|token)\Z"
)
"""Suffixes of names of secrets, in lower case and without separators."""

_WHOLE_NAMES: Final = frozenset({"jwt", "otp", "pass", "passcode", "requeststate"})
"""Names of secrets that are also suffixes of other words. A request state may contain user input."""

_HARMLESS: Final = frozenset({"pagetoken", "nextpagetoken", "nexttoken", "progresstoken"})
"""Names with such a suffix that are not secret."""

_SECRET_PATTERNS: Final = (
    re.compile(r"(\b(?:Bearer|Basic|DPoP) +)[\w.~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"((?<![\w-]))eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),  # a JWT
    re.compile(r"((?<![\w-])(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abps])[-_])[\w-]{12,}"),
    re.compile(
        r"([?&#][\w.-]{0,40}(?:token|secret|password|key|code|signature|sig)=)[^&#\s\"]+", re.IGNORECASE
    ),
    re.compile(r"(://[^/?#\s:@]{0,100}:)[^/?#\s@]{1,200}(?=@)"),  # the password of a URL
)
"""Patterns of secrets without a name. The first group is kept."""

_NAMED_VALUE_PATTERNS: Final = (
    re.compile(r"((?<![\w.-])([\w.-]{1,80})=)[^\s\"'&;,<>]+"),
    re.compile(r"(\"([\w.-]{1,80})\\{0,9}\"\s{0,9}:\s{0,9}\\{0,9}\")[^\"\\]+"),
)
"""A name, a sign and a value in a string: a setting, and a member of an object within the string."""

_IN_SCHEMAS: Final = frozenset({"$defs", "definitions", "patternProperties", "properties"})
"""Members of a schema that map the author's names to schemas."""

_SEPARATORS: Final = re.compile(r"[^a-z0-9]")


class Mask:
    """Finds secrets and masks them.

    Masks the values of members with the name of a secret (`Authorization`, `api_key`, `refreshToken`, …),
    including nested values. In every string, JSON or not, masks values after such a name and strings that
    look like a token. Masks the given secrets everywhere.

    Example:
        >>> mask = Mask(["tiger"])
        >>> mask({"api_key": "1234", "city": "Oslo", "note": "ask the tiger"})
        {'api_key': '<masked>', 'city': 'Oslo', 'note': 'ask the <masked>'}

    Args:
        secrets: values to mask everywhere.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        given = {secret for secret in secrets if secret}
        as_json = {msgspec.json.encode(secret).decode()[1:-1] for secret in given}
        forms = given | as_json | {quote(secret, safe="") for secret in given}
        longest_first = sorted(forms, key=len, reverse=True)
        self._given_secrets = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, value: Any) -> Any:
        """Return the value without its secrets; the original is not changed."""
        return self._mask_value(value, MAX_DEPTH)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return HTTP headers without their secrets."""
        return {name: MASKED if is_secret(name) else self._mask_text(each) for name, each in headers.items()}

    def _mask_value(self, value: Any, depth: int, owner: str = "") -> Any:
        if isinstance(value, str):
            return self._mask_json(value, depth)
        if isinstance(value, dict | list) and not depth:
            return MASKED
        if isinstance(value, list):
            return [self._mask_value(each, depth - 1) for each in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        masked: dict[str, Any] = {}
        for name, each in cast("dict[str, Any]", value).items():
            is_schema = owner in _IN_SCHEMAS and isinstance(each, dict)
            hidden = is_secret(name) and not is_schema
            inner = _hide(each, depth - 1) if hidden else self._mask_value(each, depth - 1, name)
            masked[self._mask_text(name)] = inner
        return masked

    def _mask_json(self, text: str, depth: int) -> str:
        """Mask a string, which may be JSON, as in tool results. Re-encodes JSON only if it has a secret."""
        if depth and text.lstrip()[:1] in {"{", "["}:
            try:
                value = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                return self._mask_text(text)
            masked = self._mask_value(value, depth - 1)
            return text if masked == value else msgspec.json.encode(masked).decode()
        return self._mask_text(text)

    def _mask_text(self, text: str) -> str:
        if self._given_secrets is not None:
            text = self._given_secrets.sub(MASKED, text)
        for pattern in _SECRET_PATTERNS:
            text = pattern.sub(rf"\1{MASKED}", text)
        for pattern in _NAMED_VALUE_PATTERNS:
            text = pattern.sub(lambda found: found[1] + MASKED if is_secret(found[2]) else found[0], text)
        return text


def _hide(value: Any, depth: int) -> Any:
    """Mask everything in a secret, and keep its structure."""
    if isinstance(value, dict) and depth > 0:
        members = cast("dict[str, Any]", value).items()
        return {name: _hide(each, depth - 1) for name, each in members}
    if isinstance(value, list) and depth > 0:
        return [_hide(each, depth - 1) for each in cast("list[Any]", value)]
    return value if value is None or isinstance(value, bool) else MASKED


def is_secret(name: str) -> bool:
    """Return whether a member or a header with this name is secret."""
    word = _SEPARATORS.sub("", name.lower())
    return word in _WHOLE_NAMES or (word not in _HARMLESS and _SECRET_ENDING.search(word) is not None)
