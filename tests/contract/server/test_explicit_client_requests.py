"""A handler that returns `InputRequired`: named questions and a state, in both eras."""

import asyncio
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Handler, InputRequired, RPCError
from toolpost.errors import InvalidParams
from toolpost.types import (
    CallToolResult,
    ClientRequestParams,
    CreateMessageParams,
    ElicitParams,
    ElicitResult,
    GetPromptResult,
    PromptMessage,
    ResourceContents,
    SamplingMessage,
    TextContent,
)

NEW, SESSION = DATES[-1], DATES[-2]
BOTH = pytest.mark.parametrize("revision", [SESSION, NEW])

NUMBER = ElicitParams(
    message="Which number?",
    requested_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
)


class ByHand(Handler):
    """Asks three questions at once, then one more; adds up numbers until the answer is 0."""

    def __init__(self, **options: Any) -> None:
        super().__init__("by hand", **options)
        self.seen: list[Any] = []

    async def call_tool(
        self, name: str, arguments: dict[str, Any], ctx: Context
    ) -> CallToolResult | InputRequired:
        self.seen.append((sorted(ctx.input_responses), ctx.request_state))
        responses: Any = ctx.input_responses
        if name == "wait":
            done = ctx.request_state == "twice"
            return said("done") if done else InputRequired(state="twice" if ctx.request_state else "once")
        if name == "add":
            total: Any = ctx.request_state or 0
            if "n" in responses:
                if not responses["n"].content["n"]:
                    return said(str(total))
                total += responses["n"].content["n"]
            return InputRequired({"n": NUMBER}, total)
        if not responses:
            turn = SamplingMessage("user", TextContent("A poem"))
            poem = CreateMessageParams(messages=[turn], max_tokens=9)
            return InputRequired({"n": NUMBER, "poem": poem, "places": ClientRequestParams()}, {"since": 1})
        text = f"{responses['n'].content['n']} {responses['poem'].text} {responses['places'].roots[0].uri}"
        return said(f"{text} {ctx.request_state}")

    async def get_prompt(
        self, name: str, arguments: dict[str, str], ctx: Context
    ) -> GetPromptResult | InputRequired:
        responses: Any = ctx.input_responses
        if "n" not in responses:
            return InputRequired({"n": NUMBER})
        return GetPromptResult([PromptMessage("user", TextContent(str(responses["n"].content["n"])))])

    async def read_resource(self, uri: str, ctx: Context) -> list[ResourceContents] | InputRequired:
        responses: Any = ctx.input_responses
        if "n" not in responses:
            return InputRequired({"n": NUMBER})
        return [ResourceContents(uri, text=str(responses["n"].content["n"]))]


def said(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text)])


def host(*numbers: int) -> dict[str, Any]:
    left = list(numbers or (5,))
    return {
        "on_elicitation": lambda _: {"n": left.pop(0)},
        "on_sampling": lambda _: "Roses.",
        "on_roots": ["file:///a"],
    }


@BOTH
def test_all_questions_are_asked_and_their_answers_are_typed(revision):
    server = ByHand()

    async def main() -> tuple[str, str, str | None]:
        async with Client(server, revision=revision, **host(5, 6, 7)) as client:
            told = await client.call_tool("three")
            prompt: Any = await client.get_prompt("p")
            read: Any = await client.read_resource("a://b")
            return told.text, prompt.messages[0].content.text, read.contents[0].text

    assert asyncio.run(main()) == ("5 Roses. file:///a {'since': 1}", "6", "7")
    assert server.seen == [([], None), (["n", "places", "poem"], {"since": 1})]


@BOTH
def test_a_repeated_question_is_asked_again(revision):
    async def main() -> str:
        async with Client(ByHand(), revision=revision, **host(5, 6, 7, 0)) as client:
            return (await client.call_tool("add")).text

    assert asyncio.run(main()) == "18"


@BOTH
@pytest.mark.requirement("MRTR-5")
def test_a_state_alone_makes_the_client_retry(revision):
    async def main() -> str:
        async with Client(ByHand(), revision=revision, **host()) as client:
            return (await client.call_tool("wait")).text

    assert asyncio.run(main()) == "done"


