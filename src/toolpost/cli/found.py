"""Where a server is: in a Python file or a module, under a name that may be left out.

Owns how the code is loaded, and loaded again, which files are its own, and what is said when it cannot be
loaded. Which object in it is the server is told in `pick`; what is done with that is not known here.
"""

import importlib
import os
import sys
import typing
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, NamespaceLoader, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from toolpost.cli.exits import UNREACHABLE, USAGE, CommandError
from toolpost.cli.fresh import UncachedFinder, UncachedLoader
from toolpost.cli.pick import MAX_LISTED_NAMES, find_server
from toolpost.cli.trace import format_user_traceback, list_traceback_files
from toolpost.server import forms
from toolpost.server.handler import Handler

__all__ = ["ServerSource"]

_SOURCE_HINT: Final = "write weather.py, weather.py:server, or package.module:server"
_RUN_METHODS: Final = ("run", "serve_stdio", "serve_http")
_INSTALL_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})


class ServerSource:
    """A file or a module that has a server in it.

    Args:
        text: as somebody wrote it: `weather.py`, `weather.py:server`, `package.module:make`.
        fresh: read its sources always, and never bytecode, because they change often.

    Attributes:
        label: the file or module, as it was written.
        path: the file; None for a module that was not loaded yet.

    Raises:
        CommandError: it is neither a file nor the name of a module.
    """

    def __init__(self, text: str, *, fresh: bool = False) -> None:
        place, colon, name = text.rpartition(":")
        if not colon or not _is_dotted(name):
            place, name = text, ""
        self.label = place
        self.path: Path | None = None
        self._name = name
        self._is_module = False
        try:
            if place.endswith(".py") or os.sep in place or _is_not_importable(Path(place)):
                self.path = _find_file(place)
                self._module = _choose_module_name(self.path)
            elif _is_dotted(place):
                self._module, self._is_module = place, True
            else:
                raise CommandError(
                    f"{place!r} is neither a Python file nor a module", USAGE, hint=_SOURCE_HINT
                )
            self._root = Path.cwd() if self.path is None else self.path.parent
        except OSError as error:
            raise CommandError(f"{place} cannot be found: {error.strerror or error}", USAGE) from None
        _make_importable(self._root)
        self._preloaded_modules = frozenset(sys.modules)
        self._failed_files: set[str] = set()
        self._loader = UncachedLoader if fresh else SourceFileLoader
        if fresh:
            sys.meta_path.insert(0, UncachedFinder(lambda file: self._is_own_file(Path(file))))

    def load(self) -> Handler:
        """The server.

        Raises:
            CommandError: the code cannot be loaded, or there is no server in it, or more than one.
        """
        with _forbid_serving(self.label), self._translate_errors():
            module = self._import()
            if self.path is None:
                self._locate_root(module)
            return find_server(module, self._name, self.label)

    def reload(self) -> Handler:
        """The server, of code as it is by now; if that cannot be loaded, what was loaded stays.

        Raises:
            CommandError: as in `load`.
        """
        before = dict(self._own_modules())
        for name in before:
            del sys.modules[name]
        _clear_type_caches()
        importlib.invalidate_caches()
        try:
            server = self.load()
        except BaseException as error:
            guilty = list_traceback_files(error.__cause__ or error)
            self._failed_files = self.files() | {file for file in guilty if self._is_own_file(Path(file))}
            for name in dict(self._own_modules()):
                del sys.modules[name]
            sys.modules.update(before)
            raise
        self._failed_files = set()
        return server

    def files(self) -> set[str]:
        """Its own files that it was loaded from, and those that it could not be loaded from lately."""
        files = {_get_source_file(module) for _, module in self._own_modules()} | {
            self.path and str(self.path)
        }
        return self._failed_files | {file for file in files if file}

    def _own_modules(self) -> Iterator[tuple[str, ModuleType]]:
        """Its own modules that are loaded, by name, with the folders that they are in as if in packages."""
        for name, module in list(sys.modules.items()):
            if name not in self._preloaded_modules and name.partition(".")[0] != "toolpost":
                places = _get_source_paths(module)
                if places and all(self._is_own_file(Path(place)) for place in places):
                    yield name, module

    def _is_own_file(self, path: Path) -> bool:
        """Whether a file is below its folder, and was not installed there."""
        below = path.is_relative_to(self._root)
        return below and _INSTALL_FOLDERS.isdisjoint(path.relative_to(self._root).parts)

    # ----------------------------------------------------------------- loading

    def _import(self) -> ModuleType:
        if self._is_module:
            return importlib.import_module(self._module)
        loader = self._loader(self._module, str(self.path))
        spec = spec_from_file_location(self._module, self.path, loader=loader)
        assert spec is not None, "a file and its loader are all it needs"
        module = module_from_spec(spec)
        sys.modules[self._module] = module  # where dataclasses and annotations look for it
        loader.exec_module(module)
        return module

    def _locate_root(self, module: ModuleType) -> None:
        """Find out which files belong to a module."""
        file = _get_source_file(module)
        if file is None:
            raise CommandError(
                f"{self.label} is no module that was written in Python", USAGE, hint=_SOURCE_HINT
            )
        self.path = Path(file)
        if not self._is_own_file(self.path):  # somebody has installed it: its package is all of it
            depth = self._module.count(".") + (self.path.name == "__init__.py")
            self._root = self.path.parents[depth - 1] if depth else self.path

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        """Say what goes wrong in the code that is loaded, in its own lines."""
        try:
            yield
        except (CommandError, KeyboardInterrupt):
            raise
        except SystemExit as error:
            text = f"{self.label} ends the process while it is loaded, with {error.code!r}"
            raise CommandError(text, UNREACHABLE) from None
        except BaseException as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if self._is_module and missing and f"{self._module}.".startswith(f"{missing}."):
                raise CommandError(
                    f"there is no module {missing}, nor a file {self.label}", USAGE, hint=_SOURCE_HINT
                ) from None
            text = f"{self.label} cannot be loaded:\n{format_user_traceback(error)}"
            raise CommandError(text, UNREACHABLE, hint=self._suggest_fix(error)) from error

    def _suggest_fix(self, error: BaseException) -> str | None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            missing = error.name.partition(".")[0]
            return f"{missing} is neither beside the file nor installed for {sys.executable}"
        if self.path is not None and "attempted relative import" in str(error):
            words, folder = [self.path.stem], self.path.parent
            while (folder / "__init__.py").exists():
                words.insert(0, folder.name)
                folder = folder.parent
            if len(words) > 1:
                return f"it is a part of a package: in {folder}, write {'.'.join(words)}"
        return None


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _is_not_importable(path: Path) -> bool:
    """Whether something is there that cannot be imported by its name."""
    return path.exists() and not (path / "__init__.py").exists()


