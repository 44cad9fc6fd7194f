"""Detection of secrets in texts, such as a token that a peer echoed into an error message.

Owns which part of a secret counts. Its callers know the texts and the secrets.
"""

from collections.abc import Iterable
from typing import Final

MIN_SECRET_PART: Final = 8
"""So many characters of a secret must not appear either: fewer would be found in any text."""


def has_secret(text: str, secrets: Iterable[str]) -> bool:
    """Return whether a text holds a secret, or `MIN_SECRET_PART` characters of one."""
    hidden = [secret for secret in secrets if len(secret) > 3]
    if not hidden:
        return False
    parts = {text[at : at + MIN_SECRET_PART] for at in range(len(text) - MIN_SECRET_PART + 1)}
    return any(secret in text or any(part in secret for part in parts) for secret in hidden)
