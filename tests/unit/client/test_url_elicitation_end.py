"""URL elicitations: a completion is reported only while the elicitation is in progress."""

from typing import Any

import pytest

from raw_server import Asked, RawServer, run
from toolpost.client.client import Client
from toolpost.client.connection import incoming
from toolpost.errors import UrlElicitationRequired
from toolpost.protocol.methods import DATES
from toolpost.types import (
    CallToolResult,
    ClientCapabilities,
    ElicitationCapability,
    ElicitationCompleteParams,
    ElicitParams,
    Result,
    TextContent,
)

SESSION = DATES[3]
COMPLETE = "notifications/elicitation/complete"
DONE = CallToolResult(content=[TextContent("done")])
URLS = ClientCapabilities(elicitation=ElicitationCapability(form={}, url={}))


def visit(number: str) -> ElicitParams:
    return ElicitParams(message="?", mode="url", url="https://a.example", elicitation_id=number)


def heard(call: Any, answers: dict[str, Any]) -> tuple[list[str], dict[str, int]]:
    """The ids whose completion is reported, and the discarded messages."""
    told: list[str] = []

    async def hear(method: str, params: Any) -> None:
        assert method == COMPLETE
        told.append(params.elicitation_id)

    async def main() -> dict[str, int]:
        async with Client(
            RawServer({"tools/call": call}),
            revision=SESSION,
            capabilities=URLS,
            on_elicitation=lambda params: answers[str(params.elicitation_id)],
            on_notification=hear,
        ) as client:
            try:
                await client.call_tool("t")
            except UrlElicitationRequired:
                await client.ping()
        return dict(client.stats.discarded)

    return told, run(main())


async def ends(asked: Asked, *numbers: str) -> None:
    for number in numbers:
        await asked.say(COMPLETE, ElicitationCompleteParams(elicitation_id=number))


@pytest.mark.requirement("ELIC-17", "ELIC-22")
def test_a_completion_is_reported_once_and_only_while_the_elicitation_is_in_progress():
    async def call(asked: Asked) -> Result:
        await ends(asked, "yes")  # before it was asked for
        await asked.ask("elicitation/create", visit("yes"))
        await asked.ask("elicitation/create", visit("no"))
        await asked.ask("elicitation/create", visit(' "odd\n" '))
        await ends(asked, "unknown", "no", "yes", "yes", ' "odd\n" ')
        return DONE

    told, discarded = heard(call, {"yes": True, "no": False, ' "odd\n" ': True})
    assert told == ["yes", ' "odd\n" ']
    assert discarded == {"completion of an unknown elicitation": 4}


@pytest.mark.requirement("ELIC-17", "ELIC-18")
def test_a_refused_request_names_the_url_and_can_be_repeated():
    needed = [{"mode": "url", "message": "Log in", "url": "https://a.example/x", "elicitationId": "7"}]
    visited: list[str] = []

    async def call(asked: Asked) -> Result:
        if not visited:
            await ends(asked, "7")
            raise UrlElicitationRequired("Log in first", {"elicitations": needed})
        return DONE

    async def main() -> None:
        async with Client(RawServer({"tools/call": call}), revision=SESSION) as client:
            with pytest.raises(UrlElicitationRequired, match="Log in first") as caught:
                await client.call_tool("t")
            [elicitation] = caught.value.elicitations
            assert (elicitation["message"], elicitation["url"]) == ("Log in", "https://a.example/x")
            visited.append(elicitation["url"])  # the user has been there
            assert (await client.call_tool("t")).text == "done"

    run(main())


def test_the_completion_after_a_refusal_is_reported():
    known = incoming.UrlElicitations()
    entries: list[Any] = [
        {"message": "?", "url": "https://a.example", "elicitationId": "1"},
        {"message": "?", "url": "https://a.example"},
        7,
    ]
    known.record_error(UrlElicitationRequired("?", {"elicitations": entries}))
    known.record_error(UrlElicitationRequired("?"))
    assert known.is_expected(ElicitationCompleteParams(elicitation_id="1"))
    assert not known.is_expected(ElicitationCompleteParams(elicitation_id="1"))
    assert known.is_expected(None)


def test_elicitations_in_progress_are_bounded():
    known = incoming.UrlElicitations()
    for number in range(incoming.MAX_URL_ELICITATIONS + 1):
        known.record_request(visit(str(number)))
    assert not known.is_expected(ElicitationCompleteParams(elicitation_id="0"))
    assert known.is_expected(ElicitationCompleteParams(elicitation_id="1"))
    assert known.is_expected(ElicitationCompleteParams(elicitation_id=str(incoming.MAX_URL_ELICITATIONS)))
