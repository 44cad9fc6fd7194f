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
from toolpost.protocol.jsonrpc import encode, encode_failure
from toolpost.testing.likeness import alike, member
from toolpost.testing.scenes import SUBSCRIPTION, Scene, messages_in, nearest, plain, scenes_of, shown
from toolpost.testing.tape import read_tape

__all__ = ["Replay", "replay"]

_DISCOVER: Final = "server/discover"
_PING: Final = "ping"


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
        self._scenes = scenes_of(lines)
        self._again = again
        self._unplayed = dict.fromkeys(self._scenes)

    @property
    def unplayed(self) -> list[str]:
        """The recorded requests that the last client has not made."""
        return [str(scene) for scene in self._unplayed if scene.id is not None]

    async def serve(self, channel: Channel) -> None:
        """Play the server on a channel, from the beginning, until the client leaves."""
        stage = _Stage(channel)
        self._unplayed = unplayed = dict.fromkeys(self._scenes)
        try:
            for scene in self._scenes:
                if not scene.method:  # said before anybody asked
                    del unplayed[scene]
                    await stage.begin(scene, {})
            while True:
                for message in _read(await channel.receive()):
                    await self._take(stage, unplayed, message)
        except ChannelClosed:
            return

    async def _take(self, stage: "_Stage", unplayed: dict[Scene, None], message: dict[str, Any]) -> None:
        if "method" not in message:
            await stage.answered(message)
            return
        method = str(message["method"])
        params = plain(method, message.get("params"))
        scene = _next(unplayed, method, params)
        if scene is not None:
            del unplayed[scene]
            await stage.begin(scene, message)
            return
        meant = [scene for scene in self._scenes if scene.means(method, params)]
        if meant and self._again:
            await stage.begin(meant[-1], message)
        elif "id" in message and method == _PING:
            await stage.say({"jsonrpc": "2.0", "id": message["id"], "result": {}}, message["id"])
        elif "id" in message:
            await stage.refuse(message["id"], self._unknown(method, params, meant))

    def _unknown(self, method: str, params: Any, meant: list[Scene]) -> RPCError:
        """What is said to a request that was not recorded, or not so often."""
        asked = shown(method, params)
        if meant:
            times = "once" if len(meant) == 1 else f"{len(meant)} times"
            lines = ", ".join(str(scene.line) for scene in meant)
            return InternalError(
                f"{asked} was recorded {times} in {self._path} (line {lines}), and is now asked more often; "
                "record it anew, or use replay(…, again=True)"
            )
        if method == _DISCOVER:  # what a server says that is older than it
            return MethodNotFound(f"{method} was not recorded in {self._path}")
        near = nearest(method, params, self._scenes)
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


def _next(unplayed: Iterable[Scene], method: str, params: Any) -> Scene | None:
    """The first scene that is left for a message; one that got lost only if it was not sent again."""
    lost = None
    for scene in unplayed:
        if scene.means(method, params):
            if scene.lost is None:
                return scene
            lost = lost or scene
    return lost


# --------------------------------------------------------------------- playing


class _Act(NamedTuple):
    """A scene that is being played.

    Args:
        scene: which one.
        begun: the message of the client that it is played for.
        steps: what is left of it.
        names: the ids that recorded questions have now.
    """

    scene: Scene
    begun: dict[str, Any]
    steps: list[dict[str, Any]]
    names: dict[Any, int]


class _Stage:
    """One channel, and the scenes that wait for an answer of its client.

    Args:
        channel: the channel to the client.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._asked = 0
        self._waiting: dict[Any, _Act] = {}

    async def begin(self, scene: Scene, message: dict[str, Any]) -> None:
        """Play a scene, for a message of the client that means it."""
        if scene.lost is None:
            await self._go_on(_Act(scene, message, list(scene.steps), {}))
        else:
            why = f"{scene} was lost, too, when it was recorded: {scene.lost}"
            await self.refuse(message["id"], InternalError(why))

    async def answered(self, message: dict[str, Any]) -> None:
        """Go on with the scene in which the client was asked."""
        act = self._waiting.pop(message.get("id"), None)
        if act is None:
            return
        recorded, now = _words(act.steps.pop(0)), _words(message)
        if alike(recorded, now):
            await self._go_on(act)
        elif "id" in act.begun:
            why = f"in {act.scene} the client answered {shown('', now)}; recorded was {shown('', recorded)}"
            await self.refuse(act.begun["id"], InternalError(why))

    async def refuse(self, request_id: Any, error: RPCError) -> None:
        """Answer a request with an error."""
        await self._channel.send(encode_failure(request_id, error), request_id)

    async def say(self, message: dict[str, Any], related: Any) -> None:
        """Send something to the client."""
        await self._channel.send(encode(message), related)

    async def _go_on(self, act: _Act) -> None:
        """Say what the server said, up to the next answer of the client."""
        while act.steps:
            step = act.steps[0]
            if "method" not in step and step.get("id") in act.names:
                self._waiting[act.names[step["id"]]] = act
                return
            message = self._of_now(act, act.steps.pop(0))
            if message is not None:
                await self.say(message, act.begun.get("id"))

    def _of_now(self, act: _Act, step: dict[str, Any]) -> dict[str, Any] | None:
        """A recorded message with the ids of now; None if nobody wants it now."""
        if "method" not in step:
            return _subscribed({**step, "id": act.begun.get("id")}, "result", act)
        if "id" in step:
            self._asked += 1
            act.names[step["id"]] = self._asked
            return {**step, "id": self._asked}
        params: Any = step.get("params")
        if member(params, "progressToken") is not None:
            token = member(act.begun, "params", "_meta", "progressToken")
            return None if token is None else {**step, "params": {**params, "progressToken": token}}
        if member(params, "requestId") in act.names:
            return {**step, "params": {**params, "requestId": act.names[params["requestId"]]}}
        return _subscribed(step, "params", act)


def _subscribed(message: dict[str, Any], body: str, act: _Act) -> dict[str, Any]:
    """The message, about the subscription of now if it is about one."""
    recorded = member(message, body, "_meta", SUBSCRIPTION)
    if recorded is None:
        return message
    now = act.begun.get("id")
    meta = {**message[body]["_meta"], SUBSCRIPTION: str(now) if isinstance(recorded, str) else now}
    return {**message, body: {**message[body], "_meta": meta}}


def _read(data: bytes) -> list[dict[str, Any]]:
    """The messages in what a client has sent; none if that is garbage, as a test may want it."""
    try:
        return list(messages_in(msgspec.json.decode(data)))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return []


def _words(answer: dict[str, Any]) -> Any:
    """What an answer of the client says."""
    return plain("", answer.get("result", answer.get("error")))
