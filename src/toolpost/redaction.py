"""Whether a text gives a secret away, which somebody may have echoed into it.

Owns what counts as a telling part. Knows neither where texts come from nor what is kept secret.
"""

from collections.abc import Iterable
from typing import Final

MIN_SECRET_PART: Final = 8
"""Characters of a secret that are not repeated either: fewer of them tell nothing, and stand in any text."""


def has_secret(text: str, secrets: Iterable[str]) -> bool:
    """Whether a text holds a secret, or a telling part of one."""
    hidden = [secret for secret in secrets if len(secret) > 3]
    parts = (
        {text[at : at + MIN_SECRET_PART] for at in range(len(text) - MIN_SECRET_PART + 1)}
        if hidden
        else set[str]()
    )
    return any(secret in text or any(part in secret for part in parts) for secret in hidden)
