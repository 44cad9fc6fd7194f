"""Paused calls: stored as a string, resumed by another client, answered outside of a callback."""

from dataclasses import dataclass
from typing import Any

import pytest

import toolpost
from asking_server import DONE, FORM, STATE, Script, wants
from raw_server import Asked, Clock, RawServer, run
from revision_dates import DATES
from toolpost import Client, PausedCall, Question, SyncClient, ToolResult
from toolpost.errors import LocalProtocolError, RemoteProtocolError, RequestTimeout, ToolError
from toolpost.types import (
    CLIENT_CAPABILITIES,
    CallToolResult,
    ClientCapabilities,
    CreateMessageParams,
    ElicitationCapability,
    ElicitParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListCapability,
    Raw,
    Result,
    SamplingCapability,
    TextContent,
)

BEGIN = '{"toolpost":"paused call 1","name":"t","written":'
ANSWER = {"action": "accept", "content": {"n": 7}}


@dataclass
class Number:
    n: int


def declared(script: Script, number: int = 0) -> Any:
    return script.params(number)["_meta"][CLIENT_CAPABILITIES]


@pytest.mark.requirement("MRTR-18", "MRTR-20", "MRTR-21", "MRTR-22", "MRTR-23")
def test_a_call_is_begun_here_and_resumed_there():
    script = Script(
        wants("q", state=STATE), wants("r"), CallToolResult(content=[], structured_content={"n": 1})
    )

    async def begin() -> str:
        async with Client(RawServer({"tools/call": script})) as client:
            paused = await client.begin_call("book", {"city": "Rome", "n": 2.50}, meta={"my/key": 1})
            assert isinstance(paused, PausedCall)
            assert (paused.name, paused.arguments, paused.rounds) == ("book", {"city": "Rome", "n": 2.5}, 1)
            [(key, question)] = paused.questions.items()
            assert key == "q"
            assert isinstance(question, Question)
            assert question.method == "elicitation/create"
            assert isinstance(question.params, ElicitParams)
            assert question.params.message == "?"
            assert "Rome" not in repr(paused)
            return paused.to_json()

    async def resume(text: str, answers: Any) -> Any:
        async with Client(RawServer({"tools/call": script})) as client:
            await client.ping()  # another connection counts its requests otherwise
            return await client.resume(PausedCall.from_json(text), answers, result_type=Number)

    again = run(resume(run(begin()), {"q": {"n": 7}}))
    assert isinstance(again, PausedCall)
    assert (again.rounds, list(again.questions)) == (2, ["r"])
    done = run(resume(again.to_json(), {"r": None}))
    assert isinstance(done, ToolResult)
    assert done.data == Number(1)
    told = [script.params(number) for number in range(3)]
    assert [one.get("requestState") for one in told] == [None, STATE, None]
    assert [one.get("inputResponses") for one in told] == [None, {"q": ANSWER}, {"r": {"action": "decline"}}]
    assert {one["name"] for one in told} == {"book"}
    assert [one["arguments"] for one in told] == [{"city": "Rome", "n": 2.5}] * 3
    assert [one["_meta"]["my/key"] for one in told] == [1, 1, 1]
    assert declared(script) == declared(script, 1) == declared(script, 2) == {"elicitation": {}}


def paused_call() -> PausedCall:
    async def main() -> Any:
        async with Client(RawServer({"tools/call": Script(wants("q", state="s"))})) as client:
            return await client.begin_call("t")

    paused = run(main())
    assert isinstance(paused, PausedCall)
    return paused


def test_encoding_and_decoding_round_trip():
    paused = paused_call()
    again = PausedCall.from_json(paused.to_json())
    assert again == paused
    assert again.to_json() == paused.to_json()
    assert toolpost.PausedCall is PausedCall


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "\ud800",
        '{"toolpost":"paused call 2"}',
        '{"toolpost":"paused call 1"}',
        BEGIN + '{},"asked":{}}',
        BEGIN + '[],"asked":{"q":{"method":"roots/list"}}}',
        BEGIN + '{},"asked":{"q":{"method":"ping"}}}',
        BEGIN + '{},"asked":{"q":{"method":"elicitation/create"}}}',
        BEGIN + '{},"asked":{"q":{"method":"roots/list"}},"rounds":0}',
        BEGIN + '{},"asked":{"q":{"method":"roots/list"}},"spent":-1}',
        "[" * 100_000,
    ],
)
def test_an_invalid_paused_call_is_reported(text):
    with pytest.raises(ValueError, match="not a paused call: "):
        PausedCall.from_json(text)


