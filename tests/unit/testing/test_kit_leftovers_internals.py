"""Resources that stay open are found, with and without a loop; those that end soon are not reported."""

import os

from toolpost.testing.leaks import HeldResources, list_descriptors


def test_without_proc_there_is_less_to_see(monkeypatch):
    def nothing(_):
        raise FileNotFoundError

    monkeypatch.setattr(os, "listdir", nothing)
    assert list_descriptors() == {}
    assert HeldResources().children == set()
