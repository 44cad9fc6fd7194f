"""Plays the server of a recorded conversation, so that a test needs none.

Scenes are played in any order, each once, with the ids of now. Owns what is said next, and what is said to a
request that was not recorded. Time is not played: what was said is said at once.

PART scenes: What was said because of what, in a recorded conversation.

A request, what the server said while it worked on it, its questions with their answers, and its answer are
one scene. Owns how scenes are found in a recording, and which of them a request of now means. Plays nothing.

PART likeness: Whether what is said now is like something else: a pattern with gaps, or what was said before
and masked.

Owns the comparison of texts and of JSON values. Knows nothing of messages.
"""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from os import PathLike, fspath
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolpost.channel import Channel
from toolpost.errors import ChannelClosed, InternalError, MethodNotFound, RPCError
from toolpost.protocol.jsonrpc import encode, encode_error, shorten
from toolpost.testing.masking import MASKED
from toolpost.testing.tape import TapeLine, read_tape


def matches_pattern(pattern: str, text: str, gap: str) -> bool:
    """Whether a text fits a pattern, in which a gap stands for anything. The work is linear."""
    first, *rest = pattern.split(gap)
    if not rest:
        return pattern == text
    if not text.startswith(first):
        return False
    place = len(first)
    for part in rest[:-1]:
        found = text.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return len(text) - place >= len(rest[-1]) and text.endswith(rest[-1])


def matches_recorded(recorded: Any, now: Any) -> bool:
    """Whether two JSON values are the same, as far as the recorded one was not masked."""
    if isinstance(recorded, str) and isinstance(now, str):
        return matches_pattern(recorded, now, MASKED) or (
            MASKED in recorded and _matches_as_json(recorded, now)
        )
    if isinstance(recorded, dict) and isinstance(now, dict):
        ours, theirs = cast("dict[str, Any]", recorded), cast("dict[str, Any]", now)
        return ours.keys() == theirs.keys() and all(
            matches_recorded(ours[name], theirs[name]) for name in ours
        )
    if isinstance(recorded, list) and isinstance(now, list):
        some, others = cast("list[Any]", recorded), cast("list[Any]", now)
        return len(some) == len(others) and all(map(matches_recorded, some, others))
    return recorded == MASKED or (recorded == now and isinstance(recorded, bool) == isinstance(now, bool))


def _matches_as_json(recorded: str, now: str) -> bool:
    """Whether two texts are JSON that is alike: one with a secret is written anew when that is masked."""
    try:
        return matches_recorded([msgspec.json.decode(recorded)], [msgspec.json.decode(now)])
    except (msgspec.DecodeError, RecursionError):
        return False


def get_member(value: Any, *names: str) -> Any:
    """A member of an object, or of a member of it; None if there is no such thing."""
    for name in names:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value


# --------------------------------------------------------------------- scenes

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


# --------------------------------------------------------------------- replaying

_DISCOVER_METHOD: Final = "server/discover"
_PING_METHOD: Final = "ping"


class Replay:
    """The server of a recorded conversation; a target for any number of clients, each from the beginning.

    Args:
        path: the file.
        again: whether a request may be made more often than it was recorded; the last answer is repeated.

    Raises:
        MCPError: the file is no recording.
    """

    def __init__(self, path: str | PathLike[str], *, again: bool = False) -> None:
        self._path = fspath(path)
        header, lines = read_tape(path)
        self.name = header.target or self._path
        """The name of the server, as it was recorded."""
        self._exchanges = group_exchanges(lines)
        self._again = again
        self._unplayed = dict.fromkeys(self._exchanges)

    @property
    def unplayed_requests(self) -> list[str]:
        """The recorded requests that the last client has not made."""
        return [str(scene) for scene in self._unplayed if scene.id is not None]

    async def serve(self, channel: Channel) -> None:
        """Play the server on a channel, from the beginning, until the client leaves."""
        stage = _ReplaySession(channel)
        self._unplayed = unplayed = dict.fromkeys(self._exchanges)
        try:
            for scene in self._exchanges:
                if not scene.method:  # said before anybody asked
                    del unplayed[scene]
                    await stage.begin(scene, {})
            while True:
                for message in _decode_messages(await channel.receive()):
                    await self._handle_message(stage, unplayed, message)
        except ChannelClosed:
            return

    async def _handle_message(
        self, stage: "_ReplaySession", unplayed: dict[RecordedExchange, None], message: dict[str, Any]
    ) -> None:
        if "method" not in message:
            await stage.handle_answer(message)
            return
        method = str(message["method"])
        params = normalize_params(method, message.get("params"))
        scene = _find_next(unplayed, method, params)
        if scene is not None:
            del unplayed[scene]
            await stage.begin(scene, message)
            return
        meant = [scene for scene in self._exchanges if scene.matches(method, params)]
        if meant and self._again:
            await stage.begin(meant[-1], message)
        elif "id" in message and method == _PING_METHOD:
            await stage.send({"jsonrpc": "2.0", "id": message["id"], "result": {}}, message["id"])
        elif "id" in message:
            await stage.refuse(message["id"], self._make_unrecorded_error(method, params, meant))

    def _make_unrecorded_error(self, method: str, params: Any, meant: list[RecordedExchange]) -> RPCError:
        """What is said to a request that was not recorded, or not so often."""
        asked = describe_message(method, params)
        if meant:
            times = "once" if len(meant) == 1 else f"{len(meant)} times"
            lines = ", ".join(str(scene.line) for scene in meant)
            return InternalError(
                f"{asked} was recorded {times} in {self._path} (line {lines}), and is now asked more often; "
                "record it anew, or use replay(…, again=True)"
            )
        if method == _DISCOVER_METHOD:  # what a server says that is older than it
            return MethodNotFound(f"{method} was not recorded in {self._path}")
        near = find_nearest(method, params, self._exchanges)
        told = "" if near is None else f"; the nearest is line {near.line}: {near}"
        return InternalError(f"{asked} was not recorded in {self._path}{told}")


