"""The names of `toolpost.testing`: they exist, are loaded on first use and typed; examples run."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import leak_check
from toolpost import testing

MODULES = [module.name for module in pkgutil.iter_modules(testing.__path__)]


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(testing.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(testing.__all__)


@pytest.mark.parametrize("name", testing.__all__)
def test_a_name_resolves_and_is_explained(name):
    testing.__dict__.pop(name, None)
    value = getattr(testing, name)
    assert vars(testing)[name] is value
    if name != "REVISIONS":
        assert value.__doc__


def test_a_name_that_does_not_exist():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(testing, "nothing")  # noqa: B009 - a type checker knows that there is none


def test_a_star_import_brings_the_names():
    script = (
        "from toolpost.testing import *; import toolpost.testing as t; print(set(t.__all__) - set(globals()))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(f"toolpost.testing.{name}")
    failed = doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed
    leak_check.cut_off.clear()  # one example is about that
    assert not failed
