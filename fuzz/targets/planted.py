"""A target that fails by intent, and is in no table: a test sees with it that a crash is caught and kept."""

from typing import Final

__all__ = ["TOKENS", "target"]

TOKENS: Final = (b"boom",)


def target(data: bytes) -> None:
    """Fail on a word that the dictionary has."""
    if b"boom" in data:
        raise ZeroDivisionError("planted")
