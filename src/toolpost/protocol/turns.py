"""The order of a model's conversation: every use of a tool is answered in the next message, alone.

Looks at the kinds of blocks and at their ids, in one pass. Who refuses a conversation, and how, is not known
here.
"""

from collections.abc import Iterable, Sequence

from toolpost import types
from toolpost.types.content import ToolResultContent, ToolUseContent

__all__ = ["explain_invalid_tool_turns"]


def explain_invalid_tool_turns(messages: "Iterable[types.SamplingMessage]") -> str | None:
    """What is wrong with the turns, in a sentence; None if nothing is (SAMP-6, SAMP-7)."""
    used: set[str] = set()
    for number, message in enumerate(messages, 1):
        blocks: Sequence[object] = (
            message.content if isinstance(message.content, list) else (message.content,)
        )
        results = [block for block in blocks if isinstance(block, ToolResultContent)]
        if results and (message.role != "user" or len(results) < len(blocks)):
            return f"message {number}: results of tools stand alone, in a message of the user"
        answered = {block.tool_use_id for block in results}
        if answered != used:
            expected, got = _format_ids(used), _format_ids(answered)
            return f"message {number}: results for {expected} are due here, not for {got}"
        used = {block.id for block in blocks if isinstance(block, ToolUseContent)}
    if used:
        return f"the last message uses tools, and nothing answers {_format_ids(used)}"
    return None


def _format_ids(ids: set[str]) -> str:
    """A few ids, for people."""
    shown = [repr(each[:40]) for each in sorted(ids)[:3]]
    return ", ".join(shown) + (" …" if len(ids) > 3 else "") or "no call"
