"""The server for the official conformance suite, with all tools, resources and prompts that it requires.

One URL serves all revisions, and the code does not depend on them. The suite defines the names and the effect
of each function. Run as `python conformance/server.py [port]`.
"""

import asyncio
import sys
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from toolpost import Accepted, Audio, Context, Header, Image, RPCError, Server, TaskOptions, Titles, ToolError
from toolpost.types import EmbeddedResource, PromptMessage, ResourceContents, Tool

PIXEL: Final = Image(
    b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
)
SILENCE: Final = Audio(b64decode("UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="))
"""A sound: headers without samples."""

PAUSE: Final = 0.05
"""Seconds between two steps of slow tools."""

server = Server("toolpost-conformance", version="1.0")


def embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    """A resource inside a message."""
    return EmbeddedResource(ResourceContents(uri=uri, mime_type=mime_type, text=text))


# --------------------------------------------------------------------- tools: results


@server.tool
def test_simple_text() -> str:
    """Give a text."""
    return "This is a simple text response for testing."


@server.tool
def test_image_content() -> Image:
    """Give a picture."""
    return PIXEL


@server.tool
def test_audio_content() -> Audio:
    """Give a sound."""
    return SILENCE


@server.tool
def test_embedded_resource() -> EmbeddedResource:
    """Give a resource."""
    return embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")


@server.tool
def test_multiple_content_types() -> list[str | Image | EmbeddedResource]:
    """Give several kinds of content."""
    mixed = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return ["Multiple content types test:", PIXEL, mixed]


@server.tool
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool
def test_x_mcp_header(region: Annotated[str | None, Header("Region")] = None) -> str:
    """Return a region, which a header of the call mirrors.

    Args:
        region: the region.
    """
    return f"The region is {region}."


def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Accept arguments that only a custom schema can describe."""
    return f"Called with {', '.join(sorted(arguments)) or 'nothing'}."


server.add_tool(
    Tool(
        "json_schema_2020_12_tool",
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {
                "address": {
                    "$anchor": "addressDef",
                    "type": "object",
                    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
                }
            },
            "properties": {
                "name": {"type": "string"},
                "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": {"type": "string"},
                "email": {"type": "string"},
            },
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]},
            "else": {"required": ["email"]},
            "additionalProperties": False,
        },
        description="Accept arguments that only a custom schema can describe.",
    ),
    json_schema_2020_12_tool,
)


# --------------------------------------------------------------------- tools: notifications


@server.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress."""
    for done in (0, 50, 100):
        await ctx.progress(done, 100)
        await asyncio.sleep(PAUSE)
    return "The work is done."


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Write to the client's log."""
    await ctx.info("Tool execution started")
    await asyncio.sleep(PAUSE)
    await ctx.info("Tool processing data")
    await asyncio.sleep(PAUSE)
    await ctx.info("Tool execution completed")
    return "Three lines were logged."


@server.tool
async def test_logging_tool(ctx: Context) -> str:
    """Write to the log of a client that may not have requested it."""
    await ctx.info("This is for those who asked for a log.")
    return "A line was logged."


@server.tool
async def test_reconnection(ctx: Context) -> str:
    """Close the stream, and respond when the client is back."""
    await ctx.close_stream()
    await asyncio.sleep(PAUSE)
    return "Welcome back."


@server.tool
def test_trigger_tool_change() -> str:
    """Add and remove a tool."""
    server.tool(name="test_passing_tool", description="Gone already.")(lambda: "gone").remove()
    return "The list of tools has changed."


@server.tool
def test_trigger_prompt_change() -> str:
    """Add and remove a prompt."""
    server.prompt(name="test_passing_prompt", description="Gone already.")(lambda: "gone").remove()
    return "The list of prompts has changed."


# --------------------------------------------------------------------- tools: questions


@dataclass
class Person:
    """A person."""

    username: Annotated[str, "User's response"]
    email: Annotated[str, "User's email address"]


@dataclass
class Profile:
    """A known person, as defaults."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


TITLES: Final = Titles(value1="First Option", value2="Second Option", value3="Third Option")
Titled: TypeAlias = Annotated[Literal["value1", "value2", "value3"], TITLES]


@dataclass
class Choices:
    """All kinds of choices in a form."""

    untitledSingle: Literal["option1", "option2", "option3"]  # noqa: N815 - the suite looks for these names
    titledSingle: Titled  # noqa: N815 - as above
    legacyEnum: Annotated[  # noqa: N815 - as above
        Literal["opt1", "opt2", "opt3"],
        Meta(extra_json_schema={"enumNames": ["Option One", "Option Two", "Option Three"]}),
    ]
    untitledMulti: list[Literal["option1", "option2", "option3"]]  # noqa: N815 - as above
    titledMulti: list[Titled]  # noqa: N815 - as above


@dataclass
class Name:
    """A name."""

    name: str


@dataclass
class Colour:
    """A colour."""

    color: str


@dataclass
class Confirmation:
    """A confirmation."""

    ok: bool


@dataclass
class Background:
    """The topic of a prompt."""

    context: str


@server.tool
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Ask the client's model.

    Args:
        prompt: what to ask.
    """
    return f"LLM response: {(await ctx.sample(prompt, max_tokens=100)).text}"


@server.tool
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask the user.

    Args:
        message: what to ask.
    """
    return f"User response: {await ctx.elicit(message, Person)}"


@server.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask with a form that has defaults."""
    return f"Elicitation completed: {await ctx.elicit('Is this you?', Profile)}"


