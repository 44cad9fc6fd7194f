"""Which subscribers are notified of a change, and how often."""

import asyncio
from collections.abc import Callable

from toolpost.server.runtime import change_broadcast
from toolpost.server.runtime.change_broadcast import LIST_CHANGED, ChangeBroadcaster
from toolpost.types.notifications import (
    ElicitationCompleteParams,
    NotificationParams,
    ResourceUpdatedParams,
)

UPDATED = "notifications/resources/updated"


class Ear:
    """A listener that records notifications."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None]] = []

    def on_change(self, method: str, params: NotificationParams) -> None:
        self.heard.append((method, getattr(params, "uri", None)))


async def until(condition: Callable[[], bool]) -> None:
    """Run the loop until the condition is true."""
    while not condition():  # noqa: ASYNC110 - the condition has no event
        await asyncio.sleep(0)


async def turn() -> None:
    """Run one iteration of the loop."""
    await asyncio.sleep(0)


def test_changes_in_one_loop_iteration_are_reported_once():
    async def main() -> None:
        announcer, one, two = ChangeBroadcaster(), Ear(), Ear()
        announcer.broadcast_list_changed("tools")  # no server is listening
        announcer.add_subscriber(one)
        announcer.add_subscriber(two)
        for _ in range(100):
            announcer.broadcast_list_changed("tools")
            announcer.broadcast_list_changed("prompts")
            announcer.broadcast(UPDATED, ResourceUpdatedParams(uri="a://b"))
        announcer.broadcast(UPDATED, ResourceUpdatedParams(uri="a://c"))
        assert one.heard == []
        await turn()
        expected = [
            (LIST_CHANGED["tools"], None),
            (LIST_CHANGED["prompts"], None),
            (UPDATED, "a://b"),
            (UPDATED, "a://c"),
        ]
        assert one.heard == two.heard == expected
        announcer.remove_subscriber(two)
        announcer.remove_subscriber(two)
        announcer.broadcast_list_changed("resources")
        await until(lambda: len(one.heard) > len(expected))
        assert one.heard == [*expected, (LIST_CHANGED["resources"], None)]
        assert two.heard == expected

    asyncio.run(main())


def test_changes_in_quick_succession_are_reported_together(monkeypatch):
    monkeypatch.setattr(change_broadcast, "BROADCAST_INTERVAL", 60)

    async def main() -> None:
        announcer, ear = ChangeBroadcaster(), Ear()
        announcer.add_subscriber(ear)
        for _ in range(100):
            announcer.broadcast_list_changed("tools")
            await turn()
        assert ear.heard == [(LIST_CHANGED["tools"], None)]

    asyncio.run(main())


def test_a_listener_may_leave_during_a_notification():
    async def main() -> None:
        announcer = ChangeBroadcaster()

        class Leaving(Ear):
            def on_change(self, method: str, params: NotificationParams) -> None:
                super().on_change(method, params)
                announcer.remove_subscriber(self)

        ear = Leaving()
        announcer.add_subscriber(ear)
        announcer.broadcast_list_changed("tools")
        await turn()
        announcer.broadcast_list_changed("tools")
        await turn()
        assert len(ear.heard) == 1

    asyncio.run(main())


def test_a_change_may_be_reported_from_any_thread():
    async def main() -> None:
        announcer, ear = ChangeBroadcaster(), Ear()
        announcer.add_subscriber(ear)
        await asyncio.to_thread(announcer.broadcast_list_changed, "tools")
        await turn()
        assert len(ear.heard) == 1

    asyncio.run(main())


# --------------------------------------------------------------------- changes for clients that were away


def test_changes_are_kept_by_their_positions():
    announcer = ChangeBroadcaster()
    start = announcer.position
    assert announcer.get_changes_after(start) == []
    announcer.broadcast_list_changed("tools")
    announcer.broadcast(UPDATED, ResourceUpdatedParams(uri="a:"))
    middle = announcer.position
    announcer.broadcast("notifications/elicitation/complete", ElicitationCompleteParams(elicitation_id="e"))
    announcer.broadcast_list_changed("tools")  # the second counts, at its own place
    found = announcer.get_changes_after(start)
    assert found is not None
    assert [(change.number - start, change.method.partition("/")[2]) for change in found] == [
        (2, "resources/updated"),
        (3, "elicitation/complete"),
        (4, "tools/list_changed"),
    ]
    assert announcer.get_changes_after(middle) == found[1:]
    assert announcer.get_changes_after(announcer.position) == []


def test_a_position_is_unknown_that_is_of_another_process_or_too_old(monkeypatch):
    monkeypatch.setattr(change_broadcast, "MAX_KEPT_CHANGES", 3)
    announcer = ChangeBroadcaster()
    start = announcer.position
    for number in range(5):
        announcer.broadcast(UPDATED, ResourceUpdatedParams(uri=f"r:{number}"))
    for position, known in [
        (start - 1, False),
        (start, False),
        (start + 1, False),
        (start + 2, True),
        (start + 5, True),
        (start + 6, False),
        (-1, False),
    ]:
        found = announcer.get_changes_after(position)
        assert (None if found is None else len(found)) == (start + 5 - position if known else None)


def test_a_change_of_another_worker_is_sent_to_all_but_its_origin():
    async def main():
        announcer, one, reporter = ChangeBroadcaster(), Ear(), Ear()
        for ear in (one, reporter):
            announcer.add_subscriber(ear)
        start = announcer.position
        announcer.repeat((LIST_CHANGED["tools"], "{}"), exclude=reporter)
        await asyncio.sleep(0)
        assert (len(one.heard), len(reporter.heard)) == (1, 0)
        found = announcer.get_changes_after(start)
        assert found is not None
        assert [change.method for change in found] == [LIST_CHANGED["tools"]]

    asyncio.run(main())
