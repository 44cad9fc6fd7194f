"""Resources, templates, prompts and completions, two on a page."""

import logging
from typing import Any

from toolpost import Context, Image, Server
from toolpost.errors import InvalidParams
from toolpost.types import Completion, Icon, PromptMessage, ResourceContents, TextContent

PNG = b"\x89PNG\r\n\x1a\n"

server = Server("library", page_size=2)


@server.resource("config://app", title="Settings", icons=[Icon("https://example.com/a.png")], size=7)
def config() -> dict[str, int]:
    """How it is set up."""
    return {"a": 1}


@server.resource("text://hello", mime_type="text/markdown")
async def hello() -> str:
    return "# hello"


@server.resource("bytes://two")
def two() -> bytes:
    return b"\0\1"


@server.resource("parts://several")
def parts() -> list[ResourceContents]:
    return [ResourceContents("parts://several/1", text="one"), ResourceContents("parts://several/2", text="")]


@server.resource("broken://always")
async def broken() -> str:
    raise ValueError("secret")


@server.resource("refused://always")
def refused() -> str:
    raise InvalidParams("not today")


@server.resource("users://{id}/profile")
async def profile(id: int, ctx: Context) -> str:  # noqa: A002 - the template's word
    config = await ctx.read_resource("config://app")
    return f"user {id} {config[0].text}"


@server.resource("files://docs/{+path}", mime_type="text/plain")
def document(path: str) -> str:
    return f"document {path}"


@server.resource("images://{name}")
def image(name: str) -> Image:
    return Image(PNG)


@profile.complete("id")
def ids(value: str) -> list[str]:
    return [str(n) for n in range(250) if str(n).startswith(value)]


@server.prompt(title="Greeting")
def greet(name: str, times: int = 1) -> str:
    """Say hello.

    Args:
        name: whom to greet
    """
    return f"hello {name}" * times


@server.prompt
async def dialogue(ctx: Context) -> list[Any]:
    return [
        "question",
        ("assistant", "answer"),
        PromptMessage("user", TextContent(ctx.revision)),
        Image(PNG),
    ]


@server.prompt
def bad() -> str:
    raise ValueError("secret")


@server.prompt
def wrong() -> int:
    return 3


@greet.complete("name")
async def names(value: str, known: dict[str, str]) -> list[str]:
    return [f"{name}{known.get('times', '')}" for name in ("ann", "bob") if name.startswith(value)]


@greet.complete("times")
def times(value: str) -> Completion:
    return Completion(values=["1", "2"], total=9, has_more=True)


if __name__ == "__main__":
    logging.getLogger("toolpost").setLevel(logging.CRITICAL)  # what breaks here breaks on purpose
    server.run()
