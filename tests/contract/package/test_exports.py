"""The public names of toolpost: each exists once, is loaded on first use, and is known to type checkers."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import toolpost
from toolpost import Channel, errors, types


def block_for_type_checkers(package: ModuleType) -> dict[str, str]:
    """Name → module, as the block under TYPE_CHECKING imports it."""
    source = Path(str(package.__file__)).read_text(encoding="utf-8")
    [block] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    found: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, f"{alias.name} is not re-exported: write it as itself"
            found[alias.name] = node.module or ""
    return found


def test_names_are_sorted_and_unique():
    assert toolpost.__all__ == sorted(toolpost.__all__)
    assert len(set(toolpost.__all__)) == len(toolpost.__all__)


def test_type_checkers_see_the_same_names():
    seen = block_for_type_checkers(toolpost)
    assert {*seen} == {*toolpost.__all__} - {"__version__"}
    for name, home in seen.items():
        assert getattr(importlib.import_module(home), name) is getattr(toolpost, name)


@pytest.mark.parametrize("name", toolpost.__all__)
def test_every_name_resolves(name):
    value = getattr(toolpost, name)
    assert value is not None
    if isinstance(value, type):
        assert value.__name__ == name


def test_a_name_is_looked_up_once():
    """From then on it is an ordinary attribute of the module."""
    toolpost.__dict__.pop("MCPError", None)
    assert toolpost.MCPError is errors.MCPError
    assert vars(toolpost)["MCPError"] is errors.MCPError


def test_dir_lists_the_names():
    assert dir(toolpost) == sorted(toolpost.__all__)


@pytest.mark.parametrize("name", ["Nothing", "tool", "_Nothing", "__path"])
def test_a_name_that_does_not_exist(name):
    with pytest.raises(AttributeError, match=f"module 'toolpost' has no attribute {name!r}"):
        getattr(toolpost, name)


def test_a_star_import_brings_the_names():
    script = "from toolpost import *; import toolpost; print(sorted(set(toolpost.__all__) - set(globals())))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_version_is_that_of_the_module():
    assert toolpost.__version__ == importlib.import_module("toolpost.version").__version__


# --------------------------------------------------------------------- public modules

PUBLIC = [
    "toolpost.errors",
    "toolpost.prompting",
    "toolpost.server.middleware",
    "toolpost.testing",
    "toolpost.types",
]
PAGES = ["README.md", "docs/architecture.md"]


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_lists_its_names(module):
    home: Any = importlib.import_module(module)
    assert home.__all__
    assert all(hasattr(home, name) for name in home.__all__)


@pytest.mark.parametrize("package", ["toolpost", "toolpost.testing", "toolpost.types"])
def test_no_module_hides_a_public_name(package):
    """An import of `package.name` would put the module in the place of the name."""
    home: Any = importlib.import_module(package)
    modules = {module.name for module in pkgutil.iter_modules(home.__path__)}
    assert modules & set(home.__all__) == set()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_the_public_modules(page):
    text = (Path(__file__).parents[3] / page).read_text(encoding="utf-8")
    assert [module for module in PUBLIC if f"`{module}`" not in text] == []


def test_help_names_the_public_modules():
    assert [module for module in PUBLIC if f"`{module}`" not in (toolpost.__doc__ or "")] == []


# --------------------------------------------------------------------- the vocabulary

MODULES = [f"toolpost.types.{module.name}" for module in pkgutil.iter_modules(types.__path__)]

HOOKS = {"Struct", "dec_hook", "enc_hook"}
"""Shared by `types` and `protocol`, and used nowhere else."""


def test_the_vocabulary_is_the_union_of_its_modules():
    names = [name for module in MODULES for name in importlib.import_module(module).__all__]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert set(names) - HOOKS == set(types.__all__)
    assert len(set(types.__all__)) == len(types.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_a_name_is_the_same_wherever_it_is_imported_from(module):
    home: Any = importlib.import_module(module)
    for name in set(home.__all__) - HOOKS:
        assert getattr(types, name) is getattr(home, name)


# --------------------------------------------------------------------- the one promise about I/O


class Wire:
    async def receive(self) -> bytes:
        return b"{}"

    async def send(self, data: bytes, related: int | str | None = None) -> None: ...

    async def close(self) -> None: ...


def test_any_object_with_the_three_methods_is_a_channel():
    wire: Channel = Wire()
    assert isinstance(wire, Channel)
    assert not isinstance(object(), Channel)
    assert {name for name in vars(Channel) if not name.startswith("_")} == {"receive", "send", "close"}
