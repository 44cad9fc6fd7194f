"""Finds or installs Chromium and its driver, for the tests with a real browser.

Run by `make test`. As root, it installs the Debian packages, once. Otherwise the tests are skipped, or fail
in CI. It downloads no browser in any other way.
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
"""Short timeouts: there may be no network, or another installation may hold the lock."""

TRIED: Final = Path(__file__).resolve().parents[1] / ".cache" / "no-chromium"
"""Marks a failed installation. Outside CI, there is no further attempt until `make clean`."""


def absence() -> str | None:
    """Return a message about missing programs, or None if both exist."""
    missing = [program for program in (CHROMIUM, DRIVER) if shutil.which(program) is None]
    return f"{' and '.join(missing)} not found; install with: {HOW}" if missing else None


def demanded() -> bool:
    """Return whether a missing browser is a failure, as in CI."""
    return os.environ.get("CI") == "true"


def bring(tried: Path = TRIED, *, root: bool) -> None:
    """Install the packages if they are missing. A failed installation is not an error.

    Args:
        tried: the file that marks a failed installation.
        root: whether this user may install packages.
    """
    apt = shutil.which("apt-get")
    if absence() is None or apt is None or not root or (tried.exists() and not demanded()):
        return
    print("installing Chromium for the browser tests", flush=True)
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (("update", "-qq"), INSTALL):
        # If the package lists cannot be updated, the old ones may work.
        subprocess.run([apt, *PATIENCE, *words], env=quietly, check=False, stdout=subprocess.DEVNULL)
    if absence() is not None:
        tried.parent.mkdir(exist_ok=True)
        tried.touch()


if __name__ == "__main__":
    sys.exit(bring(root=os.geteuid() == 0))
