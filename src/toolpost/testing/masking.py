"""Takes secrets out of what was said, before it is kept or shown.

Owns which names stand for secrets, what secrets look like in a text, and what is put in their place. Knows
nothing of messages: it is handed JSON values. All work is linear. What is encoded, as in base64, is not seen.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec

MASKED: Final = "<masked>"  # what stands in the place of a secret
MAX_DEPTH: Final = 100  # what nests deeper than any message is masked as a whole

_SECRET_ENDING: Final = re.compile(
    r"(?:accesskey|apikeys?|authorization|clientassertion|cookies?|credentials?|passphrase|passwd|passwords?"
    r"|privatekey|pwd|secret|secretkey|secrets|sessionid|token)\Z"
)
"""How the names of secrets end, in lower case and without hyphens and the like."""

_WHOLE_NAMES: Final = frozenset({"jwt", "otp", "pass", "passcode", "requeststate"})
"""Names of secrets that are also the ends of other words; a request state may hold answers of the user."""

_HARMLESS: Final = frozenset({"pagetoken", "nextpagetoken", "nexttoken", "progresstoken"})
"""Names that end so, and stand for something that everybody may know."""

_SECRET_PATTERNS: Final = (
    re.compile(r"(\b(?:Bearer|Basic|DPoP) +)[\w.~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"((?<![\w-]))eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),  # a JWT
    re.compile(r"((?<![\w-])(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abps])[-_])[\w-]{12,}"),
    re.compile(
        r"([?&#][\w.-]{0,40}(?:token|secret|password|key|code|signature|sig)=)[^&#\s\"]+", re.IGNORECASE
    ),
    re.compile(r"(://[^/?#\s:@]{0,100}:)[^/?#\s@]{1,200}(?=@)"),  # the password of a URL
)
"""What secrets look like where no name tells. The first group is kept."""

_NAMED_VALUE_PATTERNS: Final = (
    re.compile(r"((?<![\w.-])([\w.-]{1,80})=)[^\s\"'&;,<>]+"),
    re.compile(r"(\"([\w.-]{1,80})\\{0,9}\"\s{0,9}:\s{0,9}\\{0,9}\")[^\"\\]+"),
)
"""A name, a sign and a value in a text: a setting, and a member of an object that is a part of the text."""

_IN_SCHEMAS: Final = frozenset({"$defs", "definitions", "patternProperties", "properties"})
"""Members of a schema whose members have names of the author's, and hold schemas."""

_SEPARATORS: Final = re.compile(r"[^a-z0-9]")


class Mask:
    """Finds secrets and masks them.

    A value is masked if the name of its member says that it is secret (`Authorization`, `api_key`,
    `refreshToken`, …), and so is all within it; in every text, JSON or not, what such a name stands before,
    and what looks like a token; and everywhere, the values that are named.

    Example:
        >>> mask = Mask(["tiger"])
        >>> mask({"api_key": "1234", "city": "Oslo", "note": "ask the tiger"})
        {'api_key': '<masked>', 'city': 'Oslo', 'note': 'ask the <masked>'}

    Args:
        secrets: values to mask wherever they stand.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        given = {secret for secret in secrets if secret}
        forms = {form for secret in given for form in (secret, quote(secret, safe=""), _escape_json(secret))}
        longest_first = sorted(forms, key=len, reverse=True)
        self._given_secrets = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, value: Any) -> Any:
        """The value without its secrets. What was handed over is not changed."""
        return self._mask_value(value, MAX_DEPTH)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """HTTP headers without their secrets."""
        return {name: MASKED if is_secret(name) else self._mask_text(each) for name, each in headers.items()}

    def _mask_value(self, value: Any, depth: int, owner: str = "") -> Any:
        if isinstance(value, str):
            return self._mask_json(value, depth)
        if isinstance(value, dict | list) and not depth:
            return MASKED
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value).items()
            return {
                self._mask_text(name): self._mask_member(owner, name, each, depth - 1)
                for name, each in members
            }
        if isinstance(value, list):
            return [self._mask_value(each, depth - 1) for each in cast("list[Any]", value)]
        return value

    def _mask_member(self, owner: str, name: str, value: Any, depth: int) -> Any:
        is_schema = owner in _IN_SCHEMAS and isinstance(value, dict)
        if is_secret(name) and not is_schema:
            return _hide(value, depth)
        return self._mask_value(value, depth, name)

    def _mask_json(self, text: str, depth: int) -> str:
        """A text, which may be JSON itself, as results of tools are; it is written anew only for a secret."""
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
            text = pattern.sub(_mask_match, text)
        return text


def _hide(value: Any, depth: int) -> Any:
    """A secret: all that is in it is masked, and its shape is kept."""
    if isinstance(value, dict) and depth > 0:
        members = cast("dict[str, Any]", value).items()
        return {name: _hide(each, depth - 1) for name, each in members}
    if isinstance(value, list) and depth > 0:
        return [_hide(each, depth - 1) for each in cast("list[Any]", value)]
    return value if value is None or isinstance(value, bool) else MASKED


def _mask_match(found: re.Match[str]) -> str:
    return f"{found[1]}{MASKED}" if is_secret(found[2]) else found[0]


def _escape_json(secret: str) -> str:
    """A secret as it stands within a text that is JSON."""
    return msgspec.json.encode(secret).decode()[1:-1]


def is_secret(name: str) -> bool:
    """Whether a member or a header with this name holds a secret."""
    word = _SEPARATORS.sub("", name.lower())
    return word in _WHOLE_NAMES or (word not in _HARMLESS and _SECRET_ENDING.search(word) is not None)
