"""Every public name has a docstring with an example that runs."""

import doctest
from typing import Any

import pytest

import toolpost
from reference import NAMES, PAGE, docstring, page
from toolpost import errors, types

KNOWN = [(types, types.__all__), (errors, errors.__all__), (toolpost, toolpost.__all__)]


def example(name: str) -> doctest.DocTest:
    """The example in a docstring, to be run with the public names."""
    at_hand: dict[str, Any] = {word: getattr(home, word) for home, words in KNOWN for word in words}
    return doctest.DocTestParser().get_doctest(docstring(name), at_hand, name, None, 0)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_has_a_description(name):
    assert docstring(name).partition("\n")[0].rstrip().endswith((".", ":")) or "\n" in docstring(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_has_an_example_that_runs(name):
    shown = example(name)
    assert shown.examples, f"{name}: its docstring shows no example (>>>)"
    told: list[str] = []
    ran = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(shown, out=told.append)
    assert ran.failed == 0, "".join(told)


def test_the_page_has_all_of_them():
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/reference.md is old: python dev/reference.py"
