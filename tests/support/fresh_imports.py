"""The modules that an import loads, in a new interpreter."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import toolpost

__all__ = ["PACKAGE", "foreign", "fresh", "loaded"]


PACKAGE = Path(toolpost.__file__).parent


def loaded(*modules: str, then: str = "") -> set[str]:
    """Return the modules that a new interpreter has after these imports, without start-up files."""
    return set(fresh(*(f"import {module}" for module in modules), then, "print(*sys.modules)").split())


def fresh(*lines: str, stdin: str = "") -> str:
    """Return the output of these lines in a new interpreter."""
    paths = [str(PACKAGE.parent), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    script = "\n".join([f"import sys; sys.path += {paths}", *lines])
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], input=stdin, capture_output=True, text=True, check=True
    )
    return run.stdout


def foreign(modules: set[str]) -> set[str]:
    """Return the third-party packages."""
    names = {module.partition(".")[0] for module in modules}
    # msgspec imports typing_extensions if it is installed.
    return names - sys.stdlib_module_names - {"__main__", "toolpost", "typing_extensions"}