@pytest.mark.requirement("MRTR-3", "MRTR-4", "MRTR-8", "MRTR-10", "MRTR-13", "MRTR-15")
def test_the_returned_state_is_sealed_and_validated():
    server = ByHand()

    async def main() -> None:
        async with Client(server, revision=NEW, **host()) as client:
            first: Any = await client.request("tools/call", {"name": "three"})
            assert {key: ask.method for key, ask in first.input_requests.items()} == {
                "n": "elicitation/create",
                "poem": "sampling/createMessage",
                "places": "roots/list",
            }
            assert "since" not in first.request_state
            with pytest.raises(InvalidParams, match="requestState is not valid"):
                await client.request(
                    "tools/call", {"name": "three", "requestState": "x" + first.request_state}
                )
            # Invalid and unrequested answers are dropped, so the method asks again.
            answers = {"n": {"action": "perhaps"}, "poem": 5, "other": {"action": "accept"}}
            retry = {"name": "three", "requestState": first.request_state, "inputResponses": answers}
            again: Any = await client.request("tools/call", retry)
            assert sorted(again.input_requests) == ["n", "places", "poem"]

    asyncio.run(main())
    assert server.seen == [([], None), ([], {"since": 1})]


@pytest.mark.requirement("MRTR-22")
def test_unrequested_answers_are_ignored():
    server = ByHand()

    async def main() -> None:
        async with Client(server, revision=NEW, **host()) as client:
            answers = {"n": {"action": "accept", "content": {"n": 5}}}
            await client.request("tools/call", {"name": "three", "inputResponses": answers})

    asyncio.run(main())
    assert server.seen == [([], None)]


@BOTH
def test_a_client_that_declared_nothing_is_not_asked(revision):
    async def main() -> None:
        async with Client(ByHand(), revision=revision) as client:
            await client.call_tool("three")

    with pytest.raises(RPCError, match="elicitation"):
        asyncio.run(main())


@BOTH
def test_endless_questions_are_stopped(revision):
    async def main() -> None:
        async with Client(ByHand(), revision=revision, **host(*[1] * 200)) as client:
            await client.call_tool("add")

    with pytest.raises(Exception, match=r"asked for input more than 10 times|no result after 100 rounds"):
        asyncio.run(main())


@BOTH
def test_middleware_may_answer_instead_of_the_client(revision):
    async def answer(call: Any, go_on: Any) -> Any:
        if call.method != "elicitation/create":
            return await go_on(call)
        return ElicitResult(action="accept", content={"n": 99})

    asked: list[str] = []

    async def main() -> str:
        options: dict[str, Any] = {**host(), "on_elicitation": lambda params: asked.append(params.message)}
        async with Client(ByHand(middleware=[answer]), revision=revision, **options) as client:
            return (await client.call_tool("three")).text

    assert asyncio.run(main()) == "99 Roses. file:///a {'since': 1}"
    assert asked == []


class Mixed(Handler):
    """Asks in both ways, under the same name."""

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Context) -> Any:
        first = await ctx.elicit("First?", int, key="n")
        responses: Any = ctx.input_responses
        if "n" not in responses:
            return InputRequired({"n": NUMBER}, (1, 2))
        return said(f"{first} {responses['n'].content} {ctx.request_state}")


@BOTH
def test_both_ways_to_ask_go_together(revision):
    def elicit(params: Any) -> dict[str, Any]:
        return {"value": 1} if params.message == "First?" else {"n": 2}

    async def main() -> str:
        async with Client(Mixed(), revision=revision, on_elicitation=elicit) as client:
            return (await client.call_tool("x")).text

    assert asyncio.run(main()) == "Accepted(data=1) {'n': 2} [1, 2]"


def test_questions_are_sent_all_or_none():
    asked: list[str] = []

    async def main() -> None:
        async with Client(
            ByHand(), revision=SESSION, on_elicitation=lambda params: asked.append(params.message)
        ) as client:
            await client.call_tool("three")

    with pytest.raises(RPCError, match="sampling"):
        asyncio.run(main())
    assert asked == []


@pytest.mark.parametrize(
    ("questions", "error", "told"),
    [
        (None, ValueError, "at least one question or a state"),
        ({}, ValueError, "at least one question or a state"),
        ({str(n): NUMBER for n in range(257)}, ValueError, "too many questions: 257"),
        ({"a": "What?"}, TypeError, "question 'a' must be .* not str"),
        ({"a": TextContent("x")}, TypeError, "question 'a' must be .* not TextContent"),
    ],
)
def test_an_invalid_question_is_rejected_at_once(questions, error, told):
    with pytest.raises(error, match=told):
        InputRequired(questions)


def test_its_repr_shows_its_questions():
    assert repr(InputRequired({"a": ClientRequestParams(), "b": NUMBER})) == "InputRequired(a, b)"
