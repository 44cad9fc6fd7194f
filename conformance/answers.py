"""The normal form of a response: the parts that must be the same for every server.

Pure. Omits what a server may choose: texts, names, times, ids of sessions and events, the order of members,
pages, and whether a response is JSON or an event stream (HTTP-9).
"""

import json
from typing import Any, Final, NamedTuple, cast

from probe import ID, as_object
from raw import Reply

__all__ = ["Answer", "normal"]

RPC_KINDS: Final = {"application/json", "text/event-stream"}

FREE: Final = {"_meta", "nextCursor", "instructions", "description"}
"""Members of results to ignore: a server chooses the length of pages."""

WRAPPED: Final = {"result"}
"""Stands for structured content that is not an object: its schema and shape are free."""

VALUES: Final = {"resultType", "protocolVersion", "isError"}
"""Members of results whose values are compared."""


COUNTED: Final = {"contents", "messages"}

DEMANDED: Final[dict[Any, set[str]]] = {-32021: {"requiredCapabilities"}, -32022: {"requested", "supported"}}
"""Code of an error → required members of its data."""


class Answer(NamedTuple):
    """A response in two parts, which are compared separately.

    Args:
        content: status, kind and members.
        id: its id: the "same" as that of the request, "null", "absent", or another one.
    """

    content: str
    id: str = "none"


def normal(reply: Reply, sent: bytes | None) -> Answer:
    """Return the normal form of a reply.

    Args:
        reply: the reply as received.
        sent: the body of the request.
    """
    if not reply.status:
        return Answer("no answer")
    if not reply.body:
        return Answer(f"{reply.status} {'stream' if reply.kind == 'text/event-stream' else 'nothing'}")
    if reply.kind not in RPC_KINDS or not reply.messages:
        # Not a message: the text of an HTTP error is free.
        return Answer(f"{reply.status} {'text' if reply.status >= 400 else reply.kind or 'no type'}")
    first, *_ = messages = reply.messages
    if (sent or b"").startswith(b"[") and (isinstance(first, list) or reply.status == 200):
        many = cast("list[Any]", first) if isinstance(first, list) else messages
        return Answer(f"{reply.status} batch [{', '.join(sorted(_message(one) for one in many))}]")
    *before, last = messages
    notices = sorted({str(as_object(notice).get("method")) for notice in before})
    before = f" after {', '.join(notices)}" if notices else ""
    return Answer(f"{reply.status} {_message(last)}{before}", _id(as_object(last), sent))


def _message(value: Any) -> str:
    """Return the kind and the content of a message."""
    message = as_object(value)
    if message.get("jsonrpc") != "2.0":
        return "no JSON-RPC"
    if isinstance(message.get("error"), dict):
        error = as_object(message["error"])
        return f"error {error.get('code')}{_details(error)}"
    if isinstance(message.get("result"), dict):
        return f"result {_members(as_object(message['result']))}"
    if "method" in message:
        return f"{'asks' if 'id' in message else 'tells'} {message['method']}"
    return "no answer to anything"


def _details(error: dict[str, Any]) -> str:
    """Return the members of an error's data that its code requires."""
    there = DEMANDED.get(error.get("code"), set[str]()) & set(as_object(error.get("data")))
    return f" with {', '.join(sorted(there))}" if there else ""


def _members(result: dict[str, Any]) -> str:
    """Return the relevant members of a result."""
    members = [_member(name, result[name]) for name in sorted(set(result) - FREE)]
    return "{" + "; ".join(filter(None, members)) + "}"


def _member(name: str, value: Any) -> str:
    """Format a member of a result; empty if it has its default value."""
    if name in VALUES:
        return f"{name}={value}" if value is not False else ""  # the default of isError
    if name == "content":
        return f"content={'+'.join(str(as_object(block).get('type')) for block in value)}"
    if name == "completion":
        return f"completion={as_object(value).get('values')}"
    if name == "inputRequests":
        return f"asks {', '.join(str(as_object(request).get('method')) for request in value.values())}"
    if name == "structuredContent":
        shown = isinstance(value, dict) and set(as_object(value)) != WRAPPED
        return f"structuredContent={json.dumps(value, sort_keys=True)}" if shown else ""
    return f"{len(value)} {name}" if name in COUNTED else name


def _id(message: dict[str, Any], sent: bytes | None) -> str:
    """Compare the id of a response with that of the request."""
    if not message or "method" in message:
        return "none"
    if "id" not in message:
        return "absent"
    if message["id"] is None:
        return "null"
    try:
        mine = as_object(json.loads(sent or b"null")).get("id")
    except (ValueError, RecursionError):
        mine = ID  # a server may find it in invalid JSON
    same = isinstance(mine, bool) == isinstance(message["id"], bool) and mine == message["id"]
    return "same" if same else "another"
