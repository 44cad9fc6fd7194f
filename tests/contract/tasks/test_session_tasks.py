"""The tasks of 2025-11-25 on the wire: calls that a client asks to run as tasks, and their methods."""

import asyncio
from typing import Any

import pytest

from task_talk import ASKING, EXTENSION, OLD, studio, talk
from toolpost import Server

RELATED = "io.modelcontextprotocol/related-task"


def run(main) -> None:
    asyncio.run(main())


@pytest.mark.requirement("TASK-1", "TASK-33")
def test_the_server_declares_what_it_can_run():
    async def main() -> None:
        server, _ = studio()
        async with talk(server, OLD) as client:
            capabilities = client.greeting["capabilities"]
            assert capabilities["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
            assert EXTENSION not in capabilities.get("extensions", {})
            listed = {tool["name"]: tool for tool in (await client.ask("tools/list"))["tools"]}
            assert "execution" not in listed["plain"]
            assert listed["work"]["execution"] == {"taskSupport": "optional"}
            assert listed["demanding"]["execution"] == {"taskSupport": "required"}
            assert (await client.ask("tasks/list"))["code"] == -32601
        async with talk(Server("none", declares=["tools"]), OLD) as client:
            assert "tasks" not in client.greeting["capabilities"]

    run(main)


@pytest.mark.requirement(
    "TASK-10", "TASK-11", "TASK-14", "TASK-15", "TASK-16", "TASK-17", "TASK-19", "TASK-20"
)
def test_a_call_runs_as_a_task_and_its_result_is_that_of_the_call():
    async def main() -> None:
        server, stage = studio()
        async with talk(server, OLD) as client:
            created = await client.ask(
                "tools/call", {"name": "work", "arguments": {}, "task": {"ttl": 60_000}}
            )
            assert created.keys() == {"task"}
            task = created["task"]
            assert (task["status"], task["ttl"], task["pollInterval"]) == ("working", 60_000, 100)
            assert task["createdAt"] <= task["lastUpdatedAt"]
            waiting = [client.send("tasks/result", {"taskId": task["taskId"]}) for _ in range(2)]
            await stage.begun.wait()
            state = await client.get(task)
            assert (state["status"], "_meta" in state) == ("working", False)
            assert not any(each.done() for each in waiting)
            stage.go.set()
            first, second = [(await each)["result"] for each in waiting]
            plain = await client.ask("tools/call", {"name": "work", "arguments": {}})
            assert first == second == {**plain, "_meta": {RELATED: {"taskId": task["taskId"]}}}
            assert (await client.get(task))["status"] == "completed"
            assert len(stage.runs) == 2

    run(main)


@pytest.mark.requirement("TASK-6", "TASK-8", "TASK-9")
def test_a_tool_is_called_as_it_demands():
    async def main() -> None:
        server, _ = studio()
        async with talk(server, OLD) as client:
            forbidden = await client.ask("tools/call", {"name": "plain", "arguments": {}, "task": {}})
            required = await client.ask("tools/call", {"name": "demanding", "arguments": {}})
            assert (forbidden["code"], required["code"]) == (-32601, -32601)
        none = Server("none")
        none.tool(lambda: "plain", name="plain")  # type: ignore[call-overload] - as a decorator does
        async with talk(none, OLD) as client:  # it declares no tasks, so it ignores the wish
            result = await client.ask("tools/call", {"name": "plain", "arguments": {}, "task": {}})
            assert result["content"][0]["text"] == "plain"

    run(main)


@pytest.mark.requirement("TASK-17", "TASK-31")
def test_a_failed_task_says_why():
    async def main() -> None:
        server, _ = studio()
        async with talk(server, OLD) as client:
            task = await client.call("fails")
            result = await client.ask("tasks/result", {"taskId": task["taskId"]})
            state = await client.get(task)
            assert (state["status"], state["statusMessage"]) == ("failed", "the paint is dry")
            assert result["isError"]
            task = await client.call("breaks")
            error = await client.ask("tasks/result", {"taskId": task["taskId"]})
            assert error == {"code": -31999, "message": "out of paint", "data": {"left": 0}}
            assert (await client.get(task))["statusMessage"] == "out of paint"

    run(main)


@pytest.mark.requirement("TASK-26", "TASK-27", "TASK-28")
def test_a_cancelled_task_stays_cancelled():
    async def main() -> None:
        server, stage = studio()
        async with talk(server, OLD) as client:
            task = await client.call("work")
            await stage.begun.wait()
            cancelled = await client.ask("tasks/cancel", {"taskId": task["taskId"]})
            assert (cancelled["taskId"], cancelled["status"]) == (task["taskId"], "cancelled")
            await stage.cancelled.wait()
            stage.go.set()
            assert (await client.ask("tasks/cancel", {"taskId": task["taskId"]}))["code"] == -32602
            assert (await client.ask("tasks/result", {"taskId": task["taskId"]}))["code"] == -32603
            assert (await client.get(task))["status"] == "cancelled"

    run(main)


@pytest.mark.requirement("TASK-12", "TASK-19")
def test_questions_are_asked_while_the_client_waits_for_the_result():
    async def main() -> None:
        server, _ = studio()
        async with talk(server, OLD, ASKING) as client:
            task = await client.call("asks")
            await client.until(task, "input_required")
            result = client.send("tasks/result", {"taskId": task["taskId"]})
            another = client.send("tasks/result", {"taskId": task["taskId"]})  # asks nothing again
            for answers in (2, 1):
                for _ in range(answers):
                    question = await client.questions.get()
                    assert question["params"]["_meta"] == {RELATED: {"taskId": task["taskId"]}}
                    said: Any = {"Colour?": "red", "Size?": "A4", "Frame?": True}[
                        question["params"]["message"]
                    ]
                    answer = {"action": "accept", "content": {"value": said}}
                    client.tell({"jsonrpc": "2.0", "id": question["id"], "result": answer})
            assert (await result)["result"]["content"][0]["text"] == "red A4 True"
            assert (await another)["result"] == (await result)["result"]
            assert client.questions.empty()

    run(main)


def test_a_refused_question_fails_the_task():
    async def main() -> None:
        server, _ = studio()
        async with talk(server, OLD, ASKING) as client:
            task = await client.call("asks")
            result = client.send("tasks/result", {"taskId": task["taskId"]})
            question = await client.questions.get()
            refusal = {"code": -1, "message": "no questions, please"}
            client.tell({"jsonrpc": "2.0", "id": question["id"], "error": refusal})
            assert (await result)["error"]["message"] == "no questions, please"

    run(main)


@pytest.mark.requirement("TASK-20")
def test_the_session_hears_of_changes_and_progress_until_the_end():
    async def main() -> None:
        server, stage = studio()
        async with talk(server, OLD) as client:
            params = {"name": "reports", "arguments": {}, "task": {}}
            task = (await client.ask("tools/call", params, progressToken="p"))["task"]
            await stage.begun.wait()
            heard: list[Any] = []
            while "notifications/progress" not in [note["method"] for note in heard]:
                heard.append(await client.notes.get())
            stage.go.set()
            while heard[-1]["params"].get("status") != "completed":
                heard.append(await client.notes.get())
            progress = [note["params"] for note in heard if note["method"] == "notifications/progress"]
            assert [each["progress"] for each in progress] == [1, 2]
            assert {each["progressToken"] for each in progress} == {"p"}
            states = [note["params"] for note in heard if note["method"] == "notifications/tasks/status"]
            assert {state["taskId"] for state in states} == {task["taskId"]}
            assert all("_meta" not in state for state in states)

    run(main)


@pytest.mark.requirement("TASK-21", "TASK-30")
def test_an_id_is_taken_from_the_parameter_and_an_unknown_one_is_refused():
    async def main() -> None:
        server, stage = studio()
        stage.go.set()
        async with talk(server, OLD) as client:
            task = await client.call("work")
            for verb in ("get", "result", "cancel"):
                refused = await client.ask(
                    f"tasks/{verb}", {"taskId": "none"}, **{RELATED: {"taskId": task["taskId"]}}
                )
                assert refused["code"] == -32602

    run(main)
