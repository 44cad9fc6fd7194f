"""Plays the server of a recorded conversation, so that a test needs none.

Scenes are played in any order, each once, with the ids of now. Owns what is said next, and what is said to a
request that was not recorded. Time is not played: what was said is said at once.
"""

from collections.abc import Iterable
from os import PathLike, fspath
from typing import Any, Final, NamedTuple

import msgspec

from toolpost.channel import Channel
from toolpost.errors import ChannelClosed, InternalError, MethodNotFound, RPCError
from toolpost.protocol.jsonrpc import encode, encode_error
from toolpost.testing.likeness import get_member, matches_recorded
from toolpost.testing.scenes import (
    SUBSCRIPTION_ID,
    RecordedExchange,
    describe_message,
    find_nearest,
    group_exchanges,
    iterate_messages,
    normalize_params,
)
from toolpost.testing.tape import read_tape

__all__ = ["Replay", "replay"]

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
