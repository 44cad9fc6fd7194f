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
        ([USES, results("1", more=(TextContent("x"),))], "message 2: results of tools stand alone"),
        ([USES, results("1", role="assistant")], "message 2: results of tools stand alone"),
        ([USES, ASKS], "message 2: results for '1' are due here, not for no call"),
        ([USES, results("2")], "message 2: results for '1' are due here, not for '2'"),
        ([USES_TWO, results("1")], "message 2: results for '1', '2' are due here"),
        ([ASKS, results("1")], "message 2: results for no call are due here, not for '1'"),
        ([ASKS, USES], "the last message uses tools, and nothing answers '1'"),
        ([results(*"abcdef")], "not for 'a', 'b', 'c' …"),
    ],
)
def test_every_use_of_a_tool_is_answered_next_and_by_nothing_else(messages, why):
    found = explain_invalid_tool_turns(messages)
    assert found is None if why is None else why in str(found)
