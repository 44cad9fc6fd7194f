"""A list change costs no work per idle session: a session reads it when it returns."""

import sys
from pathlib import Path
from types import FrameType

import toolpost
from hosted import Site, hosted, kitchen, legacy, run
from raw_http import Wire
from toolpost import Server

SOURCE = str(Path(toolpost.__file__).parent)
FEW, MANY = 2, 200


async def count_calls(server: Server, wire: Wire, name: str) -> int:
    """Count the calls of our functions from a change of the tools until one client is notified."""
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(SOURCE)

    sys.setprofile(note)
    try:
        server.tool(name=name)(lambda: "")
        assert (await wire.event()).json["method"] == "notifications/tools/list_changed"
    finally:
        sys.setprofile(None)
    return calls


async def listen(site: Site) -> Wire:
    session = await site.open()
    wire, _ = await site.begin("GET", {**legacy(session), "Accept": "text/event-stream"})
    assert (await wire.event()).data == ""  # the stream is open
    return wire


def test_a_list_change_costs_the_same_with_many_idle_sessions():
    async def main():
        server, costs = kitchen(), []
        async with hosted(server) as site:
            wire = await listen(site)
            for count in (FEW, MANY):
                sessions = [await site.open() for _ in range(count)]
                costs.append(await count_calls(server, wire, f"with {count} sessions".replace(" ", "_")))
            assert costs[1] < costs[0] + MANY / 2, costs
            late, _ = await site.begin("GET", {**legacy(sessions[0]), "Accept": "text/event-stream"})
            assert (await late.event()).data == ""
            assert (await late.event()).json["method"] == "notifications/tools/list_changed"

    run(main)
