"""`Ask`, a question on a parameter: the questions, their order, and the values for the function."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Optional

import pytest
from annotated_types import Ge
from typing_extensions import TypeAliasType

from revision_dates import DATES
from toolpost import (
    Accepted,
    Ask,
    Cancelled,
    Client,
    Context,
    Declined,
    RPCError,
    Server,
    SignatureError,
    SyncContext,
    ToolError,
)
from toolpost.errors import UserRejected
from toolpost.types import ElicitResult, Tool

Sure = TypeAliasType("Sure", Annotated[bool, Ask("Sure?")])
BOTH = pytest.mark.parametrize("revision", DATES[-2:])


@dataclass
class Confirm:
    sure: bool


def called(server: Server, revision: str, *, said: Any = None, host: bool = True, **arguments: Any) -> Any:
    """Return the result of the tool `act`, and the questions that the user saw, in rounds of one call."""
    seen: list[str] = []

    def elicit(params: Any) -> Any:
        seen.append(params.message)
        fields = params.requested_schema["properties"]
        return said[params.message] if said else {name: True if name == "sure" else "x" for name in fields}

    async def main() -> str:
        async with Client(server, revision=revision, on_elicitation=elicit if host else None) as client:
            return (await client.call_tool("act", arguments)).text

    return asyncio.run(main()), seen


@BOTH
def test_a_question_is_asked_and_is_not_an_argument(revision):
    server = Server("s")

    @server.tool
    async def act(path: str, sure: Annotated[Confirm, Ask("Really delete {path}?")], times: int = 2) -> str:
        return f"{path} {sure.sure} {times}"

    handle = server.tools.get("act")
    assert handle is not None
    assert list(handle.tool.input_schema["properties"]) == ["path", "times"]
    assert called(server, revision, path="/a") == ("/a True 2", ["Really delete /a?"])


@BOTH
@pytest.mark.parametrize("is_async", [True, False])
def test_a_function_finds_out_or_lets_the_user_be_asked(revision, is_async):
    server = Server("s")

    async def of_a_loop(path: str, ctx: Context) -> Any:
        assert ctx.revision == revision
        return "nobody" if path == "/tmp" else Ask(f"Who owns {path}?")

    def of_a_thread(path: str, ctx: SyncContext) -> Any:
        assert ctx.revision == revision
        return "nobody" if path == "/tmp" else Ask(f"Who owns {path}?")

    owner = of_a_loop if is_async else of_a_thread

    @server.tool
    def act(path: str, who: Annotated[str, Ask(owner)]) -> str:
        return f"{path} {who}"

    assert called(server, revision, path="/tmp") == ("/tmp nobody", [])
    assert called(server, revision, path="/a") == ("/a x", ["Who owns /a?"])


@BOTH
def test_a_shared_resolver_runs_once_per_run(revision):
    server = Server("s")
    runs: list[str] = []

    async def account(ctx: Context) -> str:
        runs.append("account")
        answer = await ctx.elicit("Which account?", str)
        assert isinstance(answer, Accepted)
        runs.append("known")
        return answer.data

    def money(account: Annotated[str, Ask(account)]) -> int:
        return len(account)

    def name(account: Annotated[str, Ask(account)], city: str) -> str:
        return f"{account} of {city}"

    @server.tool
    async def act(
        city: str,
        left: Annotated[int, Ask(money)],
        owner: Annotated[str, Ask(name)],
        sure: Annotated[Confirm, Ask("Take all of {owner}, {left:02d}, from {city}?")],
    ) -> str:
        return f"{left} {owner} {sure.sure}"

    text, seen = called(server, revision, city="Oslo")
    assert text == "1 x of Oslo True"
    assert seen == ["Which account?", "Take all of x of Oslo, 01, from Oslo?"]
    assert runs.count("known") == (1 if revision == DATES[-2] else 2)  # once in each run that has the answer


@BOTH
def test_questions_that_do_not_wait_for_each_other_travel_together(revision):
    server = Server("s")
    rounds: list[str] = []

    def start() -> str:
        rounds.append("run")
        return "go"

    @server.tool
    async def act(
        started: Annotated[str, Ask(start)],
        a: Annotated[str, Ask("A?")],
        b: Annotated[str, Ask("B?")],
        c: Annotated[str, Ask("C, after {a}?")],
    ) -> str:
        return f"{started} {a} {b} {c}"

    text, seen = called(server, revision)
    assert (text, seen) == ("go x x x", ["A?", "B?", "C, after x?"])
    assert len(rounds) == (1 if revision == DATES[-2] else 3)


@BOTH
@pytest.mark.requirement("ELIC-29", "ELIC-30")
@pytest.mark.parametrize(("action", "words"), [("decline", "declined"), ("cancel", "did not answer")])
def test_a_user_who_does_not_answer_ends_the_call(revision, action, words):
    server = Server("s")

    @server.tool
    async def act(sure: Annotated[bool, Ask("Sure?")]) -> str:
        raise AssertionError("it must not run")

    with pytest.raises(ToolError, match=f"The user {words}: Sure\\?"):
        called(server, revision, said={"Sure?": ElicitResult(action=action)})


@BOTH
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"value": 3}, "Accepted(data=3)"),
        (None, "Declined()"),
        (ElicitResult(action="cancel"), "Cancelled()"),
    ],
)
def test_a_function_may_want_the_answer_itself(revision, said, told):
    server = Server("s")

    @server.tool
    async def act(many: Annotated[Accepted[int] | Declined | Cancelled, Ask("How many?")]) -> str:
        return repr(many)

    assert called(server, revision, said={"How many?": said})[0] == told


@BOTH
def test_a_union_selects_the_accepted_answers(revision):
    server = Server("s")

    @server.tool
    async def act(many: Annotated[Accepted[int] | Declined, Ask("How many?")]) -> str:
        return repr(many)

    assert called(server, revision, said={"How many?": None})[0] == "Declined()"
    with pytest.raises(ToolError, match="did not answer"):
        called(server, revision, said={"How many?": ElicitResult(action="cancel")})


@BOTH
def test_without_elicitation_a_default_is_used(revision):
    server = Server("s")

    @server.tool
    async def act(many: Annotated[int, Ask("How many?")] = 7) -> str:
        return str(many)

    assert called(server, revision, host=False) == ("7", [])
    assert called(server, revision, said={"How many?": {"value": 2}})[0] == "2"


@BOTH
def test_without_elicitation_the_call_fails(revision):
    server = Server("s")

    @server.tool
    async def act(many: Annotated[int, Ask("How many?")]) -> str:
        return str(many)

    with pytest.raises((ToolError, RPCError), match="elicitation"):
        called(server, revision, host=False)


def test_limits_of_the_type_are_kept():
    server = Server("s")

    @server.tool
    async def act(many: Annotated[int, Ge(1), Ask("How many?")]) -> str:
        return str(many)

    seen: list[Any] = []

    def elicit(params: Any) -> Any:
        seen.append(params.requested_schema)
        return {"value": 2}

    async def main() -> str:
        async with Client(server, on_elicitation=elicit) as client:
            return (await client.call_tool("act")).text

    assert asyncio.run(main()) == "2"
    assert seen[0]["properties"]["value"] == {"type": "integer", "minimum": 1}


@BOTH
def test_prompts_templates_and_raw_schemas_ask_too(revision):
    server = Server("s")

    @server.prompt
    async def poem(about: str, style: Annotated[str, Ask("How shall {about} be?")]) -> str:
        return f"{about} {style}"

    @server.resource("notes://{day}")
    async def notes(day: str, who: Annotated[str, Ask("Whose notes of {day}?")]) -> str:
        return f"{day} {who}"

    schema = {"type": "object", "properties": {"path": {"type": "string"}}}

    async def act(arguments: dict[str, Any], sure: Annotated[Confirm, Ask("{arguments[path]}?")]) -> str:
        return f"{arguments} {sure.sure}"

    server.add_tool(Tool("act", schema), act)
    seen: list[str] = []

    def elicit(params: Any) -> Any:
        seen.append(params.message)
        return {name: True if name == "sure" else "x" for name in params.requested_schema["properties"]}

    async def main() -> tuple[Any, ...]:
        async with Client(server, revision=revision, on_elicitation=elicit) as client:
            (listed,) = await client.list_prompts()
            prompt = await client.get_prompt("poem", {"about": "rain"})
            read = await client.read_resource("notes://today")
            told = await client.call_tool("act", {"path": "/a"})
            return listed.arguments, prompt.messages[0].content, read.contents[0].text, told.text

    arguments, content, text, told = asyncio.run(main())
    assert [argument.name for argument in arguments or ()] == ["about"]
    assert content.text == "rain x"
    assert (text, told) == ("today x", "{'path': '/a'} True")
    assert seen == ["How shall rain be?", "Whose notes of today?", "/a?"]


# --------------------------------------------------------------------- what is refused at once


def wants_nothing_there(size: int) -> int:
    return size


async def wants_wrong_context(ctx: SyncContext) -> str:
    return "x"


def by_position(size: int, /) -> str:
    return str(size)


def a_circle(b: str) -> str:
    return b


def b_circle(a: str) -> str:
    return a


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        (
            {"a": Annotated[str, Ask("Which {size}?")]},
            "parameter `a`: its Ask uses `size`, which is not a",
        ),
        ({"a": Annotated[str, Ask("Which {}?")]}, "placeholder without a parameter name"),
        ({"a": Annotated[str, Ask("Which {0}?")]}, "placeholder without a parameter name"),
        ({"a": Annotated[str, Ask("Which {a?")]}, "is not a valid format string"),
        ({"a": Annotated[str, Ask("Which {a}?")]}, "depends on its own answer"),
        ({"a": Annotated[dict[str, int], Ask("Which?")]}, "no field"),
        ({"a": Annotated[list[Confirm], Ask("Which?")]}, "form"),
        ({"a": Annotated[str, Ask(wants_nothing_there)]}, "uses `size`"),
        ({"a": Annotated[str, Ask(wants_wrong_context)]}, "gets Context, not SyncContext"),
        (
            {"a": Annotated[str, Ask(a_circle)], "b": Annotated[str, Ask(b_circle)]},
            "depends on its own answer",
        ),
        ({"a": Annotated[Accepted[int] | str, Ask("Which?")]}, "does not name the type of the answer"),
        ({"a": Annotated[Declined | Cancelled, Ask("Which?")]}, "does not name the type of the answer"),
        ({"a": Optional[Annotated[bool, Ask("Sure?")]]}, "this Ask has no effect"),  # noqa: UP045 - as some write it
        ({"a": list[Annotated[bool, Ask("Sure?")]]}, "this Ask has no effect"),
        ({"a": Annotated[bool, Ask]}, "this Ask has no effect"),
        ({"a": Annotated[str, Ask(by_position)]}, "cannot be passed by name"),
    ],
)
def test_a_question_that_cannot_work_is_refused_at_registration(kinds, told):
    server = Server("s")

    names = ", ".join(f"{name}: kinds[{name!r}]" for name in kinds)
    scope: dict[str, Any] = {"kinds": kinds}
    exec(f"def act({names}) -> str: return ''", scope)
    with pytest.raises(SignatureError, match=told):
        server.tool(scope["act"])


def test_a_question_as_a_default_is_refused():
    server = Server("s")

    def act(sure: bool = Ask("Really?")) -> str:  # type: ignore[assignment] - as other frameworks have it
        return str(sure)

    with pytest.raises(SignatureError, match=r"this Ask has no effect.*Annotated"):
        server.tool(act)


@BOTH
def test_a_type_alias_may_have_a_question(revision):
    server = Server("s")

    @server.tool
    def act(sure: Sure) -> str:
        return str(sure)

    assert called(server, revision, said={"Sure?": {"value": True}}) == ("True", ["Sure?"])


@BOTH
def test_the_same_question_may_have_a_default_in_one_place_and_none_in_another(revision):
    server = Server("s")

    @server.tool
    def both(a: Annotated[str, Ask("Name?")], b: Annotated[str, Ask("Name?")] = "default") -> str:
        return f"{a} {b}"

    @server.tool
    def act(b: Annotated[str, Ask("Name?")] = "default", c: Annotated[str, Ask("Name?")] = "other") -> str:
        return f"{b} {c}"

    assert called(server, revision, host=False)[0] == "default other"

    async def main() -> None:
        async with Client(server, revision=revision) as client:
            await client.call_tool("both")

    with pytest.raises((ToolError, RPCError), match="elicitation"):
        asyncio.run(main())


@BOTH
def test_a_refusal_in_a_prompt_is_reported_as_one(revision):
    server = Server("s")

    @server.prompt
    async def poem(style: Annotated[str, Ask("How?")]) -> str:
        return style

    async def main() -> None:
        async with Client(server, revision=revision, on_elicitation=lambda _: None) as client:
            await client.get_prompt("poem")

    with pytest.raises(UserRejected, match="The user declined: How"):
        asyncio.run(main())


def test_a_function_that_returns_another_question_is_reported(caplog):
    server = Server("s")

    def which() -> Any:
        return Ask(which)

    @server.tool
    def act(a: Annotated[str, Ask(which)]) -> str:
        return a

    with pytest.raises(ToolError):
        called(server, DATES[-1])
    assert "an Ask that a function returns must have a string" in caplog.text


def test_a_function_is_called_directly_with_all_of_its_parameters():
    server = Server("s")

    @server.tool
    def act(a: int, sure: Annotated[Confirm, Ask("Sure?")]) -> str:
        return f"{a} {sure.sure}"

    assert act(1, Confirm(sure=False)) == "1 False"
