"""What was said because of what, in a recorded conversation.

A request, what the server said while it worked on it, its questions with their answers, and its answer are
one scene. Owns how scenes are found in a recording, and which of them a request of now means. Plays nothing.
"""

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, Final, cast

import msgspec

from toolpost.protocol.jsonrpc import encode, shorten
from toolpost.testing.likeness import alike, member
from toolpost.testing.tape import Line

__all__ = ["SUBSCRIPTION", "Scene", "messages_in", "nearest", "plain", "scenes_of", "shown"]

SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"

MAX_SHOWN: Final = 300
"""How many characters of a message an error shows."""

MAX_COMPARED: Final = 200
"""With how many recorded requests one is compared that was not recorded, to find the nearest."""

_LISTEN: Final = "subscriptions/listen"
"""The request that is answered only when it ends, and may be open when the recording is."""

_GREETINGS: Final = frozenset({"initialize", "server/discover"})
"""Requests that are the same whoever makes them: what differs is the name and the abilities of the client."""


class Scene:
    """A recorded message of the client, and all that was said because of it.

    Attributes:
        line: where it stands in the file.
        id: its id, if it is a request.
        method: of the request or notice; empty for what the server said before anybody asked.
        params: what makes it the same as another.
        steps: what comes next, in order: messages of the server, and answers of the client in between.
        lost: why it was not answered, unless the client took it back and nobody has waited for that.
    """

    def __init__(self, line: int, message: dict[str, Any]) -> None:
        self.line = line
        self.id = message.get("id")
        self.method = str(message.get("method", ""))
        self.params = plain(self.method, message.get("params"))
        self.token = member(message, "params", "_meta", "progressToken")
        self.steps: list[dict[str, Any]] = []
        self.lost: str | None = None

    def __str__(self) -> str:
        return shown(self.method, self.params)

    def means(self, method: str, params: Any) -> bool:
        """Whether this is what was recorded for a message."""
        return self.method == method and alike(self.params, params)


def plain(method: str, params: Any) -> Any:
    """What makes a message the same as another of its method; who sends it and when does not count."""
    if method in _GREETINGS or not isinstance(params, dict):
        return {}
    members = cast("dict[str, Any]", params)
    return {name: value for name, value in members.items() if name != "_meta" and value not in (None, {})}


def shown(method: str, params: Any) -> str:
    """A message as an error shows it."""
    return shorten(f"{method} {encode(params).decode()}" if params else method, MAX_SHOWN)


def nearest(method: str, params: Any, scenes: list[Scene]) -> Scene | None:
    """The recorded request that is nearest to one that was not recorded, if there is any like it."""
    asked = shown(method, params)
    same = [scene for scene in scenes if scene.method == method]
    others = [scene for scene in scenes if scene.id is not None and scene.method not in _GREETINGS]
    near = {
        scene: SequenceMatcher(None, str(scene), asked).ratio() for scene in (same or others)[:MAX_COMPARED]
    }
    return max(near, key=lambda scene: near[scene], default=None)


def messages_in(value: Any) -> Iterator[dict[str, Any]]:
    """The messages in one, or in a batch of them; what has no such id as there are is none."""
    for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
        if isinstance(each, dict) and not isinstance(member(each, "id"), dict | list):
            yield cast("dict[str, Any]", each)


# --------------------------------------------------------------------- finding them


def scenes_of(lines: list[Line]) -> list[Scene]:
    """All scenes of a recording, in order."""
    scenes: list[Scene] = []
    sorters: dict[int, _Sorter] = {}
    for number, line in enumerate(lines, 2):
        sorter = sorters.setdefault(line.link, _Sorter(scenes))
        if not isinstance(line.lost, msgspec.UnsetType):
            sorter.lost(line.lost, line.why)
        if line.sender == "server" and not isinstance(line.closed, msgspec.UnsetType):
            sorter.ended(line.closed)
        for message in messages_in(line.message):
            (sorter.client if line.sender == "client" else sorter.server)(number, message)
    for sorter in sorters.values():
        sorter.ended("the recording ends before its answer")
    return scenes


class _Sorter:
    """Finds the scene that each message of one connection belongs to.

    Args:
        scenes: those of all connections, where new ones are added.
    """

    def __init__(self, scenes: list[Scene]) -> None:
        self._all = scenes
        self._ours: list[Scene] = []
        self._pending: dict[Any, Scene] = {}
        self._questions: dict[Any, Scene] = {}
        self._taken_back: set[str] = set()

    def client(self, number: int, message: dict[str, Any]) -> None:
        if "method" in message:
            scene = self._new(number, message)
            if "id" in message:
                self._pending[message["id"]] = scene
            elif scene.method == "notifications/cancelled":
                self._taken_back.add(str(member(message, "params", "requestId")))
            return
        scene = self._questions.pop(message.get("id"), None)
        if scene is not None:
            scene.steps.append(message)

    def server(self, number: int, message: dict[str, Any]) -> None:
        if "method" not in message:
            scene = self._pending.pop(message.get("id"), None)
        else:
            scene = self._owner(message) or self._new(number, {})
            if "id" in message:
                self._questions[message["id"]] = scene
        if scene is not None:
            scene.steps.append(message)

    def lost(self, request_id: Any, why: str) -> None:
        scene = self._pending.pop(request_id, None)
        if scene is not None:
            scene.lost = why

    def ended(self, why: str) -> None:
        """What is not answered by now will not be."""
        for request_id, scene in self._pending.items():
            if str(request_id) not in self._taken_back and scene.method != _LISTEN:
                scene.lost = why
        self._pending.clear()

    def _new(self, number: int, message: dict[str, Any]) -> Scene:
        scene = Scene(number, message)
        self._all.append(scene)
        self._ours.append(scene)
        return scene

    def _owner(self, message: dict[str, Any]) -> Scene | None:
        """Because of what the server said something unasked: what it names, or else what was said last."""
        token = member(message, "params", "progressToken")
        subscription = member(message, "params", "_meta", SUBSCRIPTION)
        if token is not None or subscription is not None:
            for scene in reversed(self._ours):
                if token is not None and scene.token == token:
                    return scene
                if scene.id is not None and subscription is not None and str(scene.id) == str(subscription):
                    return scene
        # What a server says while it works on something mostly belongs to that.
        latest = next(reversed(self._pending.values()), None)
        return latest or (self._ours[-1] if self._ours else None)
