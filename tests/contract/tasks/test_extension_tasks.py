"""The tasks of 2026-07-28 on the wire: when a call becomes one, and what its methods answer."""

import asyncio
import threading
from typing import Any

import pytest

from task_talk import ASKING, EXTENSION, OLD, Stage, studio, talk
from toolpost import Context, MemoryStore, Server, TaskOptions
from toolpost.errors import StoreUnavailable
from waiting import until

TASK_MEMBERS = {
    "taskId",
    "status",
    "createdAt",
    "lastUpdatedAt",
    "ttlMs",
    "pollIntervalMs",
    "resultType",
    "_meta",
}
UNKNOWN = {"code": -32602, "message": "Invalid params: there is no such task"}


def accepted(value: object) -> dict[str, object]:
    return {"action": "accept", "content": {"value": value}}


def run(main) -> None:
    asyncio.run(main())


def test_a_call_that_takes_long_becomes_a_task_with_the_result_of_the_call():
    async def main() -> None:
        server, stage = studio()
        async with talk(server) as client:
            task = await client.call("work")
            assert task.keys() == TASK_MEMBERS
            assert (task["resultType"], task["status"], task["pollIntervalMs"]) == ("task", "working", 100)
            state = await client.get(task)
            assert (state["resultType"], state["status"], "result" in state) == ("complete", "working", False)
            stage.go.set()
            state = await client.until(task, "completed")
            plain = await client.ask("tools/call", {"name": "work", "arguments": {}}, capabilities={})
            assert state["result"] == plain
            assert state["lastUpdatedAt"] > task["lastUpdatedAt"]
            assert "io.modelcontextprotocol/related-task" not in state["result"]["_meta"]

    run(main)


def test_a_call_that_ends_in_time_is_answered_plainly():
    async def main() -> None:
        server = Server("quick")

        @server.tool(task=True)
        async def quick() -> str:
            await asyncio.sleep(0)
            return "quick"

        async with talk(server) as client:
            result = await client.call("quick")
            assert (result["resultType"], result["content"][0]["text"]) == ("complete", "quick")

    run(main)


@pytest.mark.parametrize("tool", ["plain", "work"])
def test_a_client_that_does_not_declare_the_extension_gets_no_task(tool: str):
    async def main() -> None:
        server, stage = studio()
        stage.go.set()
        async with talk(server) as client:
            params = {"name": tool, "arguments": {}, "task": {"ttl": 1}}
            assert (await client.ask("tools/call", params, capabilities={}))["resultType"] == "complete"

    run(main)


def test_without_the_extension_all_of_it_is_refused_before_any_task_is_looked_up():
    async def main() -> None:
        server, _ = studio()
        async with talk(server) as client:
            task = await client.call("work")
            calls = [
                ("tools/call", {"name": "demanding", "arguments": {}}),
                *(
                    (f"tasks/{verb}", {"taskId": name, "inputResponses": {}})
                    for verb in ("get", "update", "cancel")
                    for name in ("none", task["taskId"])
                ),
                ("subscriptions/listen", {"notifications": {"taskIds": [task["taskId"]]}}),
            ]
            for method, params in calls:
                error = await client.ask(method, params, capabilities={})
                assert error["code"] == -32021
                assert error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}

    run(main)


def test_the_server_declares_the_extension_and_no_tasks_of_the_older_kind():
    async def main() -> None:
        server, _ = studio()
        async with talk(server) as client:
            capabilities = (await client.ask("server/discover"))["capabilities"]
            assert capabilities["extensions"] == {EXTENSION: {}}
            assert "tasks" not in capabilities
            listed = (await client.ask("tools/list"))["tools"]
            assert not any("execution" in tool for tool in listed)
            for method in ("tasks/result", "tasks/list"):
                assert (await client.ask(method, {"taskId": "none"}))["code"] == -32601
        async with talk(Server("none", declares=["tools"])) as client:
            assert "extensions" not in (await client.ask("server/discover"))["capabilities"]

    run(main)