def replay(path: str | PathLike[str], *, again: bool = False) -> Replay:
    """The server of a recorded conversation: `Client(replay("weather.jsonl"))`.

    A request gets the answer that was recorded for the same method and params, in the order in which they
    were made; notices and questions that came with it come again. A question has to be answered as it was.
    What was not recorded is refused, with an error that shows the nearest that was.

    Args:
        path: the file that `record`, or `toolpost tap --record`, has written.
        again: whether a request may be made more often than it was recorded; the last answer is repeated.

    Raises:
        MCPError: the file is no recording.
    """
    return Replay(path, again=again)


def _find_next(unplayed: Iterable[RecordedExchange], method: str, params: Any) -> RecordedExchange | None:
    """The first scene that is left for a message; one that got lost only if it was not sent again."""
    lost = None
    for scene in unplayed:
        if scene.matches(method, params):
            if scene.loss_reason is None:
                return scene
            lost = lost or scene
    return lost


# --------------------------------------------------------------------- playing


class _ActiveExchange(NamedTuple):
    """A scene that is being played.

    Args:
        exchange: which one.
        trigger: the message of the client that it is played for.
        steps: what is left of it.
        request_ids: the ids that recorded questions have now.
    """

    exchange: RecordedExchange
    trigger: dict[str, Any]
    steps: list[dict[str, Any]]
    request_ids: dict[Any, int]


class _ReplaySession:
    """One channel, and the scenes that wait for an answer of its client.

    Args:
        channel: the channel to the client.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last_id = 0
        self._waiting: dict[Any, _ActiveExchange] = {}

    async def begin(self, scene: RecordedExchange, message: dict[str, Any]) -> None:
        """Play a scene, for a message of the client that means it."""
        if scene.loss_reason is None:
            await self._advance(_ActiveExchange(scene, message, list(scene.steps), {}))
        else:
            why = f"{scene} was lost, too, when it was recorded: {scene.loss_reason}"
            await self.refuse(message["id"], InternalError(why))

    async def handle_answer(self, message: dict[str, Any]) -> None:
        """Go on with the scene in which the client was asked."""
        act = self._waiting.pop(message.get("id"), None)
        if act is None:
            return
        recorded, now = _extract_answer(act.steps.pop(0)), _extract_answer(message)
        if matches_recorded(recorded, now):
            await self._advance(act)
        elif "id" in act.trigger:
            answered, expected = describe_message("", now), describe_message("", recorded)
            why = f"in {act.exchange} the client answered {answered}; recorded was {expected}"
            await self.refuse(act.trigger["id"], InternalError(why))

    async def refuse(self, request_id: Any, error: RPCError) -> None:
        """Answer a request with an error."""
        await self._channel.send(encode_error(request_id, error), request_id)

    async def send(self, message: dict[str, Any], related: Any) -> None:
        """Send something to the client."""
        await self._channel.send(encode(message), related)

    async def _advance(self, act: _ActiveExchange) -> None:
        """Say what the server said, up to the next answer of the client."""
        while act.steps:
            step = act.steps[0]
            if "method" not in step and step.get("id") in act.request_ids:
                self._waiting[act.request_ids[step["id"]]] = act
                return
            message = self._renumber(act, act.steps.pop(0))
            if message is not None:
                await self.send(message, act.trigger.get("id"))

    def _renumber(self, act: _ActiveExchange, step: dict[str, Any]) -> dict[str, Any] | None:
        """A recorded message with the ids of now; None if nobody wants it now."""
        if "method" not in step:
            return _renumber_subscription({**step, "id": act.trigger.get("id")}, "result", act)
        if "id" in step:
            self._last_id += 1
            act.request_ids[step["id"]] = self._last_id
            return {**step, "id": self._last_id}
        params: Any = step.get("params")
        if get_member(params, "progressToken") is not None:
            token = get_member(act.trigger, "params", "_meta", "progressToken")
            return None if token is None else {**step, "params": {**params, "progressToken": token}}
        if get_member(params, "requestId") in act.request_ids:
            return {**step, "params": {**params, "requestId": act.request_ids[params["requestId"]]}}
        return _renumber_subscription(step, "params", act)


def _renumber_subscription(message: dict[str, Any], body: str, act: _ActiveExchange) -> dict[str, Any]:
    """The message, about the subscription of now if it is about one."""
    recorded = get_member(message, body, "_meta", SUBSCRIPTION_ID)
    if recorded is None:
        return message
    now = act.trigger.get("id")
    meta = {**message[body]["_meta"], SUBSCRIPTION_ID: str(now) if isinstance(recorded, str) else now}
    return {**message, body: {**message[body], "_meta": meta}}


def _decode_messages(data: bytes) -> list[dict[str, Any]]:
    """The messages in what a client has sent; none if that is garbage, as a test may want it."""
    try:
        return list(iterate_messages(msgspec.json.decode(data)))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return []


def _extract_answer(answer: dict[str, Any]) -> Any:
    """What an answer of the client says."""
    return normalize_params("", answer.get("result", answer.get("error")))
