"""From a URL to a store; and an error that says what there is, and no password."""

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
        ("redis://user:secret@host:6379/0", "redis:// is not supported yet .expected: memory://."),
        ("sqlite:///secret.db", "unknown store URL .expected: memory://."),
        ("", ".expected: memory://."),
        ("memory", ".expected: memory://."),
        ("memory:", ".expected: memory://."),
        ("secret", ".expected: memory://."),
        ("://secret", ".expected: memory://."),
        (" memory://", ".expected: memory://."),
        ("memory://secret", "memory:// takes no path"),
    ],
)
def test_an_unknown_store_url_is_rejected(url, text):
    with pytest.raises(ValueError, match=text) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
