"""Prompts: the list, and the filled-in messages."""

from base64 import b64encode
from typing import Any

import pytest

from toolpost.server.registry.media import Image
from toolpost.server.registry.prompts import to_prompt_result
from toolpost.types import GetPromptResult, ImageContent, PromptMessage, TextContent

PNG = b"\x89PNG\r\n\x1a\n..."
PICTURE = ImageContent(data=b64encode(PNG).decode(), mime_type="image/png")


def user(content: Any) -> PromptMessage:
    return PromptMessage("user", TextContent(content) if isinstance(content, str) else content)


def model(content: str) -> PromptMessage:
    return PromptMessage("assistant", TextContent(content))


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("a", [user("a")]),
        (TextContent("a"), [user("a")]),
        (Image(PNG), [user(PICTURE)]),
        (model("a"), [model("a")]),
        (("assistant", "a"), [model("a")]),
        (("user", Image(PNG)), [user(PICTURE)]),
        (("a", "b"), [user("a"), user("b")]),
        (("user", "a", "b"), [user("user"), user("a"), user("b")]),
        (["user", "a"], [user("user"), user("a")]),
        (
            ["a", ("assistant", "b"), model("c"), Image(PNG)],
            [user("a"), model("b"), model("c"), user(PICTURE)],
        ),
        ([], []),
    ],
    ids=range(11),
)
def test_return_values_become_messages(value, messages):
    result = to_prompt_result(value, "what it is for")
    assert (result.messages, result.description) == (messages, "what it is for")


def test_a_whole_result_passes_as_it_is():
    result = GetPromptResult(messages=[])
    assert to_prompt_result(result, "ignored") is result


@pytest.mark.parametrize("value", [1, None, {"role": "user"}, [["a"]], [b"a"], [("user", 1)]], ids=range(6))
def test_an_invalid_message_is_rejected(value):
    with pytest.raises(TypeError, match="a prompt must return text, content blocks or messages, not "):
        to_prompt_result(value)
