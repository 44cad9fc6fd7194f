"""What was said because of what, in a recorded conversation.

A request, what the server said while it worked on it, its questions with their answers, and its answer are
one scene. Owns how scenes are found in a recording, and which of them a request of now means. Plays nothing.
"""

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, Final, cast

import msgspec

from toolpost.protocol.jsonrpc import encode, shorten
from toolpost.testing.likeness import get_member, matches_recorded
from toolpost.testing.tape import TapeLine

__all__ = [
    "SUBSCRIPTION_ID",
    "RecordedExchange",
    "describe_message",
    "find_nearest",
    "group_exchanges",
    "iterate_messages",
    "normalize_params",
]

SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"

MAX_SHOWN_LENGTH: Final = 300
"""How many characters of a message an error shows."""

MAX_COMPARED_REQUESTS: Final = 200
"""With how many recorded requests one is compared that was not recorded, to find the nearest."""

_LISTEN_METHOD: Final = "subscriptions/listen"
"""The request that is answered only when it ends, and may be open when the recording is."""

_HANDSHAKE_METHODS: Final = frozenset({"initialize", "server/discover"})
"""Requests that are the same whoever makes them: what differs is the name and the abilities of the client."""


class RecordedExchange:
    """A recorded message of the client, and all that was said because of it.

    Attributes:
        line: where it stands in the file.
        id: its id, if it is a request.
        method: of the request or notice; empty for what the server said before anybody asked.
        params: what makes it the same as another.
        steps: what comes next, in order: messages of the server, and answers of the client in between.
        loss_reason: why it was not answered, unless the client took it back and nobody has waited for that.
    """

    def __init__(self, line: int, message: dict[str, Any]) -> None:
        self.line = line
        self.id = message.get("id")
        self.method = str(message.get("method", ""))
        self.params = normalize_params(self.method, message.get("params"))
        self.progress_token = get_member(message, "params", "_meta", "progressToken")
        self.steps: list[dict[str, Any]] = []
        self.loss_reason: str | None = None

    def __str__(self) -> str:
        return describe_message(self.method, self.params)

    def matches(self, method: str, params: Any) -> bool:
        """Whether this is what was recorded for a message."""
        return self.method == method and matches_recorded(self.params, params)


def normalize_params(method: str, params: Any) -> Any:
    """What makes a message the same as another of its method; who sends it and when does not count."""
    if method in _HANDSHAKE_METHODS or not isinstance(params, dict):
        return {}
    members = cast("dict[str, Any]", params)
    return {name: value for name, value in members.items() if name != "_meta" and value not in (None, {})}


def describe_message(method: str, params: Any) -> str:
    """A message as an error shows it."""
    return shorten(f"{method} {encode(params).decode()}" if params else method, MAX_SHOWN_LENGTH)


def find_nearest(method: str, params: Any, scenes: list[RecordedExchange]) -> RecordedExchange | None:
    """The recorded request that is nearest to one that was not recorded, if there is any like it."""
    asked = describe_message(method, params)
    same = [scene for scene in scenes if scene.method == method]
    others = [scene for scene in scenes if scene.id is not None and scene.method not in _HANDSHAKE_METHODS]
    near = {
        scene: SequenceMatcher(None, str(scene), asked).ratio()
        for scene in (same or others)[:MAX_COMPARED_REQUESTS]
    }
    return max(near, key=lambda scene: near[scene], default=None)


def iterate_messages(value: Any) -> Iterator[dict[str, Any]]:
    """The messages in one, or in a batch of them; what has no such id as there are is none."""
    for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
        if isinstance(each, dict) and not isinstance(get_member(each, "id"), dict | list):
            yield cast("dict[str, Any]", each)


# --------------------------------------------------------------------- finding them


def group_exchanges(lines: list[TapeLine]) -> list[RecordedExchange]:
    """All scenes of a recording, in order."""
    scenes: list[RecordedExchange] = []
    sorters: dict[int, _ExchangeGrouper] = {}
    for number, line in enumerate(lines, 2):
        sorter = sorters.setdefault(line.link, _ExchangeGrouper(scenes))
        if not isinstance(line.lost, msgspec.UnsetType):
            sorter.mark_lost(line.lost, line.why)
        if line.sender == "server" and not isinstance(line.closed, msgspec.UnsetType):
            sorter.mark_ended(line.closed)
        for message in iterate_messages(line.message):
            (sorter.add_client_message if line.sender == "client" else sorter.add_server_message)(
                number, message
            )
    for sorter in sorters.values():
        sorter.mark_ended("the recording ends before its answer")
    return scenes


class _ExchangeGrouper:
    """Finds the scene that each message of one connection belongs to.

    Args:
        scenes: those of all connections, where new ones are added.
    """

    def __init__(self, scenes: list[RecordedExchange]) -> None:
        self._exchanges = scenes
        self._own_exchanges: list[RecordedExchange] = []
        self._pending: dict[Any, RecordedExchange] = {}
        self._client_requests: dict[Any, RecordedExchange] = {}
        self._cancelled_ids: set[str] = set()

    def add_client_message(self, number: int, message: dict[str, Any]) -> None:
        if "method" in message:
            scene = self._add_exchange(number, message)
            if "id" in message:
                self._pending[message["id"]] = scene
            elif scene.method == "notifications/cancelled":
                self._cancelled_ids.add(str(get_member(message, "params", "requestId")))
            return
        scene = self._client_requests.pop(message.get("id"), None)
        if scene is not None:
            scene.steps.append(message)

    def add_server_message(self, number: int, message: dict[str, Any]) -> None:
        if "method" not in message:
            scene = self._pending.pop(message.get("id"), None)
        else:
            scene = self._find_owner(message) or self._add_exchange(number, {})
            if "id" in message:
                self._client_requests[message["id"]] = scene
        if scene is not None:
            scene.steps.append(message)

    def mark_lost(self, request_id: Any, why: str) -> None:
        scene = self._pending.pop(request_id, None)
        if scene is not None:
            scene.loss_reason = why

    def mark_ended(self, why: str) -> None:
        """What is not answered by now will not be."""
        for request_id, scene in self._pending.items():
            if str(request_id) not in self._cancelled_ids and scene.method != _LISTEN_METHOD:
                scene.loss_reason = why
        self._pending.clear()

    def _add_exchange(self, number: int, message: dict[str, Any]) -> RecordedExchange:
        scene = RecordedExchange(number, message)
        self._exchanges.append(scene)
        self._own_exchanges.append(scene)
        return scene

    def _find_owner(self, message: dict[str, Any]) -> RecordedExchange | None:
        """Because of what the server said something unasked: what it names, or else what was said last."""
        token = get_member(message, "params", "progressToken")
        subscription = get_member(message, "params", "_meta", SUBSCRIPTION_ID)
        if token is not None or subscription is not None:
            for scene in reversed(self._own_exchanges):
                if token is not None and scene.progress_token == token:
                    return scene
                if scene.id is not None and subscription is not None and str(scene.id) == str(subscription):
                    return scene
        # What a server says while it works on something mostly belongs to that.
        latest = next(reversed(self._pending.values()), None)
        return latest or (self._own_exchanges[-1] if self._own_exchanges else None)
