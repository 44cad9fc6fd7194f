"""Prompts and completions."""

import pytest

from features import needs
from toolpost.errors import InternalError, InvalidParams
from toolpost.types import ImageContent, PromptReference, ResourceReference


@pytest.mark.requirement("PRM-1", "PRM-2", "PRM-9")
async def test_prompts_are_declared_and_listed(link):
    client = await link("library")
    assert client.capabilities.prompts is not None
    prompts = await client.list_prompts()
    assert [prompt.name for prompt in prompts] == ["greet", "dialogue", "bad", "wrong"]
    greet = prompts[0]
    assert greet.title == "Greeting"
    assert greet.description == "Say hello."
    assert greet.arguments is not None
    assert [(a.name, a.description, bool(a.required)) for a in greet.arguments] == [
        ("name", "whom to greet", True),
        ("times", None, False),
    ]


@pytest.mark.requirement("PRM-4")
async def test_prompts_are_filled_in(link, revision):
    client = await link("library")
    got = await client.get_prompt("greet", {"name": "ann", "times": "2"})
    assert [(m.role, m.content.text) for m in got.messages] == [("user", "hello annhello ann")]
    assert got.description == "Say hello."
    messages = (await client.get_prompt("dialogue")).messages
    assert [m.role for m in messages] == ["user", "assistant", "user", "user"]
    assert [m.content.text for m in messages[:3]] == ["question", "answer", revision]
    assert messages[3].content == ImageContent("iVBORw0KGgo=", "image/png")


@pytest.mark.requirement("PRM-7", "PRM-8")
@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("nope", {}, "nope"),
        ("greet", {}, "name"),
        ("greet", {"name": "ann", "times": "x"}, "times"),
        ("greet", {"name": "ann", "other": "x"}, "other"),
    ],
)
async def test_invalid_arguments_are_rejected(link, name, arguments, told):
    client = await link("library")
    with pytest.raises(InvalidParams, match=told):
        await client.get_prompt(name, arguments)


@pytest.mark.requirement("PRM-7")
@pytest.mark.parametrize("name", ["bad", "wrong"])
async def test_a_prompt_that_breaks_is_an_internal_error(link, name):
    client = await link("library")
    with pytest.raises(InternalError) as caught:
        await client.get_prompt(name)
    assert "secret" not in str(caught.value)


@needs("a completions capability")
@pytest.mark.requirement("COMP-1")
async def test_completions_are_declared(link):
    client = await link("library")
    assert client.capabilities.completions is not None


async def test_arguments_are_completed(link):
    client = await link("library")
    greet = PromptReference("greet")
    assert (await client.complete(greet, "name", "a")).values == ["ann"]
    assert (await client.complete(greet, "name", "b", context={"times": "2"})).values == ["bob2"]
    times = await client.complete(greet, "times")
    assert (times.values, times.total, times.has_more) == (["1", "2"], 9, True)
    assert (await client.complete(PromptReference("bad"), "none")).values == []
    assert (await client.complete(ResourceReference("config://app"), "none")).values == []


@pytest.mark.requirement("COMP-2")
async def test_at_most_a_hundred_values_are_sent(link):
    client = await link("library")
    found = await client.complete(ResourceReference("users://{id}/profile"), "id")
    assert (len(found.values), found.total, found.has_more) == (100, 250, True)


@pytest.mark.requirement("COMP-3")
@pytest.mark.parametrize("ref", [PromptReference("nope"), ResourceReference("nope://{x}")])
async def test_an_unknown_argument_cannot_be_completed(link, ref):
    client = await link("library")
    with pytest.raises(InvalidParams, match="nope"):
        await client.complete(ref, "x")
