"""Tasks of several workers that share a store: any worker serves a task, and a task outlives its worker."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redis_servers import RedisServer, redis_server
from toolpost import Client
from waiting import until

PROGRAM = Path(__file__).parents[2] / "support" / "programs" / "task_worker.py"
PATIENCE = 60.0
LEASE = 1


def run(main) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())


@pytest.fixture
def redis(tmp_path):
    with redis_server(tmp_path) as server:
        yield server


class TaskWorker:
    """A process that serves the studio over HTTP."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    def tell(self, number: int) -> None:
        os.kill(self.process.pid, number)


@asynccontextmanager
async def workers(
    redis: RedisServer, folder: Path, count: int, *command: str | Path, slots: int = 32
) -> AsyncGenerator[list[TaskWorker]]:
    """Start this number of workers that share a store; a tool writes its effects into the folder."""
    command = command or (PROGRAM,)
    shared = {
        "TASK_STORE": f"{redis.url}?lease={LEASE}",
        "TASK_FOLDER": str(folder),
        "TASK_SLOTS": str(slots),
    }
    env = {**os.environ, **shared}
    async with AsyncExitStack() as stack:
        found: list[TaskWorker] = []
        for _ in range(count):
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, env=env, stderr=asyncio.subprocess.PIPE
            )
            stack.push_async_callback(_end, process)
            assert process.stderr is not None
            line = (await process.stderr.readline()).decode()
            found.append(TaskWorker(process, line.partition(" at ")[2].partition(" ")[0]))
        yield found


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()


def effects(folder: Path, name: str) -> list[str]:
    """The lines that steps of a task have written."""
    path = folder / name
    return path.read_text().split() if path.exists() else []


async def wait_for_effect(folder: Path, name: str, effect: str) -> None:
    await until(lambda: effect in effects(folder, name))


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_any_worker_serves_a_task(redis: RedisServer, tmp_path: Path, revision: str):
    async def main() -> None:
        async with workers(redis, tmp_path, 2) as (one, two):
            options: dict[str, Any] = {"revision": revision, "on_elicitation": lambda asked: {"value": "yes"}}
            async with Client(one.url, **options) as first, Client(two.url, **options) as second:
                task = await first.start_task("asks", {"name": "a"})
                assert (await second.task(task.id).result()).text == "yes"
                task = await first.start_task("waits", {"name": "b"})
                await wait_for_effect(tmp_path, "b", "begun")
                await second.task(task.id).cancel()
                await wait_for_effect(tmp_path, "b", "cancelled")

    run(main)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_task_whose_worker_is_lost_ends_as_its_author_said(
    redis: RedisServer, tmp_path: Path, revision: str, fault: str
):
    async def main() -> None:
        async with AsyncExitStack() as stack:
            one, two = await stack.enter_async_context(workers(redis, tmp_path, 2))
            async with Client(one.url, revision=revision) as client:
                once = await client.start_task("waits", {"name": "once"})
                again = await client.start_task("goes_on", {"name": "again"})
                await wait_for_effect(tmp_path, "once", "begun")
                await wait_for_effect(tmp_path, "again", "waiting")
                one.tell(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
                async with Client(two.url, revision=revision) as other:
                    with pytest.raises(Exception, match="has died; it was not run again"):
                        await other.task(once.id).result()
                    (tmp_path / "go").touch()
                    assert (await other.task(again.id).result()).text == "done by attempt 2"
                    if fault == "stop":
                        one.tell(signal.SIGCONT)
                        await wait_for_effect(tmp_path, "once", "cancelled")  # it has noticed
                        assert (await other.task(again.id).result()).text == "done by attempt 2"
                assert effects(tmp_path, "again").count("first") == 1
                assert effects(tmp_path, "again").count("second") == 1

    run(main)


def test_a_question_outlives_the_worker_that_asked(redis: RedisServer, tmp_path: Path):
    async def main() -> None:
        async with workers(redis, tmp_path, 2) as (one, two):
            options: dict[str, Any] = {"on_elicitation": lambda asked: {"value": "yes"}}
            async with Client(one.url, **options) as client:
                task = await client.start_task("asks", {"name": "a"})
                async for state in task:
                    if state.status == "input_required":
                        break
                one.tell(signal.SIGKILL)
                async with Client(two.url, **options) as other:
                    assert (await other.task(task.id).result()).text == "yes"

    run(main)


def test_a_worker_without_http_runs_tasks(redis: RedisServer, tmp_path: Path):
    async def main() -> None:
        async with (
            workers(redis, tmp_path, 1, slots=0) as (web,),
            Client(web.url, revision="2025-11-25", on_elicitation=lambda asked: {"value": "yes"}) as client,
        ):
            task = await client.start_task("asks", {"name": "a"})
            assert (await task.refresh()).status == "working"
            async with workers(redis, tmp_path, 1, "-m", "toolpost", "work", PROGRAM) as (worker,):
                assert (await task.result()).text == "yes"
                task = await client.start_task("goes_on", {"name": "again"})
                await wait_for_effect(tmp_path, "again", "waiting")
                worker.tell(signal.SIGTERM)  # it gives the task back
                await worker.process.wait()
            (tmp_path / "go").touch()
            async with workers(redis, tmp_path, 1, "-m", "toolpost", "work", PROGRAM):
                assert (await task.result()).text == "done by attempt 2"

    run(main)
