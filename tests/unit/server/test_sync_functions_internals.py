"""Functions that are not async: what they can say and ask from their thread, and how it ends."""

import inspect
from typing import Any

from toolpost import Context, SyncContext
from toolpost.server.request import ContextRequest
from toolpost.server.sync_context import SyncContextRequest

FOR_THE_HANDLER = {
    "ask",
    "connection",
    "conversation",
    "set_input_responses",
    "hand_over",
    "has_asked",
    "incoming",
    "input_responses",
    "introduce",
    "method",
    "get_list_page",
    "copy_for_server",
    "related",
    "request_state",
    "server",
    "set_log_level",
    "replay",
    "loaded_replay",
    "replay_answer",
    "send_notification",
    "send_request",
    "remove_subscription",
    "add_subscription",
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(fn: Any) -> list[tuple[Any, ...]]:
    return [(it.name, it.kind, it.default) for it in inspect.signature(fn).parameters.values()]


def test_both_contexts_can_do_the_same():
    assert public(Context) - public(SyncContext) == FOR_THE_HANDLER
    assert public(SyncContext) <= public(Context)
    assert public(ContextRequest) == public(SyncContextRequest)
    for name in public(SyncContext):
        ours, theirs = getattr(SyncContext, name), getattr(Context, name)
        if inspect.isfunction(ours):
            assert parameters(ours) == parameters(theirs), name
