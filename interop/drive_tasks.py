"""Cases for our client with the tasks of PyPI's `fastmcp-tasks`, of 2026-07-28 only."""

from typing import Final

from cases import Suite
from ours import Guest
from toolpost import MCPError, ToolError
from toolpost.errors import InvalidParams

__all__ = ["TASKS"]

TASKS: Final = Suite[Guest]()


@TASKS.case("a call that needs a task is driven to its end", era="stateless")
async def driven(guest: Guest) -> None:
    assert (await guest.client.call_tool("simmer", {"portions": 2})).text == "simmered 2"


@TASKS.case("a task is started, watched and answered", era="stateless")
async def answered(guest: Guest) -> None:
    task = await guest.client.start_task("order_later")
    statuses = [state.status async for state in task]
    assert "input_required" in statuses, statuses
    assert (await task.result()).text == "2 soup"
    assert [asked.message for asked in guest.questions] == ["What to eat?"]


@TASKS.case("a task is found by its id, and an unknown one is refused", era="stateless")
async def found(guest: Guest) -> None:
    started = await guest.client.start_task("simmer", {"portions": 3})
    assert (await guest.client.task(started.id).result()).text == "simmered 3"
    try:
        await guest.client.task("none").refresh()
    except InvalidParams:
        return
    raise AssertionError("a task that does not exist was not refused")


@TASKS.case("a task is cancelled", era="stateless")
async def cancelled(guest: Guest) -> None:
    task = await guest.client.start_task("wait_for_ever")
    await task.cancel()
    async for state in task:
        assert state.status in {"working", "cancelled"}, state
    assert task.status == "cancelled"
    try:
        await task.result()
    except MCPError:
        return
    raise AssertionError("a cancelled task has a result")


@TASKS.case("a tool fails in a task", era="stateless")
async def fails(guest: Guest) -> None:
    why = ""
    try:
        await guest.client.call_tool("burn")
    except ToolError as error:
        why = str(error)
    assert "burnt" in why, why


@TASKS.case("without tasks in the revision, the tool is called plainly", era="session")
async def plainly(guest: Guest) -> None:
    assert (await guest.client.call_tool("stir")).text == "stirred"
