"""Fixtures of tests of the command line: loaded code leaves nothing behind in this process."""

import sys

import pytest


@pytest.fixture
def loading(monkeypatch, tmp_path):
    """Remove loaded modules after the test."""
    monkeypatch.chdir(tmp_path)
    path, modules, finders = list(sys.path), dict(sys.modules), list(sys.meta_path)
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in sys.modules.keys() - modules.keys():
        if not name.startswith("toolpost."):
            del sys.modules[name]
