"""Checks of a command before it is started: the program, its interpreter line, common mistakes in the words.

Looks at files and at the PATH that the server would get, and starts nothing.
"""

import os
import shutil
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Final

from toolpost.cli.doctor.report import DoctorReport
from toolpost.transports.targets import Stdio

MAX_PROGRAMS: Final = 20_000  # how many names along the PATH are looked at for one that is similar

_INSTALL_HINTS: Final = {
    **dict.fromkeys(("node", "npm", "npx"), "it comes with Node.js: install that"),
    "bun": "install Bun",
    "bunx": "it comes with Bun: install that",
    "deno": "install Deno",
    "uv": "install uv, for example with pip",
    "uvx": "it comes with uv: install that, for example with pip",
    "pipx": "install pipx, for example with pip",
    "docker": "install Docker, or start it",
    "podman": "install Podman",
    "python": "on many systems it is called python3",
}
"""What programs that servers are started with belong to."""

_CONFIRMING_PROGRAMS: Final = frozenset({"npx"})
_YES_FLAGS: Final = frozenset({"-y", "--yes"})


def check_command(checkup: DoctorReport, stdio: Stdio) -> None:
    """Look whether a program is there, and may be started."""
    if stdio.cwd is not None and not Path(stdio.cwd).is_dir():
        checkup.stop_unreachable("folder", f"there is no folder {os.fspath(stdio.cwd)}", "correct `cwd`")
    path = stdio.environment().get("PATH", os.defpath)
    named = Path(stdio.cwd or ".", stdio.command).absolute() if os.sep in stdio.command else None
    found = shutil.which(str(named or stdio.command), path=path)
    if found is None:
        text, hint = _explain_missing(stdio.command, named, path)
        checkup.stop_unreachable("command", text, hint)
    lost = _find_missing_interpreter(Path(found))
    if lost:
        text = f"{found} is a script for {lost}, which is not there"
        checkup.stop_unreachable("command", text, "correct its first line, behind #!")
    checkup.ok("command", found)
    if Path(found).stem in _CONFIRMING_PROGRAMS and not _YES_FLAGS.intersection(stdio.args):
        checkup.warn(
            "command",
            f"{stdio.command} asks before it installs something, and nobody is there to answer",
            f"add -y: {stdio.command} -y {' '.join(stdio.args[:1])}…",
        )


def _explain_missing(command: str, named: Path | None, path: str) -> tuple[str, str]:
    """Why a program cannot be started, and what to do."""
    if named is not None and named.is_dir():
        return f"{command} is a folder", "name the program in it"
    if named is not None and named.exists():
        if named.suffix == ".py":
            return f"{command} may not be executed", f"a script is started with Python: -- python3 {command}"
        return f"{command} may not be executed", f"is it a program? then try chmod +x {command}"
    if " " in command:
        return f"there is no program {command!r}", "give the arguments as words of their own"
    if command.endswith(".py"):
        return f"there is no program {command}", f"a script is started with Python: -- python3 {command}"
    if named is not None:
        return f"there is no file {command}", "correct the path"
    hints = [_INSTALL_HINTS[command]] if command in _INSTALL_HINTS else []
    folders = [Path(folder) for folder in dict.fromkeys(path.split(os.pathsep)) if Path(folder).is_dir()]
    programs = dict.fromkeys(each.name for folder in folders for each in folder.iterdir())
    near = get_close_matches(command, list(islice(programs, MAX_PROGRAMS)), 3, 0.75)
    if near:
        hints.append(f"did you mean {' or '.join(near)}?")
    hints.append("a host that is started from a desktop has a short PATH: give it the full path")
    sentences = (hint if hint.endswith("?") else f"{hint}." for hint in hints)
    return f"there is no program {command} along the PATH", " ".join(sentences)


def _find_missing_interpreter(program: Path) -> str:
    """The program that a script needs and that is not there; empty if all is well."""
    try:
        with program.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return ""
    words = first[2:].split() if first.startswith(b"#!") else []
    name = os.fsdecode(words[0]) if words else ""
    return "" if not name or Path(name).exists() else name


def check_source(checkup: DoctorReport, word: str) -> None:
    """Look whether a Python file can be read as Python. A module is looked for by whoever runs it."""
    path = Path(word.rpartition(":")[0] if not word.endswith(".py") else word)
    if path.suffix != ".py":
        return
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").rstrip()
        text = f"{path}, line {error.lineno}: {error.msg}"
        checkup.stop_unreachable("file", text, "correct it", details=[f"  {line}"] if line else [])
    except (OSError, ValueError) as error:
        checkup.stop_unreachable("file", f"{path} cannot be read: {error}")
    checkup.ok("file", f"{path} is Python")
