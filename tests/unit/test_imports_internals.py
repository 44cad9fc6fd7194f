"""The cost of an import: no unneeded library; no loop, socket, clock or log in the core."""

import pkgutil

from fresh_imports import foreign, loaded
from toolpost import protocol, types

INNER = [
    "toolpost.channel",
    "toolpost.errors",
    "toolpost.types",
    *(f"toolpost.types.{module.name}" for module in pkgutil.iter_modules(types.__path__)),
    *(f"toolpost.protocol.{module.name}" for module in pkgutil.iter_modules(protocol.__path__)),
]

HEAVY = {
    "aiohttp",
    "anyio",
    "asyncio",
    "click",
    "concurrent",
    "cryptography",
    "ctypes",
    "email",
    "http",
    "httpcore",
    "httptools",
    "httpx",
    "httpx_sse",
    "joserfc",
    "jsonschema_rs",
    "logging",
    "multiprocessing",
    "opentelemetry",
    "pydantic",
    "pydantic_core",
    "redis",
    "requests",
    "rich",
    "select",
    "selectors",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "starlette",
    "subprocess",
    "urllib.request",
    "urllib3",
    "uvicorn",
    "uvloop",
    "xml",
}


def heavy(modules: set[str]) -> set[str]:
    """Modules that must not be loaded, neither directly nor by a submodule."""
    return {
        module for module in modules if any(module == name or module.startswith(f"{name}.") for name in HEAVY)
    }


def test_the_inner_rings_load_nothing_heavy():
    assert heavy(loaded(*INNER) - loaded("msgspec", "msgspec.json")) == set()


def test_the_inner_rings_need_no_package_but_msgspec():
    assert foreign(loaded(*INNER)) == {"msgspec"}
