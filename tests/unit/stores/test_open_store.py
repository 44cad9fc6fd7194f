"""Stores by URL; errors list the supported schemes, and contain no password."""

import pytest

from toolpost.stores import MemoryStore, open_store


@pytest.mark.parametrize("url", ["memory://", "MEMORY://", "Memory://"])
def test_memory(url):
    store = open_store(url)
    assert isinstance(store, MemoryStore)
    assert open_store(url) is not store


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("sqlite:///secret.db", "the URL of a store must start with one of memory://, redis://"),
        ("", "must start with one of memory://, redis://"),
        ("memory", "must start with one of memory://, redis://"),
        ("memory:", "must start with one of memory://, redis://"),
        ("secret", "must start with one of memory://, redis://"),
        ("://secret", "must start with one of memory://, redis://"),
        (" memory://", "must start with one of memory://, redis://"),
        ("memory://secret", "memory:// takes no path"),
        ("redis://:secret@host:port", "invalid port or option"),
        ("redis://:secret@host?lease=soon", "invalid port or option"),
        ("redis://:secret@host?lease=0", "lease=, timeout= and fresh= are seconds"),
        ("redis+sentinel://:secret@host", "expected redis.sentinel://host1,host2/service-name/0"),
        ("redis+cluster://", "expected redis.cluster://host1,host2"),
    ],
)
def test_an_unknown_store_url_is_rejected(url, text):
    with pytest.raises(ValueError, match=text) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
