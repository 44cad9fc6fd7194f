"""The cost of an import: no unneeded library; no loop, socket, clock or log in the core."""

import ast
import gc
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolpost
from fresh_imports import PACKAGE, foreign, fresh, loaded
from toolpost import types

ROOT = Path(__file__).parents[3]


def test_importing_toolpost_loads_next_to_nothing():
    assert loaded("toolpost") - loaded("sys") == {"toolpost", "toolpost.version"}


def test_every_name_of_the_vocabulary_is_there():
    assert {name for name in types.__all__ if not hasattr(types, name)} == set()
    nonsense = "Nonsense"
    with pytest.raises(AttributeError, match=r"module 'toolpost.types' has no attribute 'Nonsense'"):
        getattr(types, nonsense)


def test_no_public_name_loads_a_library_before_it_is_used():
    """A connection loads libraries for HTTP; a name loads none."""
    everything = "for name in toolpost.__all__: getattr(toolpost, name)"
    assert foreign(loaded("toolpost", then=everything)) == {"msgspec"}


# --------------------------------------------------------------------- what a server on stdio starts with

NEEDLESS = {
    "difflib": "a name that there is not",
    "email": "HTTP",
    "hashlib": "seals, and journals of questions",
    "hmac": "seals",
    "http": "HTTP",
    "ipaddress": "URLs",
    "json": "msgspec reads and writes it",
    "pathlib": "files that are sent",
    "pydantic": "models",
    "queue": "threads",
    "random": "seals",
    "secrets": "seals, and visits of users",
    "toolpost.auth": "HTTP",
    "toolpost.client": "clients",
    "toolpost.protocol.uri_template": "templates of resources",
    "toolpost.protocol.http_routing": "HTTP",
    "toolpost.protocol.seal": "cursors, and states that clients bring back",
    "toolpost.protocol.sse": "HTTP",
    "toolpost.server.elicitation.asked_parameters": "parameters that are asked for",
    "toolpost.server.registry.prompts": "prompts and templates",
    "toolpost.server.per_client": "servers that differ by client",
    "toolpost.server.elicitation.forms": "questions to a user",
    "toolpost.server.elicitation.input_required": "questions by hand",
    "toolpost.server.elicitation.journal": "questions without a session",
    "toolpost.server.signature.annotations": "parameters with metadata",
    "toolpost.server.registry.media": "pictures, sounds and files",
    "toolpost.server.signature.record_types": "classes with fields",
    "toolpost.server.registry.resources": "resources",
    "toolpost.server.elicitation.request_state": "questions without a session",
    "toolpost.stores": "sessions over HTTP",
    "toolpost.transports.stdio_client": "clients",
    "toolpost.server.http.exchange": "HTTP",
    "toolpost.web": "HTTP",
    "urllib": "URLs",
}
"""Modules that a server with one tool has not loaded after it has listed its tools, and their users."""

SERVER = """
from toolpost import Server
server = Server("start", version="1")

@server.tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

server.run()
"""

ASKED = (
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "start", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
)


def test_a_stdio_server_loads_only_the_modules_it_needs():
    """Start to first answer is one of the goals: each module here is a part of it."""
    asked = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in ASKED)
    lines = fresh(SERVER, "print(*sys.modules)", stdin=asked).splitlines()
    assert [json.loads(line)["id"] for line in lines[:-1]] == [1, 2]
    ours = set(lines[-1].split()) - loaded("asyncio", "msgspec")
    assert {
        module for module in ours if any(f"{module}.".startswith(f"{name}.") for name in NEEDLESS)
    } == set()
    assert foreign(ours) <= {"msgspec"}


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_loading_leaves_the_collector_as_it_was(collects, frozen):
    before = gc.isenabled(), gc.get_freeze_count()
    (gc.enable if collects else gc.disable)()
    if frozen:
        gc.freeze()
    try:
        held = gc.get_freeze_count()
        toolpost.__dict__.pop("Ask", None)
        assert toolpost.Ask is sys.modules["toolpost.server.elicitation.asked_parameters"].Ask
        assert gc.isenabled() is collects
        assert (gc.get_freeze_count() > 0) is (held > 0)
    finally:
        (gc.enable if before[0] else gc.disable)()
        if not before[1]:
            gc.unfreeze()


# --------------------------------------------------------------------- by reading the sources

FORBIDDEN = {
    "asyncio",
    "concurrent",
    "datetime",
    "logging",
    "multiprocessing",
    "os",
    "queue",
    "sched",
    "select",
    "selectors",
    "signal",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "sys",
    "threading",
    "time",
    "warnings",
}
"""Loops, sockets, clocks, logs, threads, processes: the protocol core is bytes in and events out."""

SOURCES = sorted([*(PACKAGE / "types").glob("*.py"), *(PACKAGE / "protocol").glob("*.py")])


def imports(tree: ast.AST) -> Iterator[str]:
    """Return every module that a source imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_inner_rings_do_no_io(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [name for name in imports(tree) if name.partition(".")[0] in FORBIDDEN] == []
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval", "__import__"}


def test_there_are_sources_to_read():
    assert len(SOURCES) > 20


def test_every_extra_installs_what_something_imports():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for extra, requirements in project["optional-dependencies"].items():
        for requirement in requirements:
            name = re.split(r"[^\w-]", requirement)[0].replace("-", "_").replace("pyyaml", "yaml")
            assert name in {"toolpost", "httptools", "uvloop"} or re.search(
                rf"(import |from |[\"'.]){name}\b", source
            ), extra
