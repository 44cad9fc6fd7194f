"""Finds a server in a Python file or a module, and loads or reloads it.

Errors show the user's own lines of a traceback, and a hint. `reload` decides when to reload.
"""

import asyncio
import importlib
import inspect
import os
import sys
import traceback
import typing
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, NamespaceLoader, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from stat import S_ISDIR
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar, Final, TypeAlias, cast

from toolpost.cli.errors import UNREACHABLE, CommandError, usage_error
from toolpost.server.handler import Handler
from toolpost.server.registry.registry import RegistryEntry

MAX_LISTED_NAMES: Final = 10  # names to list in an error

_NO_SERVER_HINT: Final = (
    "write `server = Server(…)` at the top level of the file, not under `if __name__ == …`, "
    "or name a function that returns a server"
)


def find_server(module: ModuleType, name: str, label: str) -> Handler:
    """Return the server of a module; its name may be empty if there is only one."""
    servers = {name: value for name, value in vars(module).items() if isinstance(value, Handler)}
    found = _find_named_server(module, name) if name else _find_only_server(module, servers)
    if isinstance(found, Handler):
        return found
    names = [*servers] or [name for name, value in _list_own_objects(module) if _is_server_factory(value)]
    hint = "write " + " or ".join(f"{label}:{name}" for name in names[:MAX_LISTED_NAMES])
    raise usage_error(f"{label} {found}", hint if names else _NO_SERVER_HINT)


def _find_only_server(module: ModuleType, named: Mapping[str, Handler]) -> Handler | str:
    """Return the server, or why there is none, in words that follow the name of the module."""
    servers = {id(server): server for server in named.values()}
    if len(servers) == 1:
        return next(iter(servers.values()))
    if servers:
        return f"has several servers: {', '.join(named)}"
    there = [f"{name} ({_describe_type(value)})" for name, value in _list_own_objects(module)]
    shown = there[:MAX_LISTED_NAMES] + ["…"] * (len(there) > MAX_LISTED_NAMES)
    return "has no server" + (f"; it defines {', '.join(shown)}" if there else "")


def _find_named_server(module: ModuleType, name: str) -> Handler | str:
    """Return the server, or why there is none, as above."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=1)
            return f"has no attribute {name}{f'; did you mean {near[0]}?' if near else ''}"
        found = getattr(found, part)
    if isinstance(found, Handler):
        return found
    if not callable(found) or isinstance(found, RegistryEntry):
        return f"has no server named {name}: it is {_describe_type(found)}"
    with suppress(ValueError):  # no signature is available
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            return f"has {name}, which is not a server and cannot be called without arguments: {error}"
    made: Any = found()
    if isinstance(made, Handler):
        return made
    if inspect.iscoroutine(made):
        made.close()
        return f"has an async function {name}; no event loop is running yet: use `def`"
    return f"has a function {name}, but its result is {_describe_type(made)}, not a server"


def _list_own_objects(module: ModuleType) -> list[tuple[str, Any]]:
    """Return the public objects of a module, without imported modules, functions and classes."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and (not isinstance(value, type | FunctionType) or value.__module__ == module.__name__)
    ]


def _is_server_factory(value: Any) -> bool:
    returned = value.__annotations__.get("return") if isinstance(value, FunctionType) else None
    if isinstance(returned, type):
        return issubclass(returned, Handler)
    return isinstance(returned, str) and returned.rpartition(".")[2] in {"Server", "Handler"}


def _describe_type(value: Any) -> str:
    if isinstance(value, type):
        return "a class"
    return "a function" if isinstance(value, FunctionType) else f"of type {type(value).__name__}"


# --------------------------------------------------------------------- tracebacks

_PACKAGE_PREFIX: Final = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep  # noqa: PTH120 - compared as a string
_HIDDEN_PREFIXES: Final = (
    _PACKAGE_PREFIX,
    "<frozen importlib",
    "<frozen runpy",
    asyncio.__path__[0] + os.sep,
    contextmanager.__code__.co_filename,
    "uvloop",
)
"""Frames of these files are not shown."""


def format_user_traceback(error: BaseException) -> str:
    """Format a traceback as Python does, without our own frames and those of the import system."""
    shown = traceback.TracebackException.from_exception(error)
    _strip_internal_frames(shown)
    return "".join(shown.format()).rstrip()


