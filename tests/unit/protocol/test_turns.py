"""Uses of tools and their results, in the order in which a model expects them."""

from typing import Literal

import pytest

from toolpost.protocol.downgrade import explain_invalid_tool_turns
from toolpost.types import (
    SamplingMessage,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)

ASKS = SamplingMessage("user", TextContent("hello"))
SAYS = SamplingMessage("assistant", [TextContent("hello")])
USES = SamplingMessage("assistant", [TextContent("let me see"), ToolUseContent("1", "t", {})])
USES_TWO = SamplingMessage("assistant", [ToolUseContent("1", "t", {}), ToolUseContent("2", "t", {})])


def results(
    *ids: str, role: Literal["user", "assistant"] = "user", more: tuple[TextContent, ...] = ()
) -> SamplingMessage:
    return SamplingMessage(role, [*(ToolResultContent(each, []) for each in ids), *more])


@pytest.mark.requirement("SAMP-6", "SAMP-7")
@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], None),
        ([ASKS, SAYS, ASKS], None),
        ([ASKS, USES, results("1"), SAYS], None),
        ([ASKS, USES_TWO, results("2", "1")], None),
        ([SamplingMessage("assistant", ToolUseContent("1", "t", {})), results("1")], None),
        ([USES, results("1"), USES, results("1")], None),
        ([USES, results("1", more=(TextContent("x"),))], "message 2: tool results must be the only content"),
        ([USES, results("1", role="assistant")], "message 2: tool results must be the only content"),
        ([USES, ASKS], "message 2: expected results for '1', got no call"),
        ([USES, results("2")], "message 2: expected results for '1', got '2'"),
        ([USES_TWO, results("1")], "message 2: expected results for '1', '2'"),
        ([ASKS, results("1")], "message 2: expected results for no call, got '1'"),
        ([ASKS, USES], "the last message uses tools, but no result follows for '1'"),
        ([results(*"abcdef")], "got 'a', 'b', 'c' …"),
    ],
)
def test_every_use_of_a_tool_is_answered_next_and_by_nothing_else(messages, why):
    found = explain_invalid_tool_turns(messages)
    assert found is None if why is None else why in str(found)
