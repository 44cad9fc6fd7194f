"""Probes of methods: each method of each revision, with valid and unusual parameters."""

from typing import Any, Final

from probe import Table

__all__ = ["ODD_PARAMS", "methods"]

BOTH: Final[dict[str, dict[str, Any]]] = {
    "tools/list": {},
    "tools/call": {"name": "order", "arguments": {"dish": "soup", "portions": 2}},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "config://app"},
    "prompts/list": {},
    "prompts/get": {"name": "greet", "arguments": {"name": "Ann"}},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "greet"},
        "argument": {"name": "name", "value": "an"},
    },
}

SESSION_ONLY: Final[dict[str, dict[str, Any]]] = {
    "ping": {},
    "logging/setLevel": {"level": "warning"},
    "resources/subscribe": {"uri": "config://app"},
    "resources/unsubscribe": {"uri": "config://app"},
}

STATELESS_ONLY: Final[dict[str, dict[str, Any]]] = {
    "server/discover": {},
    "subscriptions/listen": {"notifications": {"toolsListChanged": True}},
}

TASKS: Final = ("tasks/get", "tasks/result", "tasks/list", "tasks/cancel")
"""Methods of one revision that no kitchen supports."""

ODD_PARAMS: Final = {"null": None, "an array": ["x"], "a text": "x", "a number": 3, "false": False}

ODD_META: Final[dict[str, Any]] = {"null": None, "a text": "x", "an array": []}

ODD: Final[dict[str, list[tuple[str, Any]]]] = {
    "tools/call": [
        ("an unknown tool", {"name": "nobody", "arguments": {}}),
        ("no arguments", {"name": "add"}),
        ("arguments null", {"name": "add", "arguments": None}),
        ("arguments an array", {"name": "add", "arguments": [2, 3]}),
        ("arguments a text", {"name": "add", "arguments": "2, 3"}),
        ("an argument of the wrong type", {"name": "add", "arguments": {"a": "two", "b": 3}}),
        ("an argument null", {"name": "add", "arguments": {"a": None, "b": 3}}),
        ("an argument missing", {"name": "add", "arguments": {"a": 2}}),
        ("an argument nobody knows", {"name": "add", "arguments": {"a": 2, "b": 3, "c": 4}}),
        ("a whole number as a float", {"name": "add", "arguments": {"a": 2.0, "b": 3}}),
        ("a fraction for an integer", {"name": "add", "arguments": {"a": 2.5, "b": 3}}),
        ("a true for an integer", {"name": "add", "arguments": {"a": True, "b": 3}}),
        ("a default left out", {"name": "order", "arguments": {"dish": "soup"}}),
        ("no object as result", {"name": "add", "arguments": {"a": 2, "b": 3}}),
        ("a tool that fails", {"name": "fail", "arguments": {}}),
        ("name a number", {"name": 3, "arguments": {}}),
        ("name null", {"name": None, "arguments": {}}),
        ("name empty", {"name": "", "arguments": {}}),
        ("name in capitals", {"name": "ADD", "arguments": {"a": 2, "b": 3}}),
        ("answers to nothing", {"name": "add", "arguments": {"a": 1, "b": 2}, "inputResponses": {}}),
        ("a task wanted", {"name": "add", "arguments": {"a": 2, "b": 3}, "task": {"ttl": 1000}}),
        ("a question to the user", {"name": "ask_user", "arguments": {}}),
        ("a question to the model", {"name": "ask_model", "arguments": {}}),
        ("a question about roots", {"name": "ask_roots", "arguments": {}}),
    ],
    "resources/read": [
        ("binary", {"uri": "logo://png"}),
        ("a template", {"uri": "users://ann/profile"}),
        ("a template, percent-encoded", {"uri": "users://an%20n/profile"}),
        ("a template, empty", {"uri": "users:///profile"}),
        ("an unknown resource", {"uri": "config://nobody"}),
        ("no URI at all", {"uri": "not a uri"}),
        ("uri empty", {"uri": ""}),
        ("uri a number", {"uri": 3}),
        ("uri null", {"uri": None}),
        ("a file outside", {"uri": "file:///etc/passwd"}),
    ],
    "prompts/get": [
        ("an unknown prompt", {"name": "nobody"}),
        ("a required argument missing", {"name": "greet", "arguments": {}}),
        ("no arguments", {"name": "greet"}),
        ("arguments null", {"name": "greet", "arguments": None}),
        ("arguments an array", {"name": "greet", "arguments": ["Ann"]}),
        ("an argument a number", {"name": "greet", "arguments": {"name": 3}}),
        ("an argument nobody knows", {"name": "greet", "arguments": {"name": "Ann", "hat": "red"}}),
        ("name a number", {"name": 3}),
    ],
    "completion/complete": [
        ("a template", {"ref": {"type": "ref/resource", "uri": "users://{name}/profile"},
                        "argument": {"name": "name", "value": "b"}}),
        ("nothing fits", {"ref": {"type": "ref/prompt", "name": "greet"},
                          "argument": {"name": "name", "value": "z"}}),
        ("an unknown prompt", {"ref": {"type": "ref/prompt", "name": "nobody"},
                               "argument": {"name": "name", "value": "a"}}),
        ("an unknown template", {"ref": {"type": "ref/resource", "uri": "nobody://{x}"},
                                 "argument": {"name": "x", "value": "a"}}),
        ("an argument without completion", {"ref": {"type": "ref/prompt", "name": "greet"},
                                            "argument": {"name": "mood", "value": "g"}}),
        ("an unknown kind of reference", {"ref": {"type": "ref/tool", "name": "add"},
                                          "argument": {"name": "a", "value": "1"}}),
        ("no argument", {"ref": {"type": "ref/prompt", "name": "greet"}}),
        ("a value that is a number", {"ref": {"type": "ref/prompt", "name": "greet"},
                                      "argument": {"name": "name", "value": 3}}),
        ("a context", {"ref": {"type": "ref/prompt", "name": "greet"},
                       "argument": {"name": "name", "value": "an"},
                       "context": {"arguments": {"mood": "good"}}}),
    ],
    "logging/setLevel": [
        ("an unknown level", {"level": "loud"}),
        ("level a number", {"level": 3}),
        ("level in capitals", {"level": "WARNING"}),
    ],
    "resources/subscribe": [
        ("an unknown resource", {"uri": "config://nobody"}),
        ("uri a number", {"uri": 3}),
    ],
    "resources/unsubscribe": [("what was never subscribed", {"uri": "logo://png"})],
    "subscriptions/listen": [
        ("nothing to hear", {"notifications": {}}),
        ("resources", {"notifications": {"resourceSubscriptions": ["config://app"]}}),
        ("an unknown resource", {"notifications": {"resourceSubscriptions": ["config://nobody"]}}),
        ("resources a text", {"notifications": {"resourceSubscriptions": "config://app"}}),
        ("an unknown kind", {"notifications": {"weatherChanged": True}}),
        ("notifications null", {"notifications": None}),
        ("notifications an array", {"notifications": ["toolsListChanged"]}),
        ("a flag that is a text", {"notifications": {"toolsListChanged": "yes"}}),
    ],
}  # fmt: skip
"""Unusual parameters of single methods."""

