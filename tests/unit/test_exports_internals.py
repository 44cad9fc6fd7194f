"""The names that toolpost promises: each is there, once, loaded on first use, and known to type checkers."""

from collections import Counter

import pytest

import toolpost
from toolpost import types


@pytest.mark.parametrize("package", [toolpost, types])
def test_the_lazy_table_has_every_name(package):
    names = [name for names in package._HOMES.values() for name in names]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert {*names} == {*package.__all__} - {"__version__"}
    assert all(list(names) == sorted(names) for names in package._HOMES.values())
