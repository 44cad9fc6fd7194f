"""Functions that are not async: messages and questions from their thread, and its end."""

import inspect
from typing import Any

from toolpost import Context, SyncContext

FOR_THE_HANDLER = {
    "ask",
    "client_connection",
    "connection",
    "conversation",
    "incoming",
    "input_responses",
    "introduce",
    "method",
    "copy_for_server",
    "enter_mounted",
    "host",
    "middleware",
    "outer",
    "related",
    "request_state",
    "server",
    "replay",
    "loaded_replay",
    "task_run",
    "send_notification",
    "send_request",
    "add_subscription",
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(fn: Any) -> list[tuple[Any, ...]]:
    return [(it.name, it.kind, it.default) for it in inspect.signature(fn).parameters.values()]


def test_both_contexts_can_do_the_same():
    assert public(Context) - public(SyncContext) == FOR_THE_HANDLER
    assert public(SyncContext) <= public(Context)
    for name in public(SyncContext):
        ours, theirs = getattr(SyncContext, name), getattr(Context, name)
        if inspect.isfunction(ours):
            assert parameters(ours) == parameters(theirs), name