def is_internal_error(error: BaseException) -> bool:
    """Return whether toolpost's own code raised an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    return not frames or frames[-1].filename.startswith(_PACKAGE_PREFIX)


def _strip_internal_frames(error: traceback.TracebackException) -> bool:
    """Remove internal frames of an exception and its causes; return whether any frames are left."""
    stack = error.stack
    stack[:] = [frame for frame in stack if not frame.filename.startswith(_HIDDEN_PREFIXES)]
    if not stack:
        cast("Any", error).stack = None  # omits the heading
    if error.__cause__ is not None and not _strip_internal_frames(error.__cause__):
        error.__cause__ = None
        error.__suppress_context__ = True
    if error.__context__ is not None and not _strip_internal_frames(error.__context__):
        error.__context__ = None
    for each in error.exceptions or ():
        _strip_internal_frames(each)
    return bool(stack) or hasattr(error, "lineno")  # a syntax error shows its own line


# --------------------------------------------------------------------- changed files

FileState: TypeAlias = tuple[int, int, int] | frozenset[str] | None
"""Mtime, size and inode of a file, or the names in a folder; None if the path does not exist."""


class FileWatcher:
    """Detects changes of files and folders."""

    def __init__(self) -> None:
        self._states: dict[str, FileState] = {}

    def follow(self, paths: Iterable[str], states: Mapping[str, FileState]) -> None:
        """Watch these paths from now on. `states` are the states at load time of new paths."""
        known = {**states, **self._states}
        self._states = {path: known[path] if path in known else read_file_state(path) for path in paths}

    def poll_changes(self) -> set[str]:
        """Return the paths that were changed, deleted or created since the last call."""
        now = {path: read_file_state(path) for path in self._states}
        before, self._states = self._states, now
        return {path for path, seen in now.items() if seen != before[path]}


def read_file_state(path: str) -> FileState:
    """Return the present state of a file or folder."""
    try:
        found = os.stat(path)  # noqa: PTH116 - runs often, for many files
        if S_ISDIR(found.st_mode):
            return frozenset(os.listdir(path))  # noqa: PTH208 - temporary files change the mtime
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class UncachedLoader(SourceFileLoader):
    """Loads a file from its source: a bytecode cache would miss changes within one second."""

    file_states: ClassVar[dict[str, FileState]] = {}
    """The state of each file at load time: it may change before it is watched."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        path = self.get_filename(fullname)
        self.file_states[path] = read_file_state(path)
        return self.source_to_code(self.get_data(path), path)


# --------------------------------------------------------------------- the server's source

_SOURCE_HINT: Final = "use weather.py, weather.py:server, or package.module:server"
_RUN_METHODS: Final = ("run", "serve_stdio", "serve_http")
_INSTALL_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})


