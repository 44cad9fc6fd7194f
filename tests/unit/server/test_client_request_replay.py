"""Any program of questions and steps has the same result in a session and when it is replayed without one."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolpost import Accepted, Client, Context, Server
from toolpost.client import multi_round
from toolpost.protocol.methods import DATES
from toolpost.types import CreateMessageResult, TextContent

NEW, SESSION = DATES[-1], DATES[-2]

OPS = st.one_of(
    st.tuples(st.just("elicit"), st.integers(0, 3)),
    st.tuples(st.just("sample"), st.integers(0, 2)),
    st.tuples(st.just("roots"), st.just(0)),
    st.tuples(st.just("step"), st.integers(0, 3)),
    st.tuples(st.just("async step"), st.integers(0, 3)),
    st.tuples(st.just("pause"), st.integers(0, 2)),
)
PROGRAMS = st.recursive(
    st.lists(OPS, max_size=3).map(tuple),
    lambda part: st.one_of(
        st.tuples(st.just("gather"), st.lists(part, min_size=1, max_size=3).map(tuple)),
        st.tuples(st.just("group"), st.lists(part, min_size=1, max_size=3).map(tuple)),
        st.tuples(st.just("loop"), st.integers(1, 2), part),
        st.lists(part, min_size=1, max_size=3).map(lambda parts: ("each", tuple(parts))),
    ),
    max_leaves=6,
)


async def run(program: Any, ctx: Context, done: list[str], place: str = "") -> Any:
    """Run a program; return the answers to all of its questions, in its own order."""
    match program:
        case ("gather", parts):
            works = (run(part, ctx, done, f"{place}g{n}") for n, part in enumerate(parts))
            return await asyncio.gather(*works)
        case ("group", parts):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(run(part, ctx, done, f"{place}t{n}")) for n, part in enumerate(parts)
                ]
            return [task.result() for task in tasks]
        case ("loop", times, part):
            return [await run(part, ctx, done, f"{place}l{n}") for n in range(times)]
        case ("each", parts):
            return [await run(part, ctx, done, f"{place}e{n}") for n, part in enumerate(parts)]
        case _:
            return [await one(op, ctx, done, f"{place}o{n}") for n, op in enumerate(program)]


async def one(op: tuple[str, int], ctx: Context, done: list[str], place: str) -> Any:
    kind, number = op
    if kind == "elicit":
        answer = await ctx.elicit(f"{place}: number {number}?", int)
        assert isinstance(answer, Accepted)
        return answer.data
    if kind == "sample":
        return (await ctx.sample(f"{place}: poem {number}")).content.text  # type: ignore[union-attr] - it is text
    if kind == "roots":
        return [root.uri for root in await ctx.roots()]
    if kind == "pause":
        for _ in range(number):
            await asyncio.sleep(0)
        return number

    def effect() -> str:
        done.append(place)
        return f"{place} {number}"

    async def later() -> str:
        await asyncio.sleep(0)
        return effect()

    # By its place, so that parts that run side by side cannot swap the steps of one name.
    return await ctx.step(place, later if kind == "async step" else effect)


def traced(program: Any, revision: str) -> tuple[Any, list[str]]:
    """Return the result of the program for a client of a revision, and the steps that ran."""
    server = Server("replay", debug=True)
    done: list[str] = []
    given: list[Any] = []

    @server.tool
    async def play(ctx: Context) -> str:
        given.append(await run(program, ctx, done))
        return "played"

    async def elicit(params: Any) -> dict[str, Any]:
        return {"value": len(params.message)}

    async def sample(params: Any) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent(params.messages[0].content.text[::-1]), "m")

    async def main() -> str:
        options: dict[str, Any] = {"on_elicitation": elicit, "on_sampling": sample, "on_roots": ["file:///a"]}
        async with Client(server, revision=revision, **options) as client:
            return (await client.call_tool("play")).text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multi_round, "MAX_ROUNDS", 1000)  # a program may ask more than a person would bear
        assert asyncio.run(main()) == "played"
    return given[-1], sorted(done)


@settings(max_examples=60)
@given(PROGRAMS)
def test_live_and_replayed_are_the_same(program):
    live, replayed = traced(program, SESSION), traced(program, NEW)
    assert replayed == live
    assert len(set(replayed[1])) == len(replayed[1])


@pytest.mark.parametrize("how", ["gather", "group"])
def test_a_step_beside_a_question_is_done_once(how):
    program = (
        how,
        ((("elicit", 1),), (("step", 1), ("elicit", 2)), (("async step", 2), ("pause", 2), ("step", 3))),
    )
    assert traced(program, NEW) == traced(program, SESSION)
