"""An answer in its normal form: what has to be the same, whoever answers.

Pure. Left out is what a server may choose: texts, names, times, ids of sessions and events, the order of
members, pages, and whether an answer comes as JSON or as an event stream (HTTP-9).
"""

import json
from typing import Any, Final, NamedTuple, cast

from probe import ID, as_object
from raw import Reply

__all__ = ["Answer", "normal"]

RPC_KINDS: Final = {"application/json", "text/event-stream"}

FREE: Final = {"_meta", "nextCursor", "instructions", "description"}
"""Members of results that say nothing about the request: pages are as long as a server likes."""

WRAPPED: Final = {"result"}
"""What a tool that gives no object gives as structured content: its schema, and so its shape, is free."""

VALUES: Final = {"resultType", "protocolVersion", "isError"}
"""Members of results whose values are compared."""


COUNTED: Final = {"contents", "messages"}

DEMANDED: Final[dict[Any, set[str]]] = {-32021: {"requiredCapabilities"}, -32022: {"requested", "supported"}}
"""What the data of an error has to hold, by its code."""


class Answer(NamedTuple):
    """What came back, in two parts that are compared on their own.

    Args:
        said: status, kind and what is in it.
        id: whose answer it says it is: the "same" id as the request, "null", "absent", or another one.
    """

    said: str
    id: str = "none"


def normal(reply: Reply, sent: bytes | None) -> Answer:
    """The normal form of a reply.

    Args:
        reply: as it came.
        sent: the body of the request.
    """
    if not reply.status:
        return Answer("no answer")
    if not reply.body:
        return Answer(f"{reply.status} {'stream' if reply.kind == 'text/event-stream' else 'nothing'}")
    if reply.kind not in RPC_KINDS or not reply.messages:
        # Whatever it is, it is no message: the text of an HTTP error is free.
        return Answer(f"{reply.status} {'text' if reply.status >= 400 else reply.kind or 'no type'}")
    first, *_ = messages = reply.messages
    if (sent or b"").startswith(b"[") and (isinstance(first, list) or reply.status == 200):
        many = cast("list[Any]", first) if isinstance(first, list) else messages
        return Answer(f"{reply.status} batch [{', '.join(sorted(_message(one) for one in many))}]")
    *before, last = messages
    notices = sorted({str(as_object(notice).get("method")) for notice in before})
    told = f" after {', '.join(notices)}" if notices else ""
    return Answer(f"{reply.status} {_message(last)}{told}", _id(as_object(last), sent))


def _message(value: Any) -> str:
    """What kind of message it is, and what is in it."""
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
    """The members of an error's data that its code demands."""
    there = DEMANDED.get(error.get("code"), set[str]()) & set(as_object(error.get("data")))
    return f" with {', '.join(sorted(there))}" if there else ""


def _members(result: dict[str, Any]) -> str:
    """The members of a result that matter."""
    told = [_member(name, result[name]) for name in sorted(set(result) - FREE)]
    return "{" + "; ".join(filter(None, told)) + "}"


def _member(name: str, value: Any) -> str:
    """A member of a result; nothing if it says no more than if it were not there."""
    if name in VALUES:
        return f"{name}={value}" if value is not False else ""  # which is what isError is if it is left out
    if name == "content":
        return f"content={'+'.join(str(as_object(block).get('type')) for block in value)}"
    if name == "completion":
        return f"completion={as_object(value).get('values')}"
    if name == "inputRequests":
        return f"asks {', '.join(str(as_object(asked).get('method')) for asked in value.values())}"
    if name == "structuredContent":
        shown = isinstance(value, dict) and set(as_object(value)) != WRAPPED
        return f"structuredContent={json.dumps(value, sort_keys=True)}" if shown else ""
    return f"{len(value)} {name}" if name in COUNTED else name


def _id(message: dict[str, Any], sent: bytes | None) -> str:
    """Whose answer it says it is."""
    if not message or "method" in message:
        return "none"
    if "id" not in message:
        return "absent"
    if message["id"] is None:
        return "null"
    try:
        mine = as_object(json.loads(sent or b"null")).get("id")
    except (ValueError, RecursionError):
        mine = ID  # who finds it in what is no JSON has read well
    same = isinstance(mine, bool) == isinstance(message["id"], bool) and mine == message["id"]
    return "same" if same else "another"
