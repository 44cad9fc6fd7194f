"""Cached responses: for as long as the server allows, and until it reports a change."""

from toolpost.client.listing import MAX_CACHE_ENTRIES, MAX_CACHE_TTL, ResponseCache
from toolpost.types import ReadResourceResult

# --------------------------------------------------------------------- bounds


def kept(ttl: int) -> ReadResourceResult:
    return ReadResourceResult(contents=[], ttl_ms=ttl)


def test_only_so_many_answers_are_kept_and_the_one_least_used_goes_first():
    cache = ResponseCache(2)
    cache.store("m", "a", kept(1), 0.0, 0)
    cache.store("m", "b", kept(1), 0.0, 0)
    assert cache.find("m", "a", 0.0)
    cache.store("m", "c", kept(1), 0.0, 0)
    assert [which for which in "abc" if cache.find("m", which, 0.0)] == ["a", "c"]
    assert MAX_CACHE_ENTRIES == 512


def test_no_answer_is_fresh_for_ever():
    cache = ResponseCache()
    cache.store("m", None, kept(10**400), 0.0, 0)
    assert cache.find("m", None, MAX_CACHE_TTL - 1)
    assert cache.find("m", None, MAX_CACHE_TTL) is None
    cache.store("m", None, kept(1000), 0.0, 7)  # something has become stale since
    assert cache.find("m", None, 0.0) is None
