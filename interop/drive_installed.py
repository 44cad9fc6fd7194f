"""Cases for our client with our kitchen server in an environment with only its dependencies.

They prove that a stdio server needs exactly two distributions.
"""

from importlib.metadata import distributions
from typing import Final

from cases import Suite
from environments import HOME, INSTALLED
from ours import Guest

__all__ = ["BARE"]

BARE: Final = Suite[Guest]()

TOOLS_OF_VENV: Final = {"pip", "setuptools"}
"""The distributions of an empty environment."""


@BARE.case("exactly two distributions are installed")
async def two(guest: Guest) -> None:
    del guest
    places = [str(place) for place in (HOME / INSTALLED).glob("lib/python*/site-packages")]
    names = {distribution.metadata["Name"].lower() for distribution in distributions(path=places)}
    assert names - TOOLS_OF_VENV == {"toolpost", "msgspec"}, names


@BARE.case("tools: list and call")
async def call(guest: Guest) -> None:
    assert len(await guest.client.list_tools()) >= 13
    assert (await guest.client.call_tool("add", {"a": 1, "b": 2})).text == "3"