CURSORS: Final = {"unknown": "bm9wZQ==", "empty": "", "a number": 3, "null": None}


def methods(table: Table) -> None:
    """Add the probes of methods."""
    offered = BOTH | (STATELESS_ONLY if table.stateless else SESSION_ONLY)
    for method, params in offered.items():
        # Of a stream that stays open, only the first message is read.
        until = "message" if method == "subscriptions/listen" else "answer"
        _each(table, method, params, until)
        for what, odd in ODD.get(method, []):
            # A question waits for the answer of the client, so it gets its own session.
            session = "own" if what.startswith("a question") else "shared"
            table.add(f"{method}: {what}", table.request(method, odd), until=until, session=session)
    for method in (method for method in offered if method.endswith("/list")):
        for what, cursor in CURSORS.items():
            table.add(f"{method}: cursor {what}", table.request(method, {"cursor": cursor}))
    for method, params in {**BOTH, **SESSION_ONLY, **STATELESS_ONLY}.items():
        if method not in offered:
            table.add(f"{method}: a method of another revision", table.request(method, params))
    for method in TASKS:
        table.add(f"{method}: nobody offers tasks", table.request(method, {"taskId": "x"}))


def _each(table: Table, method: str, params: dict[str, Any], until: str) -> None:
    """Add unusual members that any request can have."""
    request = table.request
    table.add(f"{method}: well-formed", request(method, params), until=until)
    bare = {"jsonrpc": "2.0", "id": 7, "method": method}
    table.add(f"{method}: no params", bare, until=until)
    for what, odd in ODD_PARAMS.items():
        table.add(f"{method}: params {what}", bare | {"params": odd}, until=until)
    if params:
        table.add(f"{method}: params empty", request(method, {}), until=until)
    table.add(f"{method}: an unknown parameter", request(method, {**params, "weather": 1}), until=until)
    table.add(f"{method}: an unknown member", request(method, params, weather=1), until=until)
    table.add(f"{method}: a text as id", request(method, params, id="seven"), until=until)
    for what, meta in ODD_META.items():
        table.add(f"{method}: _meta {what}", request(method, {**params, "_meta": meta}), until=until)