def test_a_paused_call_is_a_text_and_nothing_else():
    with pytest.raises(TypeError, match="not bytes"):
        PausedCall.from_json(b"{}")  # type: ignore[arg-type] - it is the case

    async def main() -> None:
        async with Client(RawServer()) as client:
            with pytest.raises(TypeError, match="paused must be a PausedCall, not str"):
                await client.resume("{}", {})  # type: ignore[call-overload] - it is the case

    run(main())


@pytest.mark.parametrize(
    ("answers", "error", "text"),
    [
        ({}, ValueError, "'q' is missing"),
        ({"q": True, "r": True}, ValueError, "unknown key 'r'"),
        ({"q": {"n": "x"}}, LocalProtocolError, "'n' must be an integer"),
        ({"q": "yes"}, TypeError, "expected a dict .* not str"),
        (None, ValueError, "'q' is missing"),
        ("q", TypeError, "answers must be a mapping"),
    ],
)
def test_invalid_answers_are_reported_and_nothing_is_sent(answers, error, text):
    script = Script()

    async def main() -> None:
        async with Client(RawServer({"tools/call": script})) as client:
            with pytest.raises(error, match=text):
                await client.resume(paused_value, answers)

    paused_value = paused_call()
    run(main())
    assert script.seen == []


def test_a_callback_answers_the_omitted_questions():
    script = Script(DONE)

    async def main() -> None:
        async with Client(RawServer({"tools/call": script}), on_elicitation=lambda _: {"n": 7}) as client:
            await client.resume(paused_value, {})

    paused_value = paused_call()
    run(main())
    assert script.params(0)["inputResponses"] == {"q": ANSWER}


async def through(client: Client) -> None:
    """Run a call that is stored as a string after each round."""
    outcome = await client.begin_call("t")
    while isinstance(outcome, PausedCall):
        outcome = await client.resume(PausedCall.from_json(outcome.to_json()), {"q": True})


@pytest.mark.parametrize(
    ("options", "error", "rounds"),
    [
        ({"timeout": 60}, RemoteProtocolError, 11),
        ({"timeout": 5, "max_timeout": 7}, RequestTimeout, 3),
    ],
)
def test_the_bounds_travel_with_the_call(options, error, rounds):
    script = Script(*(wants("q") for _ in range(11)), takes=3.0)

    async def main() -> None:
        async with Client(RawServer({"tools/call": script}), **options) as client:
            with pytest.raises(error):
                await through(client)

    run(main(), Clock)
    assert len(script.seen) == rounds


def test_the_options_of_a_call_are_kept():
    failed = CallToolResult(content=[TextContent("no")], is_error=True)

    async def main() -> None:
        script = Script(wants("q"), failed, wants("q"), failed)
        async with Client(RawServer({"tools/call": script})) as client:
            paused = await client.begin_call("t", raise_on_error=False)
            assert isinstance(paused, PausedCall)
            result = await client.resume(PausedCall.from_json(paused.to_json()), {"q": True})
            assert isinstance(result, ToolResult)
            assert result.is_error
            paused = await client.begin_call("t")
            assert isinstance(paused, PausedCall)
            with pytest.raises(ToolError, match="no"):
                await client.resume(paused, {"q": True})

    run(main())


# --------------------------------------------------------------------- what is declared


@pytest.mark.requirement("ELIC-7", "ELIC-8")
@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        ({}, None, {"elicitation": {}}),
        ({"on_roots": ["file:///r"]}, None, {"elicitation": {}, "roots": {}}),
        ({"on_elicitation": lambda _: None}, None, {"elicitation": {}}),
        (
            {
                "on_elicitation": lambda _: None,
                "capabilities": ClientCapabilities(elicitation=ElicitationCapability(url={})),
            },
            None,
            {"elicitation": {"form": {}, "url": {}}},
        ),
        ({}, ClientCapabilities(sampling=SamplingCapability()), {"sampling": {}}),
    ],
)
def test_a_call_declares_its_capabilities(options, given, expected):
    script = Script(DONE, DONE, DONE)

    async def main() -> None:
        async with Client(RawServer({"tools/call": script}), **options) as client:
            await client.begin_call("t", capabilities=given)
            await client.call_tool("t", on_input=lambda _: {}, capabilities=given)
            await client.call_tool("t")

    run(main())
    assert declared(script, 0) == declared(script, 1) == expected
    if not options:
        assert declared(script, 2) == {}  # other calls are as they were


