"""The commands about tasks: `tasks list`, `show`, `result` and `cancel`, and `work`, which runs them.

`call --task` starts a task. Results are printed as those of `call`.
"""

import asyncio
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import click

from toolpost.cli.commands.requests import print_result
from toolpost.cli.errors import FAILED, OK, USAGE, CommandError, translate_errors
from toolpost.cli.output import CommandOutput
from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.cli.terminal import TerminalPrompter
from toolpost.client.client import Client
from toolpost.client.tasks import TaskHandle, TaskState
from toolpost.client.tools import ToolResult
from toolpost.protocol.methods import TASKS_LIST
from toolpost.types.tools import ListTasksResult

_NO_LIST: Final = "this server has no list of tasks: only clients of 2025-11-25 that are logged in get one"


@click.group("tasks")
def tasks_command() -> None:
    """Show the tasks of a server, wait for their results, or cancel them."""


@tasks_command.command("list", cls=TargetCommand)
def list_tasks_command(target: TargetConnector) -> None:
    """List your tasks. Servers of 2026-07-28 have no such list."""

    async def read(client: Client) -> list[Any]:
        if client.capabilities.tasks is None or client.capabilities.tasks.list is None:
            raise CommandError(_NO_LIST, FAILED)
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = await client.request(TASKS_LIST, {} if cursor is None else {"cursor": cursor})
            assert isinstance(page, ListTasksResult), "the row allows no other result"
            found += page.tasks
            if page.next_cursor is None:
                return found
            cursor = page.next_cursor

    tasks = target.run(read)
    if target.output.json:
        target.output.print_value(tasks)
        return
    rows = [(each.task_id, each.status, each.created_at, each.status_message or "") for each in tasks]
    target.output.print_table("Tasks", ("task", "status", "created", "message"), rows)


@tasks_command.command("show", cls=TargetCommand)
@click.argument("task", metavar="TASK")
def show_task_command(target: TargetConnector, task: str) -> None:
    """Show the state of a task."""
    state = target.run(lambda client: client.task(task).refresh())
    target.output.print_value(
        {"task": task, "status": state.status, "message": state.message, "updatedAt": state.updated_at}
    )


@tasks_command.command("result", cls=TargetCommand)
@click.argument("task", metavar="TASK")
@click.option("--save", metavar="DIR", help="Save binary content to files in this folder.")
def task_result_command(target: TargetConnector, task: str, save: str | None) -> int:
    """Wait for a task, and print its result. Ctrl-C leaves the task running."""
    with closing(TerminalPrompter(target)) as prompter:

        async def work(client: Client) -> int:
            result = await wait_for_task(client.task(task), prompter)
            prompter.progress.close()
            print_result(target, task, result, save)
            return FAILED if result.is_error else OK

        return target.run(work, **prompter.client_options())


@tasks_command.command("cancel", cls=TargetCommand)
@click.argument("task", metavar="TASK")
def cancel_task_command(target: TargetConnector, task: str) -> None:
    """Cancel a task."""

    async def cancel(client: Client) -> TaskState:
        handle = client.task(task)
        await handle.cancel()
        return await handle.refresh()

    state = target.run(cancel)
    target.output.print_record({"task": task, "status": state.status}, f"{task} is {state.status}")


async def wait_for_task(handle: "TaskHandle[Any]", prompter: TerminalPrompter) -> ToolResult[Any]:
    """Show the messages of a task until it has ended, and return its result."""
    shown: str | None = None
    async for state in handle:
        if state.message and state.message != shown and not state.is_over:
            shown = state.message
            prompter.progress.print_note(f"{state.status}: {state.message}")
    return await handle.result()


@click.command("work")
@click.argument("server", type=click.Path())
@click.option("--slots", metavar="N", type=click.IntRange(min=1), help="Tasks to run at once (default: 32).")
def work_command(server: str, slots: int | None) -> int:
    """Run the tasks of the server in a file or a module, without serving clients.

    SERVER is as for `toolpost run`. The server needs a store that its processes share (Server(store=…)).
    Start any number of these workers, on any machine; Ctrl-C returns unfinished tasks to the queue.
    """
    from toolpost.cli.run.loader import ServerSource  # noqa: PLC0415 - imports the server package, which is slow
    from toolpost.tasks.worker import explain_no_shared_tasks, serve_tasks  # noqa: PLC0415 - as above

    found: Any = ServerSource(server).load()
    why = explain_no_shared_tasks(found)
    if why is not None:
        raise CommandError(f"{Path(server).name} has no tasks for other processes: {why}", USAGE)
    if slots is not None:
        found.tasks.slots = slots
    CommandOutput().print_note(f"{found.info.name} runs tasks. Press Ctrl-C to stop.")
    with translate_errors(), suppress(asyncio.CancelledError):
        asyncio.run(serve_tasks(found))
    return OK
