"""Modules that are read from their source whenever they are imported, and never from bytecode.

Which of the two is newer is told by whole seconds and by the length, which is not enough for a file that
somebody is working on. Which modules are meant is not known here.
"""

from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import ClassVar

from toolpost.cli.watch import FileState, read_file_state

__all__ = ["UncachedFinder", "UncachedLoader"]


class UncachedLoader(SourceFileLoader):
    """Loads a file as it is now."""

    file_states: ClassVar[dict[str, FileState]] = {}
    """How each file was when it was loaded: it may change before anybody else looks at it."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file."""
        path = self.get_filename(fullname)
        self.file_states[path] = read_file_state(path)
        return self.source_to_code(self.get_data(path), path)


class UncachedFinder:
    """Finds modules for the import system, as it does itself, but lets some of them be loaded fresh.

    Args:
        concerns: whether a file is one of these.
    """

    def __init__(self, concerns: Callable[[str], bool]) -> None:
        self._is_own_file = concerns

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How to load a module; None if that is none of our business."""
        spec = PathFinder.find_spec(name, path, target)
        if (
            spec is None
            or type(spec.loader) is not SourceFileLoader
            or not self._is_own_file(spec.loader.path)
        ):
            return None
        spec.loader = UncachedLoader(name, spec.loader.path)
        return spec