@server.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask with a form that has choices of all kinds."""
    return f"Elicitation completed: {await ctx.elicit('What shall it be?', Choices)}"


@server.tool
async def test_missing_capability(ctx: Context) -> str:
    """Ask a model, even if there may be none."""
    return (await ctx.sample("Is anybody there?", max_tokens=100)).text


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Ask the user."""
    return f"User response: {await ctx.elicit('Who are you?', Person)}"


@server.tool
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Greet the user by name."""
    answer = await ctx.elicit("What is your name?", Name, key="user_name")
    return f"Hello, {answer.data.name if isinstance(answer, Accepted) else 'whoever you are'}!"


@server.tool
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Ask a model about France."""
    return (await ctx.sample("What is the capital of France?", max_tokens=100, key="capital_question")).text


@server.tool
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Name the roots of the client."""
    return f"The roots are {', '.join(root.uri for root in await ctx.roots(key='client_roots'))}."


@server.tool
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Ask twice, and keep the first answer."""
    before = await ctx.step("begin", lambda: "state-ok")
    await ctx.elicit("Please confirm", Confirmation, key="confirm")
    return before


@server.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Ask three questions at once."""
    name, greeting, roots = await asyncio.gather(
        ctx.elicit("What is your name?", Name, key="user_name"),
        ctx.sample("Generate a greeting", max_tokens=50, key="greeting"),
        ctx.roots(key="client_roots"),
    )
    return f"{name} is told {greeting.text!r} from {len(roots)} roots."


@server.tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Ask one question after the other."""
    name = await ctx.elicit("Step 1: What is your name?", Name, key="step1")
    colour = await ctx.elicit("Step 2: What is your favorite color?", Colour, key="step2")
    return f"{name} likes {colour}."


@server.tool
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Ask, and trust only the sealed state."""
    return f"The answer is {await ctx.elicit('Please confirm', Confirmation, key='confirm')}."


@server.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Ask the user or the model, depending on the client."""
    if ctx.client.capabilities.elicitation is not None:
        return f"The user says {await ctx.elicit('Who are you?', Name, key='user_name')}."
    return f"The model says {(await ctx.sample('Who are you?', max_tokens=100, key='model_name')).text}."


# --------------------------------------------------------------------- tools: tasks


@dataclass
class Decision:
    """A decision."""

    confirm: bool


@server.tool
def greet(name: str) -> str:
    """Greet somebody, at once."""
    return f"Hello, {name}!"


@server.tool(task=TaskOptions(after=PAUSE))
async def slow_compute(seconds: float, label: str = "") -> str:
    """Compute for a while."""
    await asyncio.sleep(seconds)
    return f"Computed {label} for {seconds:g} s."


@server.tool(task=TaskOptions(required=True, after=PAUSE))
async def failing_job() -> str:
    """Fail after a while."""
    await asyncio.sleep(1)
    raise ToolError("This job intentionally fails")


@server.tool(task=TaskOptions(after=0))
async def protocol_error_job(ctx: Context) -> str:
    """Fail with a protocol error."""
    await ctx.background()
    raise RPCError("This job intentionally breaks")


@server.tool(task=TaskOptions(after=None))
async def confirm_delete(filename: str, ctx: Context) -> str:
    """Ask before something is deleted.

    Args:
        filename: what to delete.
    """
    await ctx.background()
    return f"The user says about {filename}: {await ctx.elicit(f'Delete {filename}?', Decision)}"


@server.tool(task=TaskOptions(after=None))
async def multi_input(ctx: Context) -> str:
    """Ask two questions at once."""
    await ctx.background()
    first, second = await asyncio.gather(
        ctx.elicit("Is the first one right?", Decision), ctx.elicit("And the second one?", Decision)
    )
    return f"The user says {first} and {second}."


@server.tool(task=TaskOptions(required=True, after=None))
async def test_tool_with_task(ctx: Context) -> str:
    """Ask for a name, and greet in the background."""
    answer = await ctx.elicit("What is your name?", Name, key="user_name")
    await ctx.background()
    return f"Hello, {answer.data.name if isinstance(answer, Accepted) else 'whoever you are'}!"


# --------------------------------------------------------------------- resources


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """A picture."""
    return PIXEL.read()


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """A resource to subscribe to."""
    return "This is worth watching."


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> dict[str, Any]:  # noqa: A002 - the suite calls it so
    """The data of an id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# --------------------------------------------------------------------- prompts


@server.prompt
def test_simple_prompt() -> str:
    """Say something simple."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Say two things.

    Args:
        arg1: the first.
        arg2: the second.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@test_prompt_with_arguments.complete("arg1")
def first_arguments(typed: str) -> list[str]:
    """Complete the first argument."""
    return [value for value in ("test", "testing", "tested") if value.startswith(typed)]


@server.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[PromptMessage | str]:  # noqa: N803 - the suite calls it so
    """Say something about a resource.

    Args:
        resourceUri: which one.
    """
    resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return [PromptMessage("user", resource), "Please process the embedded resource above."]


@server.prompt
def test_prompt_with_image() -> list[PromptMessage | str]:
    """Say something about a picture."""
    return [PromptMessage("user", PIXEL.content()), "Please analyze the image above."]


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """Say something about what the user has in mind."""
    answer = await ctx.elicit("What context should the prompt use?", Background, key="user_context")
    return f"Keep in mind: {answer.data.context if isinstance(answer, Accepted) else 'nothing'}"


# --------------------------------------------------------------------- skills

server.skills(Path(__file__).resolve().parents[1] / "examples" / "skills")


@server.skill
def release_notes() -> str:
    """Write the notes of a release."""
    return "Write one sentence for each change that a user can notice."


if __name__ == "__main__":
    server.run(http=f"127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 0}")
