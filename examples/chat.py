"""Chat: a whole host in one file. A person, a model, a server, and the loop between them.

    python examples/chat.py

Say "a poem about rain", "count to 5", or what you like; an empty line ends it. The model is a fake that obeys
a few rules, so that there is nothing to sign up for. To write its poem the server asks the host's model. This
is called sampling: the host shows what is asked, and could say no by returning None.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolpost import Context, Server, SyncClient, ToolError
from toolpost.types import CreateMessageParams, TextContent, Tool

# --------------------------------------------------------------------- the server: any would do

server = Server("poet", version="1.0")


@server.tool
async def poem(topic: str, ctx: Context) -> str:
    """Write a poem."""
    first = await ctx.sample(f"Write a line about {topic}", system="You are a poet.", max_tokens=30)
    second = await ctx.sample(f"Write a line after: {first.text}", max_tokens=30)
    return f"{first.text}\n{second.text}"


@server.tool
def count(to: int) -> str:
    """Count."""
    if to > 10:
        raise ToolError("I can count to ten.")
    return ", ".join(map(str, range(1, to + 1)))


# --------------------------------------------------------------------- the model: put a real one here


@dataclass
class Call:
    """The model wants a tool."""

    name: str
    arguments: dict[str, Any]


RULES: list[tuple[str, Callable[[str], str | Call]]] = [
    (r"the tool said: (.+)", lambda result: result),
    (r"Write a line about (.+)", lambda topic: f"Softly {topic} comes and goes,"),
    (r"Write a line after: (.+)", lambda _: "and where it went, nobody knows."),
    (r".*poem about (.+)", lambda topic: Call("poem", {"topic": topic})),
    (r".*count to (\d+).*", lambda number: Call("count", {"to": int(number)})),
]


def model(prompt: str, tools: list[Tool]) -> str | Call:
    for rule, say in RULES:
        if found := re.fullmatch(rule, prompt, re.DOTALL):
            return say(found[1])
    return f"I only know how to use my tools: {', '.join(tool.name for tool in tools)}."


# --------------------------------------------------------------------- the host: the loop between them


def sampled(params: CreateMessageParams) -> str:
    """What the model says to a server. A host that is no example asks the user first."""
    content = params.messages[-1].content
    assert isinstance(content, TextContent)
    said = model(content.text, [])
    assert isinstance(said, str)
    print(f"  [poet asks the model: {content.text!r}]")
    return said


def main() -> None:
    with SyncClient(server, on_sampling=sampled) as mcp:
        tools = mcp.list_tools()
        while prompt := input("you: "):
            while isinstance(said := model(prompt, tools), Call):
                print(f"  [the model calls {said.name} {said.arguments}]")
                try:
                    prompt = f"the tool said: {mcp.call_tool(said.name, said.arguments).text}"
                except ToolError as error:
                    prompt = f"the tool said: {error}"
            print(f"model: {said}")


if __name__ == "__main__":
    try:
        main()
    except (EOFError, KeyboardInterrupt):
        print()
