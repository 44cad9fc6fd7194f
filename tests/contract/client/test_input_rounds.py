"""Requests with several rounds of questions: the data of each round, their number and their duration."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from asking_server import DONE, STATE, Script, wants
from raw_server import Asked, Clock, RawServer, run
from toolpost import Client
from toolpost.errors import LocalProtocolError, RemoteProtocolError, RequestTimeout
from toolpost.types import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    PROTOCOL_VERSION,
    CallToolResult,
    ElicitParams,
    GetPromptResult,
    InputRequiredResult,
    ProgressParams,
    ReadResourceResult,
    Result,
    TextContent,
)


def called(script: Script, *, method: str = "tools/call", **options: Any) -> Any:
    """Return the result of a tool call."""

    async def main() -> Any:
        async with Client(RawServer({method: script}), **options) as client:
            return await client.call_tool("t", {"a": [1, 2.50]}, meta={"my/key": "x"})

    return run(main(), Clock)


async def seven(_: ElicitParams) -> dict[str, Any]:
    return {"n": 7}


@pytest.mark.requirement("MRTR-17", "MRTR-18", "MRTR-19", "MRTR-20", "MRTR-21", "MRTR-23")
def test_each_round_is_the_same_request_with_the_answers_of_the_last_one():
    heard: list[ProgressParams] = []

    async def hear(params: ProgressParams) -> None:
        heard.append(params)

    script = Script(wants("q", state=STATE), wants("r"), wants("s", state=""), DONE)
    assert called(script, on_elicitation=seven, on_progress=hear).text == "done"
    answer = {"action": "accept", "content": {"n": 7}}
    told = [script.params(number) for number in range(4)]
    assert [one.get("inputResponses") for one in told] == [None, {"q": answer}, {"r": answer}, {"s": answer}]
    assert [one.get("requestState") for one in told] == [None, STATE, None, ""]
    assert "requestState" not in told[2]
    ids = [asked.id for asked in script.seen]
    assert len(set(ids)) == 4
    for one, request_id in zip(told, ids, strict=True):
        assert (one["name"], one["arguments"]) == ("t", {"a": [1, 2.5]})
        meta = one["_meta"]
        assert {PROTOCOL_VERSION, CLIENT_CAPABILITIES, CLIENT_INFO, "my/key"} < meta.keys()
        assert meta["progressToken"] == request_id
    assert [params.progress_token for params in heard] == ids


@pytest.mark.requirement("MRTR-22")
def test_state_and_answers_of_one_request_never_get_into_another():
    script = Script(wants("q", state="first"), DONE, DONE, wants("q", state="second"), DONE)

    async def main() -> None:
        async with Client(RawServer({"tools/call": script}), on_elicitation=seven) as client:
            for _ in range(3):
                await client.call_tool("t")

    run(main())
    states = [script.params(number).get("requestState") for number in range(5)]
    assert states == [None, "first", None, None, "second"]
    assert ["inputResponses" in script.params(number) for number in range(5)] == [
        False,
        True,
        False,
        False,
        True,
    ]


@pytest.mark.requirement("MRTR-22")
def test_calls_that_run_side_by_side_keep_their_own_states():
    async def call(asked: Asked) -> Result:
        state = asked.params.request_state
        if state is None:
            return wants("q", state=asked.params.name)
        return CallToolResult(content=[TextContent(f"{asked.params.name}={state}")])

    async def main() -> None:
        async with Client(RawServer({"tools/call": call}), on_elicitation=seven) as client:
            names = [f"t{number}" for number in range(20)]
            results = await asyncio.gather(*(client.call_tool(name) for name in names))
            assert [result.text for result in results] == [f"{name}={name}" for name in names]

    run(main())


def test_prompts_and_resources_take_rounds_as_well():
    prompt = Script(wants("q", state="s"), GetPromptResult(messages=[]))
    resource = Script(wants("q", state="s"), ReadResourceResult(contents=[]))

    async def main() -> None:
        server = RawServer({"prompts/get": prompt, "resources/read": resource})
        async with Client(server, on_elicitation=seven) as client:
            await client.get_prompt("p")
            await client.read_resource("x://y")

    run(main())
    for script in (prompt, resource):
        assert script.params(1)["requestState"] == "s"
        assert script.params(1)["inputResponses"]["q"]["content"] == {"n": 7}


@pytest.mark.requirement("ELIC-42")
def test_an_answer_that_does_not_fit_ends_the_call_and_is_not_sent():
    async def wrong(_: ElicitParams) -> dict[str, Any]:
        return {"n": "secret"}

    script = Script(wants("q"))
    with pytest.raises(LocalProtocolError, match="'n' must be an integer"):
        called(script, on_elicitation=wrong)
    assert len(script.seen) == 1


# --------------------------------------------------------------------- how many, how long


def test_a_person_is_not_asked_for_ever():
    asked: list[ElicitParams] = []

    async def ask(params: ElicitParams) -> bool:
        asked.append(params)
        return True

    script = Script(*(wants("q") for _ in range(11)))
    with pytest.raises(RemoteProtocolError, match="asked for input more than 10 times"):
        called(script, on_elicitation=ask)
    assert len(asked) == 10  # what cannot be of use any more is not asked


def test_a_server_that_wants_a_request_again_gets_it_later_and_later():
    times: list[float] = []

    async def call(_: Asked) -> Result:
        times.append(asyncio.get_running_loop().time())
        return DONE if len(times) == 9 else InputRequiredResult(request_state="s")

    async def main() -> None:
        async with Client(RawServer({"tools/call": call})) as client:
            await client.call_tool("t")

    run(main(), Clock)
    pauses = [round(later - sooner, 6) for sooner, later in pairwise(times)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({"timeout": 4, "max_timeout": 7}, 2),  # 3 s each: the third would end after nine
        ({"timeout": 3.5, "max_timeout": 9.5}, 3),
        ({"timeout": 4, "max_timeout": None}, None),
        ({"timeout": None}, None),
    ],
)
def test_the_time_of_all_rounds_is_bounded(options, rounds):
    script = Script(*(wants("q") for _ in range(5)), DONE, takes=3.0)

    async def slow(_: ElicitParams) -> dict[str, Any]:
        await asyncio.sleep(1000)  # what a person takes is not counted
        return {"n": 1}

    if rounds is None:
        assert called(script, on_elicitation=slow, **options).text == "done"
        return
    with pytest.raises(RequestTimeout):
        called(script, on_elicitation=slow, **options)
    assert len(script.seen) == rounds + 1


def test_pauses_count_as_the_servers_time():
    async def main() -> None:
        script = Script(*(wants(state="s") for _ in range(9)))
        async with Client(RawServer({"tools/call": script}), timeout=1, max_timeout=2) as client:
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(RequestTimeout, match=r"no response to tools/call within 2 s"):
                await client.call_tool("t")
            assert loop.time() - began <= 2
            assert len(script.seen) == 5  # after 0, 0.1, 0.3, 0.7 and 1.5 s

    run(main(), Clock)
