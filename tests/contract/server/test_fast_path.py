"""Tools without a context: the same responses as with middleware, and one run per call.

Each tool is in two servers, one of which has middleware that does nothing. The messages to the client must be
the same.
"""

import asyncio
import gc
import weakref
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
import pytest

from revision_dates import DATES
from toolpost import Client, Context, Image, Server
from toolpost.errors import InvalidParams, ToolError
from toolpost.server.middleware import Call, Next

MARK: ContextVar[str] = ContextVar("MARK", default="nothing")


async def picture() -> Image:
    return Image(b"\x89PNG", mime_type="image/png")


def run(main: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    asyncio.run(bounded())


# --------------------------------------------------------------------- once


@pytest.mark.parametrize("ending", ["returns", "waits", "raises", "lies", "file", "cancelled"])
def test_a_function_runs_once(ending: str, tmp_path: Path):
    runs: list[int] = []
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG")
    server = Server("s")

    @server.tool
    async def returns() -> int:
        runs.append(1)
        return 1

    @server.tool
    async def waits() -> int:
        runs.append(1)
        await asyncio.sleep(0)
        return 1

    @server.tool
    async def raises() -> int:
        runs.append(1)
        raise ValueError

    @server.tool
    async def lies() -> int:
        runs.append(1)
        return "one"  # pyright: ignore[reportReturnType] - on purpose

    @server.tool
    async def file() -> Image:
        runs.append(1)
        return Image(picture)

    @server.tool
    async def cancelled() -> int:
        runs.append(1)
        raise asyncio.CancelledError

    async def main():
        async with Client(server) as client:
            await client.call_tool(ending, raise_on_error=False)

    run(main)
    assert runs == [1]


def test_arguments_are_read_once():
    made: list[int] = []

    class Counted(msgspec.Struct):
        value: int

        def __post_init__(self) -> None:
            made.append(self.value)

    server = Server("s")

    @server.tool
    async def count(one: Counted) -> int:
        return one.value

    async def main():
        async with Client(server) as client:
            assert (await client.call_tool("count", {"one": {"value": 1}})).data == 1
            assert made == [1]

    run(main)


def test_a_waiting_request_can_be_cancelled():
    server = Server("s")
    begun, ended = asyncio.Event(), asyncio.Event()

    @server.tool
    async def waits() -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 1

    async def main():
        async with Client(server) as client:
            calling = asyncio.create_task(client.call_tool("waits"))
            await begun.wait()
            calling.cancel()
            await asyncio.wait([calling])
            await ended.wait()

    run(main)


def test_context_variables_of_one_call_are_not_visible_in_the_next():
    server = Server("s")

    @server.tool
    async def mark(value: str) -> str:
        before = MARK.get()
        MARK.set(value)
        return before

    async def main():
        for revision in (DATES[-1], DATES[-2]):
            async with Client(server, revision=revision) as client:
                assert [(await client.call_tool("mark", {"value": "x"})).text for _ in range(3)] == [
                    "nothing"
                ] * 3

    run(main)


@pytest.mark.parametrize("ending", ["wait", "refuse", "list"])
@pytest.mark.parametrize("change", ["remove", "disable", "replace", "guard"])
@pytest.mark.parametrize("revision", [DATES[-1], DATES[-2]])
def test_a_call_is_finished_by_the_tool_that_has_begun_it(revision: str, change: str, ending: str):
    """Even if the function removes or changes its own tool."""
    server = Server("s")
    log: list[str] = []

    def other() -> str:
        return "other"

    @server.tool
    async def once() -> list[int]:
        log.append("begun")
        if change == "remove":
            server.tools.remove("once")
        elif change == "disable":
            handle.disable()
        elif change == "replace":
            server.tools.remove("once")
            server.tool(name="once", scopes=["secret"])(other)
        else:
            server.middleware.append(denying)
        if ending == "refuse":
            raise ToolError("declined")
        if ending == "wait":
            await asyncio.sleep(0)
        log.append("ended")
        return [1]

    handle = once

    async def denying(call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
        raise InvalidParams("Invalid params: denied")

    async def main():
        async with Client(server, revision=revision) as client:
            result = await client.call_tool("once", raise_on_error=False)
            assert result.text == ("declined" if ending == "refuse" else "[1]")
            assert log == (["begun"] if ending == "refuse" else ["begun", "ended"])

    run(main)


def test_a_custom_call_handler_is_used():
    served_by: list[str] = []

    class Guarded(Server):
        @property
        def routes(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - as a user might
            async def guard(ctx: Context, params: Any) -> Any:
                served_by.append(params.name)
                raise InvalidParams("Invalid params: guarded")

            return {**super().routes, "tools/call": guard}

    server = Guarded("s")

    @server.tool
    async def one() -> int:
        return 1

    async def main():
        async with Client(server) as client:
            with pytest.raises(InvalidParams, match="guarded"):
                await client.call_tool("one")

    run(main)
    assert served_by == ["one"]


@pytest.mark.parametrize("gives", ["task", "value"])
def test_a_lookalike_of_a_coroutine_function_is_served(gives: str, monkeypatch: pytest.MonkeyPatch):
    """Since Python 3.12 a function may be marked as one."""
    monkeypatch.setattr("inspect.iscoroutinefunction", lambda _: True)
    server = Server("s")

    async def seven() -> int:
        return 7

    @server.tool
    def marked() -> int:
        return asyncio.ensure_future(seven()) if gives == "task" else 7  # pyright: ignore[reportReturnType] - on purpose

    async def main():
        async with Client(server) as client:
            assert (await client.call_tool("marked")).data == 7

    run(main)


def test_exceptions_of_a_function_are_released():
    """Everything in its frames is freed at once, without the garbage collector."""
    server = Server("s")

    class Large:
        pass

    seen: list[weakref.ref[Large]] = []

    @server.tool
    async def fails() -> int:
        large = Large()
        seen.append(weakref.ref(large))
        raise ToolError("no")

    async def main():
        async with Client(server) as client:
            gc.disable()
            try:
                for _ in range(5):
                    await client.call_tool("fails", raise_on_error=False)
                await asyncio.sleep(0)
                assert [ref() for ref in seen] == [None] * 5
            finally:
                gc.enable()

    run(main)
