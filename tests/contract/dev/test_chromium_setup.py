"""Installation of a browser where it is allowed, with a fake `apt-get` that records its calls."""

from pathlib import Path

import pytest

import chromium

APT = """#!/bin/sh
echo "$DEBIAN_FRONTEND $@" >> {heard}
case "$*" in *install*) {install} ;; esac
"""
GOOD = "for tool in chromium chromedriver; do echo > {bin}/$tool; /bin/chmod +x {bin}/$tool; done"


class Machine:
    """A fake machine with at most an apt-get."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tried = folder / "cache" / "tried"

    def give(self, install: str) -> None:
        """Install a fake apt-get that runs this line of shell."""
        apt = self.folder / "apt-get"
        told = install.format(bin=self.folder)
        apt.write_text(APT.format(heard=self.folder / "heard", install=told))
        apt.chmod(0o755)

    @property
    def heard(self) -> list[str]:
        """Return the last argument of each call."""
        heard = self.folder / "heard"
        return [line.split()[-1] for line in heard.read_text().splitlines()] if heard.exists() else []


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return Machine(tmp_path)


def test_it_is_installed_once(machine, capfd):
    machine.give(GOOD)
    assert chromium.absence() == f"chromium and chromedriver not found; install with: {chromium.HOW}"
    for _ in range(2):
        chromium.bring(machine.tried, root=True)
    assert machine.heard == ["-qq", "chromium-driver"]
    assert chromium.absence() is None
    assert not machine.tried.exists()
    assert capfd.readouterr().out.count("\n") == 1


def test_a_failed_installation_is_not_repeated_except_in_ci(machine, monkeypatch):
    machine.give("exit 100")
    for _ in range(2):
        chromium.bring(machine.tried, root=True)
    assert len(machine.heard) == 2
    assert not chromium.demanded()
    monkeypatch.setenv("CI", "true")
    assert chromium.demanded()
    chromium.bring(machine.tried, root=True)
    assert len(machine.heard) == 4


def test_without_root_or_apt_nothing_is_installed(machine, capfd):
    chromium.bring(machine.tried, root=True)
    machine.give(GOOD)
    chromium.bring(machine.tried, root=False)
    assert machine.heard == []
    assert capfd.readouterr().out == ""
    assert not machine.tried.exists()
