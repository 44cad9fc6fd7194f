"""Tools that ask the client in the middle of a call, in every era."""

import asyncio

import pytest

from features import lacks, needs, record
from toolpost import RPCError, ToolError
from toolpost.errors import MissingCapability
from toolpost.types import CreateMessageResult, ElicitResult, Root, TextContent


@needs("elicitation")
@pytest.mark.requirement("ELIC-7", "ELIC-10", "ELIC-11", "ELIC-12")
@pytest.mark.parametrize("tool", ["how_many", "how_many_sync"])
async def test_a_user_is_asked(link, tool):
    client = await link("asking")
    link.desk.elicited = {"value": 3}
    assert (await client.call_tool(tool)).text == "3"
    [asked] = link.desk.asked
    assert asked.message == "How many?"
    assert asked.mode in (None, "form")
    assert asked.requested_schema == {
        "type": "object",
        "properties": {"value": {"type": "integer"}},
        "required": ["value"],
    }


@needs("elicitation")
@pytest.mark.requirement("ELIC-30")
@pytest.mark.parametrize(
    ("said", "told"), [("decline", "Declined"), ("cancel", "Cancelled"), ("accept", "'x'")]
)
async def test_a_user_may_say_no(link, said, told):
    client = await link("asking")
    link.desk.elicited = ElicitResult(action=said, content={"value": "x"} if said == "accept" else None)
    assert (await client.call_tool("excused")).text == told


@needs("elicitation")
@pytest.mark.requirement("ELIC-12", "ELIC-15")
async def test_a_form_has_fields(link):
    client = await link("asking")
    link.desk.elicited = {"name": "ann", "age": 3, "colour": "blue"}
    text = (await client.call_tool("form")).text
    assert text.startswith("Form(name='ann', age=3, colour=<Colour.BLUE: 'blue'>, friendly=True)")
    fields = link.desk.asked[0].requested_schema["properties"]
    assert fields["colour"]["enum"] == ["red", "blue"]
    assert fields["friendly"] == {"type": "boolean", "default": True}
    assert link.desk.asked[0].requested_schema["required"] == ["name", "age"]


@needs("elicitation")
async def test_a_form_that_is_not_flat_is_refused(link):
    client = await link("asking")
    with pytest.raises(ToolError):
        await client.call_tool("nested")
    assert link.desk.asked == []


@needs("URL elicitation")
@pytest.mark.requirement("ELIC-9", "ELIC-10", "ELIC-13", "ELIC-14")
@pytest.mark.parametrize("tool", ["visit", "visit_sync"])
async def test_a_user_is_sent_to_a_url(link, tool, revision):
    client = await link("asking")
    link.desk.elicited = True
    assert (await client.call_tool(tool)).text == "None"
    [asked] = link.desk.asked
    assert (asked.mode, asked.url) == ("url", "https://example.com/login")
    assert bool(asked.elicitation_id) is not record(revision).stateless


@needs("elicitation")
@pytest.mark.requirement("ELIC-9", "LIFE-15")
async def test_clients_without_elicitation_are_not_asked_for_it(link):
    client = await link.fresh("asking")
    for tool in ("how_many", "visit", "how_many_sync"):
        with pytest.raises((ToolError, MissingCapability), match="elicitation"):
            await client.call_tool(tool)


@needs("elicitation")
async def test_a_callback_that_breaks_is_an_error_of_the_call(link, revision):
    client = await link("asking")

    def broken(params):
        raise ValueError("secret")

    link.desk.elicited = broken
    # Without a session only the caller is notified: the error is raised where the tool was called.
    told = ("secret", ValueError) if record(revision).stateless else ("cannot ask", ToolError)
    with pytest.raises(told[1], match=told[0]):
        await client.call_tool("excused")


@needs("elicitation", "sessions")
@pytest.mark.requirement("TIME-1", "TIME-2", "CANC-1")
async def test_a_question_may_have_a_time_out(link):
    client = await link("asking")
    cancelled = asyncio.Event()

    async def dawdle(params):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    link.desk.elicited = dawdle
    assert (await client.call_tool("impatient")).text == "no answer"
    if link.desk.asked:  # otherwise the question was withdrawn before it was read
        await asyncio.wait_for(cancelled.wait(), 10)


