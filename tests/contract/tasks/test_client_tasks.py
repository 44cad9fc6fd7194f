"""A client drives tasks of both kinds: to their end, by hand, by id, or to a cancellation."""

import asyncio
from typing import Any

import pytest

from hosted import modern, serving
from task_talk import EXTENSION, NEW, OLD, Stage, studio
from toolpost import Client, MCPError, RequestTimeout, Server, ToolError
from toolpost.errors import CapabilityNotDeclared, InvalidParams, LocalProtocolError
from waiting import until

BOTH = pytest.mark.parametrize("revision", [OLD, NEW])
ANSWERS: dict[str, Any] = {"Colour?": "red", "Size?": "A4", "Frame?": True, "Name?": "Ann"}


def answer(asked: Any) -> dict[str, Any]:
    return {"value": ANSWERS[asked.message]}


def run(main) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(bounded())


@BOTH
@pytest.mark.requirement("TASK-7", "TASK-13")
def test_call_tool_drives_a_task_to_its_end(revision: str):
    async def main() -> None:
        server, _ = studio()
        async with Client(server, revision=revision, tasks=True, on_elicitation=answer) as client:
            assert (await client.call_tool("demanding")).text == "demanded"
            assert (await client.call_tool("asks")).text == "red A4 True"
            with pytest.raises(ToolError, match="the paint is dry"):
                await client.call_tool("fails")

    run(main)


@BOTH
@pytest.mark.requirement("TASK-7")
def test_a_tool_that_demands_a_task_gets_one_from_any_client(revision: str):
    async def main() -> None:
        server, _ = studio()
        async with Client(server, revision=revision) as client:
            assert (await client.call_tool("demanding")).text == "demanded"
        silent = Server("silent")

        @silent.tool
        def capabilities() -> str:
            return "none"

        async with Client(silent, revision=revision) as client:
            assert EXTENSION not in str(client.capabilities)

    run(main)


@BOTH
@pytest.mark.requirement("TASK-18", "TASK-22")
def test_a_handle_shows_each_state_and_then_the_result(revision: str):
    async def main() -> None:
        server, stage = studio()
        async with Client(server, revision=revision) as client:
            task = await client.start_task("reports")
            await stage.begun.wait()
            seen: list[tuple[str, str | None]] = []
            async for state in task:
                seen.append((state.status, state.message))
                if state.message == "mixing":
                    stage.go.set()
            assert seen[-1] == ("completed", "2 of 3")
            assert ("working", "mixing") in seen
            assert (task.status, task.message) == seen[-1]
            assert (await task.result()).text == "reported"
            with pytest.raises(MCPError, match="out of paint") as caught:
                await (await client.start_task("breaks")).result()
            assert getattr(caught.value, "code", None) == -31999

    run(main)


@BOTH
def test_a_task_is_found_again_by_its_id(revision: str):
    async def main() -> None:
        server, stage = studio()
        async with serving(server.asgi()) as site:
            url = f"http://127.0.0.1:{site.port}/mcp"
            async with Client(url, revision=revision) as client:
                name = (await client.start_task("work")).id
            async with Client(url, revision=revision) as client:
                stage.go.set()
                assert (await client.task(name).result()).text == "done"
                with pytest.raises(InvalidParams, match="there is no such task"):
                    await client.task("none").result()

    run(main)


@BOTH
@pytest.mark.parametrize("way", ["caller", "timeout", "handle"])
def test_a_caller_that_gives_up_cancels_the_task(revision: str, way: str):
    async def main() -> None:
        seen: list[str] = []
        server, stage = studio(observers=[lambda ctx: seen.append(ctx.request.method)])
        async with Client(server, revision=revision, tasks=True) as client:
            if way == "handle":
                task = await client.start_task("work")
                with pytest.raises(RequestTimeout, match="has not ended within"):
                    await task.result(timeout=0.01)
                assert not stage.cancelled.is_set()  # it goes on
                await task.cancel()
                with pytest.raises(MCPError, match="was cancelled"):
                    await task.result()
                await task.cancel()
            elif way == "timeout" and revision == NEW:
                with pytest.raises(RequestTimeout):
                    await client.call_tool("work", timeout=0.2)
            else:
                calling = asyncio.ensure_future(client.call_tool("work"))
                await stage.begun.wait()
                if revision == NEW:
                    await until(lambda: "tasks/get" in seen)  # the client has its task
                calling.cancel()
                await asyncio.wait([calling])
            await stage.cancelled.wait()

    run(main)


def test_questions_are_answered_by_hand():
    async def main() -> None:
        server, _ = studio()
        async with Client(server, on_elicitation=answer) as client:
            task = await client.start_task("asks")
            async for state in task:
                if state.questions:
                    break
            assert task.state is not None
            with pytest.raises(ValueError, match="unknown key 'none'"):
                await task.answer({"none": True})
            await task.answer({key: {"value": "blue"} for key in task.state.questions})
            assert (await task.result()).text == "blue blue True"
        async with Client(server, revision=OLD) as client:
            task = await client.start_task("work")
            with pytest.raises(LocalProtocolError, match="callbacks answer"):
                await task.answer({})
            await task.cancel()

    run(main)


@BOTH
@pytest.mark.requirement("TASK-2", "TASK-3", "TASK-4", "TASK-5")
def test_no_task_is_started_where_the_server_has_none(revision: str):
    async def main() -> None:
        none = Server("none")

        @none.tool
        def plain() -> str:
            return "plain"

        async with Client(none, revision=revision, tasks=True) as client:
            with pytest.raises(CapabilityNotDeclared):
                await client.start_task("plain")
            assert (await client.call_tool("plain")).text == "plain"
        server, _ = studio()
        async with Client(server, revision=revision) as client:
            if revision == OLD:
                with pytest.raises(CapabilityNotDeclared, match="cannot be called as a task"):
                    await client.start_task("plain")
            else:  # the server decides
                task = await client.start_task("plain")
                assert (task.id, task.status, (await task.result()).text) == ("", "completed", "plain")
        async with Client(server, revision="2025-06-18") as client:
            with pytest.raises(CapabilityNotDeclared):
                await client.start_task("work")

    run(main)


def test_the_header_names_the_task():
    async def main() -> None:
        server, _ = studio(Stage())
        async with serving(server.asgi()) as site:
            declared = {"extensions": {EXTENSION: {}}}
            params = {"name": "work", "arguments": {}}
            created = (await site.post(*modern("tools/call", params, capabilities=declared))).json["result"]
            headers, body = modern("tasks/get", {"taskId": created["taskId"]}, capabilities=declared)
            for name, status in ((created["taskId"], 200), ("other", 400), (None, 400)):
                given = {**headers} if name is None else {**headers, "Mcp-Name": name}
                answered = await site.post(given, body)
                assert answered.status == status
                if status == 400:
                    assert answered.json["error"]["code"] == -32020

    run(main)
