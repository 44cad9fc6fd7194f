"""Thousands of simulations of clients and a server with random faults.

One number is the seed of a simulation. A failing test names it, and how to replay it step by step:
`FAULT_SEED=http:17 .venv/bin/pytest tests/unit/simulation -s`.
"""

import gc
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from actors import EXPECTED, Player
from fleet_actors import Guest
from fleet_scenario import over_fleet
from scenarios import over_channels, over_http
from simulated_loop import World

PLAYS: dict[str, Callable[[World], Coroutine[Any, Any, list[Player] | list[Guest]]]] = {
    "channels": over_channels,
    "http": over_http,
    "fleet": over_fleet,
}

COUNT = int(os.environ.get("FAULT_WORLDS", "0"))
WORLDS = {"channels": COUNT or 2000, "http": COUNT or 600, "fleet": COUNT or 1200}
"""The number of simulations of each scenario in one run; `FAULT_WORLDS` replaces all three."""

BLOCKS = {"channels": 8, "http": 4, "fleet": 8}
"""The number of tests that share them, so that several processes can run them."""

OUTCOMES = {
    "channels": {"ok", "cancelled", "RequestTimeout", "ChannelClosed", "ConnectFailed", "ToolError"},
    "http": {"ok", "cancelled", "RequestTimeout", "RequestFailed", "SessionLost", "ToolError"},
    "fleet": {"ok", "cut", "reported"},
}
"""How calls end, over all simulations of a block."""

SEEN = os.environ.get("FAULT_SEED", "")
"""The only simulation to run, with its trace."""


class Wrong(AssertionError):
    """A simulation broke a rule."""


def simulate(name: str, seed: int) -> tuple[World, list[Player] | list[Guest]]:
    """Run a simulation to its end; return its loop and its actors.

    Raises:
        Wrong: a rule was broken.
    """
    world = World(seed)
    wrong: list[str] = []
    players: list[Player] | list[Guest] = []
    try:
        players = world.live(PLAYS[name])
        wrong = players[0].ledger.wrong
    except Exception as error:  # noqa: BLE001 - the seed must be reported for any exception
        wrong = [f"it did not come to its end: {error!r}"]
    wrong += [error for error in world.errors if not EXPECTED.match(error)]
    if SEEN:
        print("", *world.trace, *world.errors, sep="\n")  # noqa: T201 - that is what it is for
    if wrong:
        again = f"see it with FAULT_SEED={name}:{seed} .venv/bin/pytest tests/unit/simulation -s"
        raise Wrong("\n  ".join([f"in world {seed} of {name}", *dict.fromkeys(wrong), again]))
    return world, players


if SEEN:

    def test_a_world():
        name, seed = SEEN.split(":")
        simulate(name, int(seed))

else:

    @pytest.mark.usefixtures("unheard")
    @pytest.mark.parametrize(
        ("name", "block"), [(name, block) for name in PLAYS for block in range(BLOCKS[name])]
    )
    def test_worlds(name, block):
        outcomes: Counter[str] = Counter()
        wrong: list[Wrong] = []
        gc.freeze()  # what is there stays, and need not be looked at again
        for number, seed in enumerate(range(block, WORLDS[name], BLOCKS[name])):
            try:
                _, players = simulate(name, seed)
            except Wrong as error:
                wrong.append(error)
            else:
                for player in players:
                    outcomes.update(player.outcomes)
            if number % 20 == 0:
                gc.collect()  # no world does that, so that it comes when it comes
        gc.unfreeze()
        if wrong:
            pytest.fail(f"{len(wrong)} worlds went wrong; the first:\n{wrong[0]}", pytrace=False)
        # Faults affect some clients, but not all.
        assert OUTCOMES[name] <= outcomes.keys()
        assert outcomes["ok"] > outcomes.total() / 3, outcomes

    @pytest.mark.parametrize("name", PLAYS)
    def test_the_same_number_is_the_same_world(name):
        traces = [[simulate(name, seed)[0].trace for seed in range(10)] for _ in range(2)]
        assert traces[0] == traces[1]
        assert traces[0][0] != traces[0][1]
