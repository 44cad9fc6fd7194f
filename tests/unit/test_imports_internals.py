"""What an import costs: no library that is not needed; no loop, socket, clock or log in the inner rings."""

import pkgutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import toolpost
from toolpost import protocol, types

PACKAGE = Path(toolpost.__file__).parent
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


def loaded(*modules: str, then: str = "") -> set[str]:
    """The modules of a fresh interpreter that has imported these; the site's start-up files are left out."""
    return set(fresh(*(f"import {module}" for module in modules), then, "print(*sys.modules)").split())


def fresh(*lines: str, stdin: str = "") -> str:
    """What a fresh interpreter prints that runs these lines."""
    paths = [str(PACKAGE.parent), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    script = "\n".join([f"import sys; sys.path += {paths}", *lines])
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], input=stdin, capture_output=True, text=True, check=True
    )
    return run.stdout


def foreign(modules: set[str]) -> set[str]:
    """The packages that come neither with Python nor from us."""
    names = {module.partition(".")[0] for module in modules}
    # msgspec takes typing_extensions where it is installed, and does without it elsewhere.
    return names - sys.stdlib_module_names - {"__main__", "toolpost", "typing_extensions"}


def heavy(modules: set[str]) -> set[str]:
    """Those that nobody should load, by themselves or by a part of them."""
    return {
        module for module in modules if any(module == name or module.startswith(f"{name}.") for name in HEAVY)
    }


def test_the_inner_rings_load_nothing_heavy():
    assert heavy(loaded(*INNER) - loaded("msgspec", "msgspec.json")) == set()


def test_the_inner_rings_need_no_package_but_msgspec():
    assert foreign(loaded(*INNER)) == {"msgspec"}