def test_undeclared_questions_are_an_error():
    async def main() -> None:
        script = Script(wants("q"))
        async with Client(RawServer({"tools/call": script})) as client:
            with pytest.raises(
                RemoteProtocolError, match="elicitation/create, which this client does not offer"
            ):
                await client.begin_call("t", capabilities=ClientCapabilities(roots=ListCapability()))
            with pytest.raises(ValueError, match="capabilities= requires on_input"):
                await client.call_tool("t", capabilities=ClientCapabilities())

    run(main())


def test_every_kind_of_question_is_typed():
    asks = {
        "user": InputRequest("elicitation/create", FORM),
        "model": InputRequest("sampling/createMessage", Raw(b'{"messages":[],"maxTokens":1}')),
        "roots": InputRequest("roots/list"),
    }
    script = Script(InputRequiredResult(input_requests=asks), DONE)
    everything = ClientCapabilities(
        elicitation=ElicitationCapability(), sampling=SamplingCapability(), roots=ListCapability()
    )

    async def main() -> None:
        async with Client(RawServer({"tools/call": script})) as client:
            paused = await client.begin_call("t", capabilities=everything)
            assert isinstance(paused, PausedCall)
            kinds = [type(question.params) for question in paused.questions.values()]
            assert kinds[:2] == [ElicitParams, CreateMessageParams]
            answers: Any = {"user": ElicitResult("cancel"), "model": "hi", "roots": ["file:///r"]}
            await client.resume(paused, answers)

    run(main())
    told = script.params(1)["inputResponses"]
    assert told["user"] == {"action": "cancel"}
    assert told["model"]["content"] == {"type": "text", "text": "hi"}
    assert told["roots"] == {"roots": [{"uri": "file:///r"}]}


# --------------------------------------------------------------------- the library keeps the loop


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_function_answers_a_whole_round(kind):
    script = Script(wants("q", "r", state="s"), wants("s"), DONE)
    seen: list[list[str]] = []

    def answer(paused: PausedCall) -> dict[str, Any]:
        seen.append(list(paused.questions))
        return {key: {"n": 7} for key in paused.questions}

    async def later(paused: PausedCall) -> dict[str, Any]:
        return answer(paused)

    async def main() -> None:
        async with Client(RawServer({"tools/call": script})) as client:
            result = await client.call_tool("t", on_input=later if kind == "async" else answer)
            assert result.text == "done"

    run(main())
    assert seen == [["q", "r"], ["s"]]
    assert script.params(1)["inputResponses"] == {"q": ANSWER, "r": ANSWER}
    assert script.params(2)["inputResponses"] == {"s": ANSWER}


@pytest.mark.parametrize(
    ("answers", "error", "text"),
    [
        ({}, ValueError, "'q' is missing"),
        ({"x": 1}, ValueError, "unknown key 'x'"),
        (7, TypeError, "on_input must be a mapping"),
    ],
)
def test_an_invalid_answer_of_a_function_is_reported(answers, error, text):
    async def main() -> None:
        async with Client(RawServer({"tools/call": Script(wants("q"))})) as client:
            with pytest.raises(error, match=text):
                await client.call_tool("t", on_input=lambda _: answers)

    run(main())


# --------------------------------------------------------------------- sessions, and without await


@pytest.mark.parametrize("date", DATES[:-1])
def test_in_a_session_the_callbacks_answer_while_the_call_runs(date):
    async def call(asked: Asked) -> Result:
        await asked.ask("roots/list")
        return DONE

    async def main() -> None:
        async with Client(RawServer({"tools/call": call}), revision=date, on_roots=["file:///r"]) as client:
            outcome = await client.begin_call("t")
            assert isinstance(outcome, ToolResult)
            assert outcome.text == "done"
            assert (await client.call_tool("t", on_input=lambda _: {})).text == "done"
            with pytest.raises(LocalProtocolError, match="cannot be resumed in a session"):
                await client.resume(paused_value, {"q": True})

    paused_value = paused_call()
    run(main())


def test_the_same_without_await():
    script = Script(wants("q"), DONE, wants("q"), DONE)
    with SyncClient(RawServer({"tools/call": script})) as client:
        paused = client.begin_call("t")
        assert isinstance(paused, PausedCall)
        done = client.resume(paused, {"q": {"n": 7}})
        assert isinstance(done, ToolResult)
        assert (
            client.call_tool("t", on_input=lambda asked: dict.fromkeys(asked.questions, True)).text == "done"
        )
    assert script.params(1)["inputResponses"] == {"q": ANSWER}