def test_a_task_of_another_principal_or_kind_looks_like_none():
    async def main() -> None:
        server, _ = studio()
        async with (
            talk(server, principal="ann") as ann,
            talk(server, principal="bob") as bob,
            talk(server, OLD, principal="ann") as session,
        ):
            task = await ann.call("work")
            older = await session.call("work")
            for client, name in ((bob, task["taskId"]), (ann, older["taskId"]), (ann, "none")):
                for verb in ("get", "update", "cancel"):
                    params = {"taskId": name, "inputResponses": {}}
                    assert await client.ask(f"tasks/{verb}", params) == UNKNOWN
            assert await session.get(task) == UNKNOWN
            assert (await ann.get(task))["status"] == (await session.get(older))["status"] == "working"

    run(main)


def test_ids_cannot_be_guessed():
    async def main() -> None:
        server, stage = studio()
        async with talk(server) as client:
            ids = {(await client.call("work"))["taskId"] for _ in range(20)}
            stage.go.set()
        assert len(ids) == 20
        assert all(len(name) >= 22 for name in ids)  # 128 bits in base64

    run(main)


def test_a_task_that_cannot_be_stored_is_an_error_of_the_call():
    class Full(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            put = self.records.put

            async def refuse(key: str, value: bytes, ttl: float | None) -> None:
                if key.startswith("task"):
                    raise StoreUnavailable("Redis is full")
                await put(key, value, ttl)

            self.records.put = refuse  # type: ignore[method-assign] - a store that is full

    async def main() -> None:
        server, stage = studio(store=Full())
        async with talk(server) as client:
            assert (await client.call("work"))["code"] == -32603
            await stage.cancelled.wait()

    run(main)


def test_a_failure_of_the_tool_is_a_result_and_an_error_of_the_protocol_is_not():
    async def main() -> None:
        server, _ = studio()
        async with talk(server) as client:
            state = await client.until(await client.call("fails"), "completed", "failed")
            assert (state["status"], state["result"]["isError"]) == ("completed", True)
            assert state["result"]["content"][0]["text"] == "the paint is dry"
            state = await client.until(await client.call("breaks"), "completed", "failed")
            assert state["error"] == {"code": -31999, "message": "out of paint", "data": {"left": 0}}
            assert (state["status"], state["statusMessage"], "result" in state) == (
                "failed",
                "out of paint",
                False,
            )

    run(main)


def test_cancelling_stops_the_function_and_nothing_follows():
    async def main() -> None:
        server, stage = studio()
        async with talk(server) as client:
            task = await client.call("work")
            for _ in range(2):  # a task that has ended may be cancelled, too
                ack = await client.ask("tasks/cancel", {"taskId": task["taskId"]})
                assert ack.keys() == {"resultType", "_meta"}
            await stage.cancelled.wait()
            stage.go.set()
            state = await client.get(task)
            assert (state["status"], "result" in state) == ("cancelled", False)
            done = await client.call("fails")
            before = await client.until(done, "completed")
            await client.ask("tasks/cancel", {"taskId": done["taskId"]})
            assert await client.get(done) == before

    run(main)


def test_a_cancelled_function_in_a_thread_runs_on_but_its_result_is_dropped():
    async def main() -> None:
        server, go, begun, ended = Server("threads"), threading.Event(), asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        @server.tool(task=TaskOptions(after=0))
        def work() -> str:
            loop.call_soon_threadsafe(begun.set)
            go.wait()
            loop.call_soon_threadsafe(ended.set)
            return "late"

        async with talk(server) as client:
            task = await client.call("work")
            await begun.wait()
            await client.ask("tasks/cancel", {"taskId": task["taskId"]})
            go.set()
            await ended.wait()
            assert (await client.get(task))["status"] == "cancelled"

    run(main)


def test_questions_of_a_task_are_answered_in_parts_and_each_once():
    async def main() -> None:
        server, stage = studio()
        async with talk(server, capabilities=ASKING) as client:
            task = await client.call("asks")
            assert task["resultType"] == "task"
            state = await client.until(task, "input_required")
            asked = {each["params"]["message"]: key for key, each in state["inputRequests"].items()}
            assert asked.keys() == {"Colour?", "Size?"}

            async def answer(**answers: object) -> None:
                responses = {key: accepted(value) for key, value in answers.items()}
                ack = await client.ask(
                    "tasks/update", {"taskId": task["taskId"], "inputResponses": responses}
                )
                assert ack.keys() == {"resultType", "_meta"}

            await answer(**{asked["Colour?"]: "red", "unknown": 1})
            await answer(**{asked["Colour?"]: "blue"})  # too late
            state = await client.get(task)
            assert (state["status"], [*state["inputRequests"]]) == ("input_required", [asked["Size?"]])
            assert stage.runs == []
            await asyncio.gather(answer(**{asked["Size?"]: "A4"}), answer(**{asked["Size?"]: "A5"}))
            state = await client.until(task, "input_required", text="Frame?")
            (third,) = state["inputRequests"]
            assert third not in asked.values()
            await answer(**{third: True})
            state = await client.until(task, "completed")
            assert state["result"]["content"][0]["text"] == "red A4 True"
            assert stage.runs == ["asked"] * 2  # it runs again from the top
            await answer(**{third: False})  # it has ended: ignored
            assert await client.get(task) == state

    run(main)


def test_a_question_that_is_asked_again_has_another_key():
    async def main() -> None:
        server, _ = studio()
        async with talk(server, capabilities=ASKING) as client:
            task = await client.call("asks")
            keys: list[str] = []
            for _ in range(2):
                state = await client.until(task, "input_required")
                keys += state["inputRequests"]
                wrong = {key: {"no": "answer"} for key in state["inputRequests"]}
                await client.ask("tasks/update", {"taskId": task["taskId"], "inputResponses": wrong})
            assert len(set(keys)) == len(keys) == 4

    run(main)


def test_a_question_before_the_task_travels_with_the_call():
    async def main() -> None:
        server, stage = studio()
        async with talk(server, capabilities=ASKING) as client:
            params = {"name": "steps", "arguments": {}}
            asked = await client.ask("tools/call", params)
            assert (asked["resultType"], "taskId" in asked) == ("input_required", False)
            (key,) = asked["inputRequests"]
            again = {
                **params,
                "requestState": asked["requestState"],
                "inputResponses": {key: accepted("Ann")},
            }
            task = await client.ask("tools/call", again)
            assert (task["resultType"], "requestState" in task) == ("task", False)
            state = await client.until(task, "input_required")
            (key,) = state["inputRequests"]
            responses = {key: accepted("oak")}
            await client.ask("tasks/update", {"taskId": task["taskId"], "inputResponses": responses})
            state = await client.until(task, "completed")
            assert state["result"]["content"][0]["text"] == "Ann oak"
            assert stage.runs == ["first", "second"]  # each once, in four runs
            assert (await client.ask("tools/call", again))["code"] == -32602  # the state is used up

    run(main)


def test_a_client_without_elicitation_is_not_asked():
    async def main() -> None:
        server, _ = studio()
        async with talk(server) as client:
            state = await client.until(await client.call("asks"), "completed", "failed")
            assert (state["status"], state["error"]["code"]) == ("failed", -32021)

    run(main)


def test_progress_is_the_status_message():
    async def main() -> None:
        server, stage = studio()
        async with talk(server) as client:
            task = await client.call("reports")
            await stage.begun.wait()
            await client.until(task, "working", text="mixing")
            stage.go.set()
            state = await client.until(task, "completed")
            assert (state["statusMessage"], client.notes.empty()) == ("2 of 3", True)

    run(main)


def test_a_finished_task_lives_for_its_ttl_from_its_end():
    async def main() -> None:
        now = [0.0]
        server, _ = studio(store=MemoryStore(clock=lambda: now[0]))

        @server.tool(task=TaskOptions(after=0, ttl=60))
        async def short(ctx: Context) -> str:
            await ctx.background()
            return "short"

        async with talk(server) as client:
            task = await client.call("short")
            state = await client.until(task, "completed")
            assert state["ttlMs"] >= task["ttlMs"] == 60_000
            now[0] += 60
            assert (await client.get(task))["status"] == "completed"
            now[0] += 5
            assert await client.get(task) == UNKNOWN

    run(main)


def test_a_result_that_is_too_large_fails_with_the_reason():
    async def main() -> None:
        server = Server("large")

        @server.tool(task=TaskOptions(after=0))
        async def large(ctx: Context) -> str:
            await ctx.background()
            return "x" * 5_000_000

        async with talk(server) as client:
            state = await client.until(await client.call("large"), "completed", "failed")
            assert "the result has" in state["error"]["message"]

    run(main)


def test_a_listener_hears_what_get_would_say_and_only_of_its_own_tasks():
    async def main() -> None:
        server, stage = studio()
        async with talk(server, principal="ann") as ann, talk(server, principal="bob") as bob:
            task, other = await ann.call("reports"), await bob.call("work")
            ids = [task["taskId"], other["taskId"], "none"]
            listening = ann.send("subscriptions/listen", {"notifications": {"taskIds": ids}})
            acknowledged = await ann.notes.get()
            assert acknowledged["params"]["notifications"] == {"taskIds": [task["taskId"]]}
            await stage.begun.wait()
            stage.go.set()
            while (note := await ann.notes.get())["params"]["status"] != "completed":
                assert note["method"] == "notifications/tasks"
            state = await ann.get(task)
            shared = {name: value for name, value in note["params"].items() if name != "_meta"}
            assert shared == {name: state[name] for name in state if name not in {"_meta", "resultType"}}
            assert not listening.done()

    run(main)


def test_another_program_completes_a_task():
    async def main() -> None:
        server, stage = studio()
        async with talk(server) as client:
            task = await client.call("render", scene="tower")
            name = task["taskId"]
            await until(lambda: stage.handed)
            assert stage.handed == [name]
            assert await server.tasks.say(name, "half way")
            assert (await client.get(task))["statusMessage"] == "half way"
            assert await server.tasks.complete(name, "ready")
            state = await client.get(task)
            assert (state["status"], state["result"]["structuredContent"]) == (
                "completed",
                {"result": "ready"},
            )
            assert not await server.tasks.complete(name, "twice")
            assert not await server.tasks.fail("none", "no such task")
            other = await client.call("render", scene="tower")
            assert await server.tasks.fail(other["taskId"], "no light")
            state = await client.get(other)
            assert (state["status"], state["result"]["isError"]) == ("completed", True)

    run(main)


def test_a_server_without_tasks_in_flight_does_nothing():
    async def main() -> None:
        server, stage = studio()
        async with talk(server) as client:
            await client.ask("tools/call", {"name": "plain", "arguments": {}})
            threads = threading.active_count()
            before = asyncio.all_tasks()
            task = await client.call("work")
            stage.go.set()
            await client.until(task, "completed")
            await until(lambda: asyncio.all_tasks() == before)
            assert threading.active_count() == threads

    run(main)


def test_a_call_whose_client_gives_up_before_it_is_a_task_is_cancelled():
    async def main() -> None:
        server, stage = Server("slow"), Stage()

        @server.tool(task=TaskOptions(after=60))
        async def slow() -> str:
            stage.begun.set()
            try:
                await stage.go.wait()
            finally:
                stage.cancelled.set()
            return ""

        async with talk(server) as client:
            client.send("tools/call", {"name": "slow", "arguments": {}})
            await stage.begun.wait()
            client.tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
            await stage.cancelled.wait()

    run(main)


def test_options_are_checked_at_registration():
    server = Server("checked")
    with pytest.raises(TypeError, match="task must be True, False or a TaskOptions"):
        server.tool(task="yes")  # type: ignore[call-overload] - the mistake
    mistakes: list[dict[str, Any]] = [{"after": -1}, {"ttl": 0}, {"poll": 0}, {"attempts": 0}, {"ttl": 1e9}]
    for wrong in mistakes:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TaskOptions(**wrong)