class ServerSource:
    """A file or a module with a server."""

    def __init__(self, text: str, *, fresh: bool = False) -> None:
        place, colon, name = text.rpartition(":")
        if not colon or not _is_dotted(name):
            place, name = text, ""
        self.label = place
        self.path: Path | None = None
        self._name = name
        self._is_module = False
        try:
            is_package = (Path(place) / "__init__.py").exists()
            if place.endswith(".py") or os.sep in place or (Path(place).exists() and not is_package):
                self.path = _find_file(place)
                stem = self.path.stem
                taken = stem in sys.modules or stem in sys.stdlib_module_names
                self._module = f"served_{stem}" if taken else stem
            elif _is_dotted(place):
                self._module, self._is_module = place, True
            else:
                raise usage_error(f"{place!r} is neither a Python file nor a module", _SOURCE_HINT)
            self._root = Path.cwd() if self.path is None else self.path.parent
        except OSError as error:
            raise usage_error(f"could not find {place}: {error.strerror or error}") from None
        if sys.path[:1] != [str(self._root)]:  # as when Python runs the file
            sys.path.insert(0, str(self._root))
        self._preloaded_modules = frozenset(sys.modules)
        self._failed_files: set[str] = set()
        self._loader = UncachedLoader if fresh else SourceFileLoader
        if fresh:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Make the import system load the user's files by `UncachedLoader`; None for others."""
        spec = PathFinder.find_spec(name, path, target)
        loader = spec and spec.loader
        if spec is None or type(loader) is not SourceFileLoader or not self._is_own_file(Path(loader.path)):
            return None
        spec.loader = UncachedLoader(name, loader.path)
        return spec

    def load(self) -> Handler:
        """Load the code, and return the server."""
        try:
            with _forbid_serving(self.label):
                module = self._import()
                if self.path is None:
                    self._locate_root(module)
                return find_server(module, self._name, self.label)
        except (CommandError, KeyboardInterrupt):
            raise
        except SystemExit as error:
            text = f"{self.label} called sys.exit({error.code!r}) while it was loading"
            raise CommandError(text, UNREACHABLE) from None
        except BaseException as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if self._is_module and missing and f"{self._module}.".startswith(f"{missing}."):
                text = f"no module named {missing}, and no file {self.label}"
                raise usage_error(text, _SOURCE_HINT) from None
            text = f"could not load {self.label}:\n{format_user_traceback(error)}"
            raise CommandError(text, UNREACHABLE, hint=self._suggest_fix(error)) from error

    def reload(self) -> Handler:
        """Reload the code and return the server. If that fails, the old modules stay."""
        before = dict(self._own_modules())
        for name in before:
            del sys.modules[name]
        for clear in getattr(typing, "_cleanups", ()):
            clear()  # a type in a cache would keep its module in memory
        importlib.invalidate_caches()
        try:
            server = self.load()
        except BaseException as error:
            cause = error.__cause__ or error
            files = [frame.filename for frame in traceback.extract_tb(cause.__traceback__)]
            files += [cause.filename] if isinstance(cause, SyntaxError) and cause.filename else []
            self._failed_files = self.files() | {file for file in files if self._is_own_file(Path(file))}
            for name in dict(self._own_modules()):
                del sys.modules[name]
            sys.modules.update(before)
            raise
        self._failed_files = set()
        return server

    def files(self) -> set[str]:
        """Return the user's files that are loaded, and those of the last failed attempt."""
        files = [_get_source_file(module) for _, module in self._own_modules()]
        files.append(self.path and str(self.path))
        return self._failed_files | {file for file in files if file}

    def _own_modules(self) -> Iterator[tuple[str, ModuleType]]:
        """Iterate over the user's modules that are loaded, namespace packages included."""
        for name, module in list(sys.modules.items()):
            if name not in self._preloaded_modules and name.partition(".")[0] != "toolpost":
                places = _get_source_paths(module)
                if places and all(self._is_own_file(Path(place)) for place in places):
                    yield name, module

    def _is_own_file(self, path: Path) -> bool:
        """Return whether a file is below the folder of the source, and was not installed there."""
        below = path.is_relative_to(self._root)
        return below and _INSTALL_FOLDERS.isdisjoint(path.relative_to(self._root).parts)

    def _import(self) -> ModuleType:
        if self._is_module:
            return importlib.import_module(self._module)
        loader = self._loader(self._module, str(self.path))
        spec = spec_from_file_location(self._module, self.path, loader=loader)
        assert spec is not None, "a file and a loader are enough"
        module = module_from_spec(spec)
        sys.modules[self._module] = module  # dataclasses and annotations look it up here
        loader.exec_module(module)
        return module

    def _locate_root(self, module: ModuleType) -> None:
        file = _get_source_file(module)
        if file is None:
            raise usage_error(f"{self.label} is not a Python source module", _SOURCE_HINT)
        self.path = Path(file)
        if not self._is_own_file(self.path):  # installed: watch its package
            depth = self._module.count(".") + (self.path.name == "__init__.py")
            self._root = self.path.parents[depth - 1] if depth else self.path

    def _suggest_fix(self, error: BaseException) -> str | None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            missing = error.name.partition(".")[0]
            return f"{missing} is not next to the file, and not installed for {sys.executable}"
        if self.path is not None and "attempted relative import" in str(error):
            words, folder = [self.path.stem], self.path.parent
            while (folder / "__init__.py").exists():
                words.insert(0, folder.name)
                folder = folder.parent
            if len(words) > 1:
                return f"the file is part of a package: in {folder}, use {'.'.join(words)}"
        return None


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _find_file(place: str) -> Path:
    path = Path(place)
    if path.is_dir():
        there = ", ".join(sorted(each.name for each in path.glob("*.py"))[:MAX_LISTED_NAMES])
        hint = f"name one of its files: {there}" if there else "name a Python file"
        raise usage_error(f"{path} is a folder", hint)
    if not path.is_file():
        raise usage_error(f"file not found: {place}", f"the current folder is {Path.cwd()}")
    if path.suffix != ".py":
        raise usage_error(f"{place} is not a Python file: its name does not end in .py")
    return path.resolve()


def _get_source_file(module: ModuleType) -> str | None:
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) and file.endswith(".py") else None


def _get_source_paths(module: ModuleType) -> list[str]:
    """Return the file of a module, or the folders of a namespace package."""
    file = _get_source_file(module)
    spec = getattr(module, "__dict__", {}).get("__spec__")
    if file is None and isinstance(spec, ModuleSpec) and isinstance(spec.loader, NamespaceLoader):
        return list(spec.submodule_search_locations or ())
    return [] if file is None else [file]


@contextmanager
def _forbid_serving(label: str) -> Generator[None]:
    """Forbid `server.run()` while the code is loaded: it would not return."""

    def refuse(*_: Any, **__: Any) -> None:
        hint = 'put `server.run()` under `if __name__ == "__main__":`'
        raise usage_error(f"{label} calls run() while it is loading", hint)

    before = {name: getattr(Handler, name) for name in _RUN_METHODS}
    for name in before:
        setattr(Handler, name, refuse)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Handler, name, method)
