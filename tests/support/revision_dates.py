"""The dates of the protocol revisions, oldest first, and names for the most used ones."""

from toolpost.testing import REVISIONS

__all__ = ["DATES", "LATEST", "LATEST_SESSION", "OLDEST_HTTP"]

DATES = tuple(REVISIONS)
LATEST = REVISIONS["2026-07-28"]
LATEST_SESSION = REVISIONS["2025-11-25"]
OLDEST_HTTP = REVISIONS["2025-03-26"]
