"""Which object in a module is the server: the one that is named, or the only one that there is.

Owns what is said when there is none, or more than one: what there is, and what to write instead. How the
module came about is not known here.
"""

import inspect
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, Final

from toolpost.cli.exits import USAGE, CommandError
from toolpost.server.catalogue import RegistryEntry
from toolpost.server.handler import Handler

__all__ = ["MAX_LISTED_NAMES", "find_server"]

MAX_LISTED_NAMES: Final = 10
"""Names that are told when none of them is a server: enough to see what the file is."""


def find_server(module: ModuleType, name: str, label: str) -> Handler:
    """The server of a module.

    Args:
        module: where to look.
        name: of the server, or of what makes one when it is called; "" if there is only one.
        label: what to call the module.

    Raises:
        CommandError: there is none, or more than one.
        Exception: whatever a function raises that makes one.
    """
    try:
        return _find_named_server(module, name) if name else _find_only_server(module)
    except _ServerNotFound as error:
        raise CommandError(f"{label} {error}", USAGE, hint=_suggest_name(module, label)) from None


class _ServerNotFound(Exception):
    """There is no server; the text goes on behind the name of the module."""


def _find_only_server(module: ModuleType) -> Handler:
    names = _collect_servers(module)
    servers = {id(server): server for server in names.values()}
    if len(servers) == 1:
        return next(iter(servers.values()))
    if servers:
        raise _ServerNotFound(f"has several servers: {', '.join(names)}")
    there = [f"{name} ({_describe_type(value)})" for name, value in _list_own_objects(module)]
    more = ", …" if len(there) > MAX_LISTED_NAMES else ""
    raise _ServerNotFound(
        f"has no server{'; it has ' if there else ''}{', '.join(there[:MAX_LISTED_NAMES])}{more}"
    )


def _find_named_server(module: ModuleType, name: str) -> Handler:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            from difflib import get_close_matches  # noqa: PLC0415 - most names are right

            near = get_close_matches(part, dir(found), n=1)
            raise _ServerNotFound(f"has no {name}{f'; did you mean {near[0]}?' if near else ''}")
        found = getattr(found, part)
    if isinstance(found, Handler):
        return found
    if not callable(found) or isinstance(found, RegistryEntry):
        raise _ServerNotFound(f"has no server called {name}: it is {_describe_type(found)}")
    return _call_factory(found, name)


def _call_factory(make: Callable[..., Any], name: str) -> Handler:
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise _ServerNotFound(
            f"has no server called {name}, and calling it needs arguments: {error}"
        ) from None
    except ValueError:
        pass  # nobody knows its signature
    made = make()
    if isinstance(made, Handler):
        return made
    if inspect.iscoroutine(made):
        made.close()
        raise _ServerNotFound(f"has {name}, which is async, and no loop runs yet: write it with `def`")
    raise _ServerNotFound(f"has {name}, whose result is {_describe_type(made)}, and no server")


def _suggest_name(module: ModuleType, label: str) -> str:
    """What to write instead."""
    names = [*_collect_servers(module)] or [
        name for name, value in _list_own_objects(module) if _is_server_factory(value)
    ]
    if names:
        return "write " + " or ".join(f"{label}:{name}" for name in names[:MAX_LISTED_NAMES])
    return (
        "write `server = Server(…)` at the top level of the file, not below `if __name__ == …`, "
        "or name a function that returns one"
    )


def _collect_servers(module: ModuleType) -> dict[str, Handler]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Handler)}


def _list_own_objects(module: ModuleType) -> list[tuple[str, Any]]:
    """What a module has: objects, and the functions and classes that it does not import."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and (not isinstance(value, type | FunctionType) or value.__module__ == module.__name__)
    ]


def _is_server_factory(value: Any) -> bool:
    """Whether a function says that it returns a server."""
    returned = value.__annotations__.get("return") if isinstance(value, FunctionType) else None
    if isinstance(returned, type):
        return issubclass(returned, Handler)
    return isinstance(returned, str) and returned.rpartition(".")[2] in {"Server", "Handler"}


def _describe_type(value: Any) -> str:
    if isinstance(value, type):
        return "a class"
    return "a function" if isinstance(value, FunctionType) else f"of type {type(value).__name__}"
