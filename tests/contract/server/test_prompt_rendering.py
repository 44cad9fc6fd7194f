"""Prompts: the list, and the filled-in messages."""

import asyncio
from typing import Any

import pytest

from toolpost import Client, Server
from toolpost.errors import InternalError, InvalidParams
from toolpost.types import Icon, TextContent

# --------------------------------------------------------------------- served


def made() -> Server:
    server = Server("s")

    @server.prompt
    def greet(name: str, times: int = 1) -> str:
        """Say hello."""
        return "hello " * times + name

    @server.prompt
    async def broken() -> Any:
        return 1

    return server


async def filled(name: str, arguments: dict[str, str] | None = None) -> str:
    async with Client(made()) as client:
        [message] = (await client.get_prompt(name, arguments)).messages
        assert isinstance(message.content, TextContent)
        return message.content.text


def test_a_prompt_is_filled_in():
    assert asyncio.run(filled("greet", {"name": "Ann"})) == "hello Ann"
    assert asyncio.run(filled("greet", {"name": "1", "times": "2"})) == "hello hello 1"


@pytest.mark.requirement("PRM-7")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "name: required but missing"),
        (None, "name: required but missing"),
        ({"name": "a", "times": "many"}, "times: "),
        ({"name": "a", "x": "1"}, "unknown argument 'x'"),
    ],
)
def test_arguments_that_do_not_fit_are_invalid(arguments, said):
    with pytest.raises(InvalidParams, match="Prompt 'greet': Invalid arguments:") as refused:
        asyncio.run(filled("greet", arguments))
    assert said in str(refused.value)


def test_messages_that_are_none_are_an_error_of_the_server():
    with pytest.raises(InternalError):
        asyncio.run(filled("broken"))


def test_listed_fields_can_be_updated_and_others_stay():
    server = made()
    [greet, _] = server.prompts
    greet.update(title="Greet")
    assert (greet.prompt.title, greet.prompt.description) == ("Greet", "Say hello.")
    greet.update(description="Say goodbye.")

    async def main() -> None:
        async with Client(server) as client:
            shown = (await client.list_prompts())[0]
            assert (shown.title, shown.description) == ("Greet", "Say goodbye.")
            assert shown.arguments is not None
            assert [one.name for one in shown.arguments] == ["name", "times"]

    asyncio.run(main())


def test_an_icon_that_clients_would_refuse_is_refused():
    server = Server("s")
    with pytest.raises(ValueError, match=r"'ws://example\.com' is not safe"):
        server.prompt(name="p", icons=[Icon("ws://example.com")])(lambda: "")
    assert len(server.prompts) == 0