def _find_file(place: str) -> Path:
    """The file at a place.

    Raises:
        CommandError: there is none that could be loaded.
    """
    path = Path(place)
    if path.is_dir():
        there = ", ".join(sorted(each.name for each in path.glob("*.py"))[:MAX_LISTED_NAMES])
        hint = f"name one of the files in it: {there}" if there else "name a Python file"
        raise CommandError(f"{path} is a folder", USAGE, hint=hint)
    if not path.is_file():
        raise CommandError(f"there is no file {place}", USAGE, hint=f"the current folder is {Path.cwd()}")
    if path.suffix != ".py":
        raise CommandError(f"{place} is no Python file: its name does not end in .py", USAGE)
    return path.resolve()


def _make_importable(folder: Path) -> None:
    """Let modules in a folder be found before all others, as when a file in it is run."""
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def _choose_module_name(path: Path) -> str:
    """What to call a file as a module: by its name, as its neighbours do, unless that is taken."""
    taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    return f"served_{path.stem}" if taken else path.stem


def _get_source_file(module: ModuleType) -> str | None:
    """The source of a module, if it has any."""
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) and file.endswith(".py") else None


def _get_source_paths(module: ModuleType) -> list[str]:
    """The source of a module, or the folders that are one without any source."""
    file = _get_source_file(module)
    if file is not None:
        return [file]
    spec = getattr(module, "__dict__", {}).get("__spec__")
    if isinstance(spec, ModuleSpec) and isinstance(spec.loader, NamespaceLoader):
        return list(spec.submodule_search_locations or ())
    return []


def _clear_type_caches() -> None:
    """Let go of types that are remembered beyond their modules: each keeps all of its module in memory."""
    for forget in (*getattr(typing, "_cleanups", ()), forms.clear_form_cache):
        forget()


@contextmanager
def _forbid_serving(label: str) -> Generator[None]:
    """No server serves while the code is loaded that makes it: that would never be done."""

    def refuse(*_: Any, **__: Any) -> None:
        hint = 'put `server.run()` below `if __name__ == "__main__":`'
        raise CommandError(f"{label} serves while it is loaded", USAGE, hint=hint)

    before = {name: getattr(Handler, name) for name in _RUN_METHODS}
    for name in before:
        setattr(Handler, name, refuse)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Handler, name, method)
