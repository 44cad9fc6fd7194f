"""The client of PyPI's `fastmcp-tasks` with our tasks. Arguments: see `contract.arguments`."""

import warnings
from typing import Any

import anyio
from fastmcp.exceptions import ToolError
from fastmcp_tasks import call_tool_task

import contract
from client_fastmcp import Theirs, connected
from contract import case

warnings.simplefilter("ignore")  # they deprecate what is gone from the newest revision


async def failure(task: Any) -> str:
    """Why a task has no result."""
    try:
        await task.result()
    except ToolError as error:
        return str(error)
    return ""


@case("a call that needs a task is driven to its end", era="stateless")
async def driven(peer: Any) -> None:
    result = await peer.client.call_tool("simmer", {"portions": 2})
    assert result.content[0].text == "simmered 2", result


@case("questions of a task are answered", era="stateless")
async def answered(peer: Any) -> None:
    task = await call_tool_task(peer.client, "order_later")
    assert (await task.wait(state="input_required")).input_requests
    assert (await task.result()).content[0].text == "2 soup"
    assert [asked["message"] for asked in peer.asked] == ["What to eat?"]


@case("the status has the message of the tool", era="stateless")
async def status(peer: Any) -> None:
    task = await call_tool_task(peer.client, "wait_for_ever")
    while (state := await task.status()).status_message != "1 of 2":
        assert state.status == "working", state
        await anyio.sleep(0.02)
    await task.cancel()
    assert (await task.wait()).status == "cancelled"
    assert "cancelled" in await failure(task)


@case("a tool fails in a task", era="stateless")
async def fails(peer: Any) -> None:
    task = await call_tool_task(peer.client, "burn")
    assert "burnt" in await failure(task)


@case("without tasks in the revision, the tool is called plainly", era="session")
async def plainly(peer: Theirs) -> None:
    assert contract.text(await peer.call("stir")) == "stirred"


async def main() -> None:
    """Connect, and run the cases of this file."""
    mode, expected, over, target = contract.arguments()
    contract.only(driven, answered, status, fails, plainly)
    async with connected(mode, over, target) as theirs:
        await contract.run(theirs, expected)


if __name__ == "__main__":
    anyio.run(main)
