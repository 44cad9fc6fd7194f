"""Chromium and its driver, for the tests that need a real browser: where they are, and how to get them.

Run by `make test`. Installs the packages of Debian where it may, that is as root, and only once; else the
tests that need them are skipped, or fail in CI. No browser is downloaded in any other way.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["CHROMIUM", "DRIVER", "absence", "bring", "demanded"]

CHROMIUM: Final = "chromium"
DRIVER: Final = "chromedriver"

INSTALL: Final = ("install", "-y", "-qq", "--no-install-recommends", "chromium", "chromium-driver")
HOW: Final = "apt-get install --no-install-recommends chromium chromium-driver"
PATIENCE: Final = (
    "-o",
    "Acquire::http::Timeout=30",
    "-o",
    "Acquire::Retries=1",
    "-o",
    "DPkg::Lock::Timeout=60",
)
"""Nobody waits for long where there is no network, or where somebody else is installing."""

TRIED: Final = Path(__file__).resolve().parents[1] / ".cache" / "no-chromium"
"""Is there if the packages could not be had. Outside CI they are not asked for again, until `make clean`."""


def absence() -> str | None:
    """What is missing and what to do about it; None when both programs are there."""
    missing = [program for program in (CHROMIUM, DRIVER) if shutil.which(program) is None]
    return f"there is no {' and no '.join(missing)}; get it with: {HOW}" if missing else None


def demanded() -> bool:
    """Whether a missing browser is a failure: in CI."""
    return os.environ.get("CI") == "true"


def bring(tried: Path = TRIED, *, root: bool) -> None:
    """Install the packages if they are missing and can be had; nothing is wrong if they cannot.

    Args:
        tried: the file that is left if they cannot.
        root: whether this user may install packages.
    """
    apt = shutil.which("apt-get")
    if absence() is None or apt is None or not root or (tried.exists() and not demanded()):
        return
    print("installing Chromium, once, for the tests that need a real browser", flush=True)
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (("update", "-qq"), INSTALL):
        # Lists that cannot be renewed may still be good.
        subprocess.run([apt, *PATIENCE, *words], env=quietly, check=False, stdout=subprocess.DEVNULL)
    if absence() is not None:
        tried.parent.mkdir(exist_ok=True)
        tried.touch()


if __name__ == "__main__":
    sys.exit(bring(root=os.geteuid() == 0))
