"""`toolpost call --task`, `toolpost tasks …` and `toolpost work`."""

from pathlib import Path

import pytest

from command_line import toolpost

SERVER = """
import asyncio

from toolpost import Context, Server, TaskOptions

server = Server("lab")


@server.tool(task=TaskOptions(after=0, poll=0.1))
async def crunch(data: str, ctx: Context) -> str:
    await ctx.progress(1, 2, "half way")
    await asyncio.sleep(0.3)
    return data.upper()
"""


@pytest.fixture
def lab(tmp_path: Path) -> str:
    (tmp_path / "lab.py").write_text(SERVER)
    return str(tmp_path / "lab.py")


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_a_call_as_a_task_shows_its_messages_and_prints_its_result(lab: str, revision: str):
    said = toolpost("call", "--task", "--revision", revision, lab, "crunch", "--data", "abc")
    assert (said.code, said.out) == (0, "ABC\n")
    assert "task " in said.err
    assert "working: half way" in said.err


def test_a_task_that_is_gone_and_a_list_that_is_not_there(lab: str):
    for command in ("show", "result", "cancel"):
        said = toolpost("tasks", command, lab, "none")
        assert said.code != 0
        assert "there is no such task" in said.err
    said = toolpost("tasks", "list", lab)
    assert said.code != 0
    assert "no list of tasks" in said.err


def test_a_worker_needs_a_store_that_processes_share(lab: str):
    said = toolpost("work", lab)
    assert said.code != 0
    assert "its tasks are in memory" in said.err