@needs("elicitation")
@pytest.mark.requirement("CANC-1")
async def test_the_question_of_a_call_that_is_cancelled_is_withdrawn(link):
    client = await link("asking")
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def dawdle(params):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    link.desk.elicited = dawdle
    call = asyncio.ensure_future(client.call_tool("how_many"))
    await asyncio.wait_for(asked.wait(), 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(cancelled.wait(), 10)


@needs("elicitation")
async def test_a_callback_may_ask_back(link):
    client = await link("asking")

    async def ask_back(params):
        told = await client.call_tool("seen", {"which": "started"})
        return {"value": len(told.content)}

    link.desk.elicited = ask_back
    calls = [client.call_tool("how_many") for _ in range(16)]
    assert {result.text for result in await asyncio.gather(*calls)} == {"1"}


# --------------------------------------------------------------------- sampling


@needs("sampling")
@pytest.mark.requirement("SAMP-1")
async def test_a_model_is_asked(link):
    client = await link("asking")
    link.desk.sampled = CreateMessageResult(role="assistant", content=TextContent("roses"), model="m")
    assert (await client.call_tool("poem", {"about": "love"})).text == "m: roses"
    [asked] = link.desk.asked
    assert asked.system_prompt == "Be brief."
    assert asked.max_tokens == 9
    assert asked.model_preferences.hints[0].name == "small"
    assert [(m.role, m.content) for m in asked.messages] == [("user", TextContent("love"))]
    link.desk.sampled = "violets"
    assert (await client.call_tool("poem_sync", {"about": "x"})).text == "violets"
    assert [m.content.text for m in link.desk.asked[1].messages] == ["one", "x"]


@needs("sampling")
@pytest.mark.requirement("SAMP-15")
async def test_a_user_may_refuse_sampling(link):
    client = await link("asking")
    link.desk.sampled = None
    with pytest.raises(RPCError, match="rejected") as caught:
        await client.call_tool("poem", {"about": "love"})
    assert caught.value.code == -1


@needs("sampling")
@pytest.mark.requirement("SAMP-1", "SAMP-3", "LIFE-15")
async def test_clients_without_sampling_are_not_asked_for_it(link):
    client = await link.fresh("asking")
    for tool in ("poem", "poem_sync"):
        with pytest.raises((ToolError, MissingCapability), match="sampling"):
            await client.call_tool(tool, {"about": "love"})
    with pytest.raises((ToolError, MissingCapability), match="sampling"):
        await client.call_tool("with_tools")


@needs("sampling with tools")
@pytest.mark.requirement("SAMP-2")
async def test_a_model_may_get_tools(link):
    client = await link("asking")
    link.desk.sampled = "fine"
    assert "fine" in (await client.call_tool("with_tools")).text
    assert link.desk.asked[0].tools[0].name == "t"


@needs("sampling")
@pytest.mark.requirement("SAMP-3")
async def test_tools_are_not_sent_to_clients_without_the_capability(link):
    client = await link.fresh("asking", on_sampling=lambda params: "never")
    with pytest.raises((ToolError, MissingCapability), match=r"sampling\.tools"):
        await client.call_tool("with_tools")


# --------------------------------------------------------------------- roots


@needs("roots")
@pytest.mark.requirement("ROOT-1", "ROOT-3", "ROOT-8")
@pytest.mark.parametrize("tool", ["places", "places_sync"])
async def test_roots_are_sent(link, tool):
    client = await link("asking")
    link.desk.roots = [Root("file:///a"), "file:///b"]
    assert (await client.call_tool(tool, result_type=None)).text == '["file:///a","file:///b"]'


@needs("roots")
@pytest.mark.requirement("ROOT-1", "ROOT-8")
async def test_clients_without_roots_are_not_asked_for_them(link):
    client = await link.fresh("asking")
    with pytest.raises((ToolError, MissingCapability), match="roots"):
        await client.call_tool("places")


@lacks("sessions")
@pytest.mark.requirement("STDIO-7", "HTTPM-6", "MRTR-1")
@pytest.mark.parametrize("tool", ["how_many", "how_many_sync", "places"])
async def test_without_a_session_no_request_is_sent_to_the_client(link, tool):
    client = await link("asking")
    link.desk.elicited = {"value": 5}
    link.desk.roots = ["file:///a"]
    assert (await client.call_tool(tool)).text
    assert client.stats.client_requests == 0


# --------------------------------------------------------------------- custom methods


@needs("sessions")
async def test_custom_methods_go_both_ways(link):
    async def answer(params):
        return {"double": 2 * params["n"]}

    heard = []

    async def notice(method, params):
        heard.append((method, params))

    client = await link.fresh("asking", request_handlers={"example/ask": answer}, on_notification=notice)
    assert '"double":4' in (await client.call_tool("own", {"method": "example/ask"})).text
    assert heard == [("example/notice", {"n": 1})]
