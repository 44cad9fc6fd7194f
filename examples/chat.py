"""Chat: a complete host in one file, with a user, a model, a server and the loop that connects them.

    python examples/chat.py

Type "a poem about rain", "count to 5" or anything else; an empty line ends the program. The model is a fake
with a few rules, so you need no API key. To write its poem, the server asks the host's model. This is called
sampling: the host prints the request, and can reject it by returning None.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolpost import Context, Server, SyncClient, ToolError
from toolpost.types import CreateMessageParams, TextContent, Tool

# --------------------------------------------------------------------- the server: any MCP server works

server = Server("poet", version="1.0")


@server.tool
async def poem(topic: str, ctx: Context) -> str:
    """Write a poem about a topic."""
    first = await ctx.sample(f"Write a line about {topic}", system="You are a poet.", max_tokens=30)
    second = await ctx.sample(f"Write a line after: {first.text}", max_tokens=30)
    return f"{first.text}\n{second.text}"


@server.tool
def count(to: int) -> str:
    """Count from 1 to a number."""
    if to > 10:
        raise ToolError("I can count to ten.")
    return ", ".join(map(str, range(1, to + 1)))


# --------------------------------------------------------------------- the model: replace it with a real one


@dataclass
class Call:
    """The model wants to call a tool."""

    name: str
    arguments: dict[str, Any]


RULES: list[tuple[str, Callable[[str], str | Call]]] = [
    (r"tool result: (.+)", lambda text: text),
    (r"Write a line about (.+)", lambda topic: f"Softly {topic} comes and goes,"),
    (r"Write a line after: (.+)", lambda _: "and where it went, the river knows."),
    (r".*poem about (.+)", lambda topic: Call("poem", {"topic": topic})),
    (r".*count to (\d+).*", lambda number: Call("count", {"to": int(number)})),
]


def model(prompt: str, tools: list[Tool]) -> str | Call:
    for rule, respond in RULES:
        if match := re.fullmatch(rule, prompt, re.DOTALL):
            return respond(match[1])
    return f"I only know how to use my tools: {', '.join(tool.name for tool in tools)}."


# --------------------------------------------------------------------- the host: the loop


def answer_sampling(params: CreateMessageParams) -> str:
    """Answer a sampling request of the server. A real host asks the user first."""
    content = params.messages[-1].content
    assert isinstance(content, TextContent)
    reply = model(content.text, [])
    assert isinstance(reply, str)
    print(f"  [poet asks the model: {content.text!r}]")
    return reply


def main() -> None:
    with SyncClient(server, on_sampling=answer_sampling) as mcp:
        tools = mcp.list_tools()
        while prompt := input("you: "):
            while isinstance(reply := model(prompt, tools), Call):
                print(f"  [the model calls {reply.name} {reply.arguments}]")
                try:
                    prompt = f"tool result: {mcp.call_tool(reply.name, reply.arguments).text}"
                except ToolError as error:
                    prompt = f"tool result: {error}"
            print(f"model: {reply}")


if __name__ == "__main__":
    try:
        main()
    except (EOFError, KeyboardInterrupt):
        print()
