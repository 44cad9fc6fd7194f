"""Calls, clients and processes that share a token: calls stay parallel, and log in or refresh only once."""

import asyncio

from toolpost.single_flight import SingleFlight


def test_work_is_done_once_for_all_and_its_error_is_for_all():
    async def work() -> None:
        flight: SingleFlight[int] = SingleFlight()
        begun = 0

        async def count() -> int:
            nonlocal begun
            begun += 1
            await asyncio.sleep(0)
            if begun == 2:
                raise ValueError("no")
            return begun

        assert await asyncio.gather(*(flight.join(count) for _ in range(5))) == [1] * 5
        said = await asyncio.gather(*(flight.join(count) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in said] == [ValueError] * 3
        assert not flight.is_running

    asyncio.run(work())
