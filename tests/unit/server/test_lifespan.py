"""A lifespan that several conversations share."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from toolpost.server.serving import SharedLifespan


class Seen:
    """A context that notes when it is entered and left."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.entering = asyncio.Event()
        self.entering.set()
        self.leaving = asyncio.Event()
        self.leaving.set()
        self.broken = False

    @asynccontextmanager
    async def enter(self) -> AsyncGenerator[int]:
        await self.entering.wait()
        if self.broken:
            raise ValueError("no life")
        self.log.append("+")
        yield len(self.log)
        await self.leaving.wait()
        self.log.append("-")


def test_it_is_entered_by_the_first_and_left_by_the_last():
    async def main() -> None:
        seen = Seen()
        life = SharedLifespan(seen.enter)
        async with life as one:
            async with life as two:
                assert one == two == 1
            assert seen.log == ["+"]
        assert seen.log == ["+", "-"]
        async with life as three:
            assert three == 3
        assert seen.log == ["+", "-", "+", "-"]

    asyncio.run(main())


def test_a_client_that_arrives_during_entry_or_exit_waits():
    async def main() -> None:
        seen = Seen()
        life = SharedLifespan(seen.enter)
        inside = 0
        go = asyncio.Event()

        async def hold() -> None:
            nonlocal inside
            async with life:
                inside += 1
                await go.wait()

        seen.entering.clear()
        first = [asyncio.create_task(hold()) for _ in range(3)]
        await asyncio.sleep(0)
        assert inside == 0
        seen.entering.set()
        seen.leaving.clear()
        go.set()
        while inside < 3:  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0)
        later = [asyncio.create_task(hold()) for _ in range(3)]
        await asyncio.sleep(0)
        seen.leaving.set()
        await asyncio.gather(*first, *later)
        assert seen.log in (["+", "-"], ["+", "-", "+", "-"])

    asyncio.run(main())


def test_a_context_that_cannot_be_entered_is_tried_again():
    async def main() -> None:
        seen = Seen()
        life = SharedLifespan(seen.enter)
        seen.broken = True
        with pytest.raises(ValueError, match="no life"):
            async with life:
                pass
        seen.broken = False
        async with life:
            pass
        assert seen.log == ["+", "-"]

    asyncio.run(main())


def test_one_life_after_the_other_in_several_loops():
    seen = Seen()
    life = SharedLifespan(seen.enter)

    async def crowd() -> None:
        async def hold() -> None:
            async with life:
                await asyncio.sleep(0)

        await asyncio.gather(*(hold() for _ in range(5)))

    asyncio.run(crowd())
    asyncio.run(crowd())
    assert seen.log == ["+", "-", "+", "-"]
