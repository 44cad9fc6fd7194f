"""Completion of the arguments of prompts and templates."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from toolpost import Client, Context, Server, SignatureError, SyncContext
from toolpost.server.registry.prompts import MAX_COMPLETION_VALUES, RegisteredPrompt
from toolpost.types import (
    CompleteParams,
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
)

KNOWN = {"country": "fr"}


def completable() -> RegisteredPrompt[..., Any]:
    @Server("atlas").prompt
    def describe(city: str, country: str = "fr") -> str:
        return city + country

    return describe


def completed(completes: RegisteredPrompt[..., Any], argument: str = "city", value: str = "p") -> Completion:
    async def main() -> Completion:
        try:
            params = CompleteParams(
                ref=PromptReference("describe"),
                argument=CompletionArgument(argument, value),
                context=CompletionContext(KNOWN),
            )
            return (await completes.serve_completion(cast("Any", None), params)).completion
        finally:
            completes._threads.close()

    return asyncio.run(main())


def completing(fn: Any) -> RegisteredPrompt[..., Any]:
    completes = completable()
    assert completes.complete("city")(fn) is fn
    return completes


async def later(typed: str) -> list[str]:
    return [f"{typed}aris"]


async def later_known(typed: str, known: Mapping[str, str]) -> list[str]:
    return [typed, *known.values()]


class Typed:
    async def __call__(self, typed: str) -> list[str]:
        return [typed]


@pytest.mark.parametrize(
    ("fn", "values"),
    [
        (lambda: ["a"], ["a"]),
        (lambda typed: [typed], ["p"]),
        (lambda typed, known: [typed, *known.values()], ["p", "fr"]),
        (lambda typed, known=None, more="m": [typed, more], ["p", "m"]),
        (lambda typed, *, more="m": (typed, more), ["p", "m"]),
        (lambda typed: (letter for letter in "ab"), ["a", "b"]),
        (lambda typed: {"a": 1}, ["a"]),
        (later, ["paris"]),
        (later_known, ["p", "fr"]),
        (Typed(), ["p"]),
        (Typed().__call__, ["p"]),
    ],
)
def test_a_completer_takes_the_typed_text_and_the_known_arguments(fn, values):
    completes = completing(fn)
    assert completes.has_completers
    assert completed(completes) == Completion(values=values)


def test_an_argument_without_a_completer_has_no_completions():
    assert completed(completing(later), "country") == Completion(values=[])
    assert completed(completing(later), "unheard of") == Completion(values=[])
    assert not completable().has_completers


def test_only_existing_arguments_can_be_completed():
    with pytest.raises(ValueError, match=r"unknown argument 'town' \(expected: city, country\)"):
        completable().complete("town")
    with pytest.raises(ValueError, match="expected: none"):
        Server("atlas").resource("map://all", name="map")(lambda: "a map").complete("town")


@pytest.mark.requirement("COMP-2")
@pytest.mark.parametrize(
    ("found", "total", "more"),
    [
        (["x"] * MAX_COMPLETION_VALUES, None, None),
        (["x"] * (MAX_COMPLETION_VALUES + 1), MAX_COMPLETION_VALUES + 1, True),
        (Completion(values=["x"] * MAX_COMPLETION_VALUES, total=7, has_more=False), 7, False),
        (Completion(values=["x"] * 300), 300, True),
        (Completion(values=["x"] * 300, total=4000, has_more=False), 4000, True),
    ],
)
def test_a_completion_has_at_most_a_hundred_values(found, total, more):
    answer = completed(completing(lambda: found))
    assert answer == Completion(values=["x"] * MAX_COMPLETION_VALUES, total=total, has_more=more)


def test_a_prompt_and_a_template_complete_for_a_client():
    server = Server("s")

    @server.prompt
    def visit(city: str) -> str:
        return city

    @server.resource("city://{name}")
    def city(name: str) -> str:
        return name

    visit.complete("city")(lambda typed: [f"{typed}aris"])
    city.complete("name")(later)

    async def main() -> None:
        async with Client(server) as client:
            for ref, argument in (
                ({"type": "ref/prompt", "name": "visit"}, "city"),
                ({"type": "ref/resource", "uri": "city://{name}"}, "name"),
            ):
                params = {"ref": ref, "argument": {"name": argument, "value": "p"}}
                answer = await client.request("completion/complete", params)
                assert b'"paris"' in (answer.raw or b"")

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Context, SyncContext, "Context"])
def test_completion_has_no_context(kind):
    server = Server("s")

    @server.prompt
    def p(a: str) -> str:
        return a

    def values(typed: str, ctx: Any) -> list[str]:
        return [typed]

    values.__annotations__["ctx"] = kind
    with pytest.raises(SignatureError, match="`values` takes a context in `ctx`, but completion has none"):
        p.complete("a")(values)
