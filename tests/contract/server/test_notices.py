"""Functions for notifications of clients."""

import asyncio
import logging
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Handler, Server, SyncContext
from toolpost.testing import REVISIONS
from toolpost.types import NotificationParams

ROOTS = "notifications/roots/list_changed"
SESSIONS = [date for date in DATES if not REVISIONS[date].stateless]


async def soon(condition: Any) -> None:
    """Return as soon as the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0)


@pytest.mark.requirement("ROOT-3")
@pytest.mark.parametrize("revision", SESSIONS)
def test_a_notification_is_received_and_may_be_followed_by_a_question(revision):
    async def main() -> None:
        server = Server("s")
        seen: list[Any] = []

        @server.on_notification(ROOTS)
        async def changed(ctx: Context) -> None:
            seen.append([root.uri for root in await ctx.roots()])
            seen.append((ctx.request.id, ctx.request.method, ctx.request.meta, ctx.cancelled, ctx.revision))
            await ctx.state.set("seen", True)
            await ctx.progress(1)
            await ctx.info("changed")
            await ctx.notify("example/told", {"n": 1})

        @server.tool
        async def state(ctx: Context) -> str:
            return str({"seen": await ctx.state.get("seen")})

        logs: list[Any] = []
        notices: list[Any] = []

        async def log(params: Any) -> None:
            logs.append(params.data)

        async def note(method: str, params: Any) -> None:
            notices.append((method, params))

        async with Client(
            server, revision=revision, on_roots=["file:///a"], on_log=log, on_notification=note
        ) as client:
            await client.notify_roots_changed()
            await soon(lambda: notices)
            assert (await client.call_tool("state")).text == "{'seen': True}"
        assert seen == [["file:///a"], (None, ROOTS, {}, False, revision)]
        assert logs == ["changed"]
        assert notices == [("example/told", {"n": 1})]

    asyncio.run(main())


@pytest.mark.parametrize("revision", SESSIONS)
def test_a_plain_function_receives_notifications_in_a_thread(revision):
    async def main() -> None:
        server = Server("s")
        seen: list[Any] = []

        @server.on_notification(ROOTS)
        def changed(ctx: SyncContext, params: NotificationParams) -> None:
            seen.extend([ctx.roots()[0].uri, params, ctx.request.id, ctx.request.method])

        async with Client(server, revision=revision, on_roots=["file:///a"]) as client:
            await client.notify_roots_changed()
            await soon(lambda: len(seen) == 4)
        assert seen == ["file:///a", NotificationParams(), None, ROOTS]

    asyncio.run(main())


@pytest.mark.parametrize("revision", SESSIONS)
def test_a_handler_may_override_handle_notification(revision):
    class Own(Handler):
        heard_so_far: list[str]

        async def handle_notification(self, method: str, params: Any, ctx: Context) -> None:
            self.heard_so_far.append(f"{method} {params!r}")

    async def main() -> None:
        own = Own("own")
        own.heard_so_far = []
        async with Client(own, revision=revision, on_roots=["file:///a"]) as client:
            await client.notify_roots_changed()
            await client.notify("example/x", {"a": None})
            await soon(lambda: len(own.heard_so_far) == 3)
        assert own.heard_so_far == [
            "notifications/initialized NotificationParams(meta=None)",
            f"{ROOTS} NotificationParams(meta=None)",
            "example/x {'a': None}",
        ]

    asyncio.run(main())


@pytest.mark.parametrize(
    "error", [ValueError("oh"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("sync", [False, True])
def test_an_exception_in_a_function_does_not_affect_others(error, sync, caplog):
    async def main() -> None:
        server = Server("s")
        told = asyncio.Event()

        async def broken(ctx: Context) -> None:
            told.set()
            raise error

        def broken_sync(ctx: SyncContext) -> None:
            ctx.info("there")
            raise error

        server.on_notification("example/x")(broken_sync if sync else broken)

        async def log(params: Any) -> None:
            told.set()

        async with Client(server, revision="2025-11-25", on_log=log) as client:
            await client.notify("example/x")
            await told.wait()
            await client.ping()
            await soon(lambda: caplog.records or isinstance(error, asyncio.CancelledError))

    with caplog.at_level(logging.WARNING, "toolpost.server"):
        asyncio.run(main())
    assert ("could not be handled" in caplog.text) is not isinstance(error, asyncio.CancelledError)


def test_an_error_of_ours_is_logged_without_a_traceback(caplog):
    async def main() -> None:
        server = Server("s")

        @server.on_notification("example/x")
        async def asks(ctx: Context) -> None:
            await ctx.roots()

        async with Client(server, revision="2025-11-25") as client:
            await client.notify("example/x")
            await soon(lambda: caplog.records)

    with caplog.at_level(logging.WARNING, "toolpost.server"):
        asyncio.run(main())
    [record] = caplog.records
    assert "roots" in record.message
    assert record.exc_info is None


# --------------------------------------------------------------------- registration


class Listening:
    """An object with a notification method."""

    async def __call__(self, ctx: Context) -> None: ...


@pytest.mark.parametrize("fn", [lambda: None, lambda ctx, params, more: None, lambda *, ctx: None])
def test_a_function_that_cannot_take_a_context_is_refused(fn):
    with pytest.raises(TypeError, match="cannot handle a notification"):
        Server("s").on_notification("example/x")(fn)


@pytest.mark.parametrize(
    "fn", [lambda ctx: None, lambda ctx, params=None: None, lambda *given: None, Listening()]
)
def test_a_decorated_function_stays_callable(fn):
    assert Server("s").on_notification("example/x")(fn) is fn


def test_a_method_is_received_once_and_not_if_the_protocol_serves_it():
    server = Server("s")
    server.on_notification(ROOTS)(lambda ctx: None)
    with pytest.raises(ValueError, match="already"):
        server.on_notification(ROOTS)
    with pytest.raises(ValueError, match="protocol layer"):
        server.on_notification("notifications/cancelled")
