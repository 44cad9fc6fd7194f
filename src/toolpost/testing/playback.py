"""Plays the server of a recorded conversation, so that a test needs none.

An exchange is a message of the client with all that the server sent because of it. Exchanges are found in the
recording and played in any order, each once, with current ids and without delays. Masked values match
anything; a request that was not recorded is refused.
"""

from collections.abc import Iterator
from difflib import SequenceMatcher
from os import PathLike, fspath
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolpost.channel import Channel
from toolpost.errors import ChannelClosed, InternalError, MethodNotFound, RPCError
from toolpost.protocol.jsonrpc import encode, encode_error, shorten
from toolpost.protocol.methods import CANCELLED, INITIALIZE, PING, SERVER_DISCOVER, SUBSCRIPTIONS_LISTEN
from toolpost.testing.masking import MASKED
from toolpost.testing.tape import TapeLine, read_tape
from toolpost.types.initialize import SUBSCRIPTION_ID

MAX_SHOWN_LENGTH: Final = 300  # how many characters of a message an error shows
MAX_COMPARED_REQUESTS: Final = 200  # recorded requests to compare an unrecorded one with
_HANDSHAKE_METHODS: Final = frozenset({INITIALIZE, SERVER_DISCOVER})  # their parameters describe the client


# --------------------------------------------------------------------- comparison


def matches_pattern(pattern: str, text: str, gap: str) -> bool:
    """Return whether a text fits a pattern in which `gap` stands for anything, in linear time."""
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
    """Return whether two JSON values are equal, as far as the recorded one was not masked."""
    if isinstance(recorded, str) and isinstance(now, str):
        as_json = MASKED in recorded and _matches_as_json(recorded, now)
        return as_json or matches_pattern(recorded, now, MASKED)
    if isinstance(recorded, dict) and isinstance(now, dict):
        ours, theirs = cast("dict[str, Any]", recorded), cast("dict[str, Any]", now)
        return ours.keys() == theirs.keys() and all(matches_recorded(ours[key], theirs[key]) for key in ours)
    if isinstance(recorded, list) and isinstance(now, list):
        some, others = cast("list[Any]", recorded), cast("list[Any]", now)
        return len(some) == len(others) and all(map(matches_recorded, some, others))
    return recorded == MASKED or (recorded == now and isinstance(recorded, bool) == isinstance(now, bool))


def _matches_as_json(recorded: str, now: str) -> bool:
    """Return whether two strings match as JSON: masking a secret in one encodes it again."""
    try:
        return matches_recorded([msgspec.json.decode(recorded)], [msgspec.json.decode(now)])
    except (msgspec.DecodeError, RecursionError):
        return False


def get_member(value: Any, *names: str) -> Any:
    """Return a member of nested objects, or None."""
    for name in names:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value


# --------------------------------------------------------------------- exchanges


class RecordedExchange:
    """A recorded message of the client, and as `steps` all that was sent because of it, answers included.

    `loss_reason` says why it was not answered. The method is empty for what the server sent first.
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
        """Return whether this was recorded for such a message."""
        return self.method == method and matches_recorded(self.params, params)


def normalize_params(method: str, params: Any) -> Any:
    """Return the parameters to compare: without `_meta`, which depends on sender and time."""
    if method in _HANDSHAKE_METHODS or not isinstance(params, dict):
        return {}
    members = cast("dict[str, Any]", params)
    return {name: value for name, value in members.items() if name != "_meta" and value not in (None, {})}


def describe_message(method: str, params: Any) -> str:
    """Describe a message for an error."""
    return shorten(f"{method} {encode(params).decode()}" if params else method, MAX_SHOWN_LENGTH)


def find_nearest(method: str, params: Any, exchanges: list[RecordedExchange]) -> RecordedExchange | None:
    """Return the recorded request nearest to an unrecorded one, if any."""
    asked = describe_message(method, params)
    same = [exchange for exchange in exchanges if exchange.method == method]
    others = [one for one in exchanges if one.id is not None and one.method not in _HANDSHAKE_METHODS]
    near = (same or others)[:MAX_COMPARED_REQUESTS]
    return max(near, key=lambda one: SequenceMatcher(None, str(one), asked).ratio(), default=None)


def iterate_messages(value: Any) -> Iterator[dict[str, Any]]:
    """Iterate over the message, or the messages of a batch, that have a valid id or none."""
    for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
        if isinstance(each, dict) and not isinstance(get_member(each, "id"), dict | list):
            yield cast("dict[str, Any]", each)


# --------------------------------------------------------------------- finding exchanges


def group_exchanges(lines: list[TapeLine]) -> list[RecordedExchange]:
    """Return all exchanges of a recording, in order."""
    exchanges: list[RecordedExchange] = []
    groupers: dict[int, _ExchangeGrouper] = {}
    for number, line in enumerate(lines, 2):
        grouper = groupers.setdefault(line.link, _ExchangeGrouper(exchanges))
        if not isinstance(line.lost, msgspec.UnsetType):
            grouper.mark_lost(line.lost, line.why)
        if line.sender == "server" and not isinstance(line.closed, msgspec.UnsetType):
            grouper.mark_ended(line.closed)
        add = grouper.add_client_message if line.sender == "client" else grouper.add_server_message
        for message in iterate_messages(line.message):
            add(number, message)
    for grouper in groupers.values():
        grouper.mark_ended("the recording ends before its answer")
    return exchanges


class _ExchangeGrouper:
    """Finds the exchange that each message of one connection belongs to, and adds new ones."""

    def __init__(self, exchanges: list[RecordedExchange]) -> None:
        self._exchanges = exchanges
        self._own_exchanges: list[RecordedExchange] = []
        self._pending: dict[Any, RecordedExchange] = {}
        self._client_requests: dict[Any, RecordedExchange] = {}
        self._cancelled_ids: set[str] = set()

    def add_client_message(self, number: int, message: dict[str, Any]) -> None:
        if "method" in message:
            exchange = self._add_exchange(number, message)
            if "id" in message:
                self._pending[message["id"]] = exchange
            elif exchange.method == CANCELLED:
                self._cancelled_ids.add(str(get_member(message, "params", "requestId")))
            return
        exchange = self._client_requests.pop(message.get("id"), None)
        if exchange is not None:
            exchange.steps.append(message)

    def add_server_message(self, number: int, message: dict[str, Any]) -> None:
        if "method" not in message:
            exchange = self._pending.pop(message.get("id"), None)
        else:
            exchange = self._find_owner(message) or self._add_exchange(number, {})
            if "id" in message:
                self._client_requests[message["id"]] = exchange
        if exchange is not None:
            exchange.steps.append(message)

    def mark_lost(self, request_id: Any, why: str) -> None:
        exchange = self._pending.pop(request_id, None)
        if exchange is not None:
            exchange.loss_reason = why

    def mark_ended(self, why: str) -> None:
        for request_id, exchange in self._pending.items():
            if str(request_id) not in self._cancelled_ids and exchange.method != SUBSCRIPTIONS_LISTEN:
                exchange.loss_reason = why
        self._pending.clear()

    def _add_exchange(self, number: int, message: dict[str, Any]) -> RecordedExchange:
        exchange = RecordedExchange(number, message)
        self._exchanges.append(exchange)
        self._own_exchanges.append(exchange)
        return exchange

    def _find_owner(self, message: dict[str, Any]) -> RecordedExchange | None:
        """Return the exchange of a server message: the one it names, or else the latest."""
        token = get_member(message, "params", "progressToken")
        subscription = get_member(message, "params", "_meta", SUBSCRIPTION_ID)
        for exchange in reversed(self._own_exchanges):
            if token is not None and exchange.progress_token == token:
                return exchange
            if None not in {exchange.id, subscription} and str(exchange.id) == str(subscription):
                return exchange
        latest = next(reversed(self._pending.values()), None)
        return latest or (self._own_exchanges[-1] if self._own_exchanges else None)


# --------------------------------------------------------------------- playing them


class Replay:
    """The server of a recorded conversation; a target for any number of clients, each from the beginning.

    It takes what `replay` takes.
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
        return [str(exchange) for exchange in self._unplayed if exchange.id is not None]

    async def serve(self, channel: Channel) -> None:
        """Play the server on a channel, from the beginning, until the client leaves."""
        session = _ReplaySession(channel)
        self._unplayed = unplayed = dict.fromkeys(self._exchanges)
        try:
            for exchange in self._exchanges:
                if not exchange.method:  # said before anybody asked
                    del unplayed[exchange]
                    await session.begin(exchange, {})
            while True:
                for message in _decode_messages(await channel.receive()):
                    await self._handle_message(session, unplayed, message)
        except ChannelClosed:
            return

    async def _handle_message(
        self, session: "_ReplaySession", unplayed: dict[RecordedExchange, None], message: dict[str, Any]
    ) -> None:
        if "method" not in message:
            await session.handle_answer(message)
            return
        method = str(message["method"])
        params = normalize_params(method, message.get("params"))
        meant = [exchange for exchange in unplayed if exchange.matches(method, params)]
        if meant:  # a lost one only if there is no other
            exchange = next((each for each in meant if each.loss_reason is None), meant[0])
            del unplayed[exchange]
            await session.begin(exchange, message)
            return
        meant = [exchange for exchange in self._exchanges if exchange.matches(method, params)]
        if meant and self._again:
            await session.begin(meant[-1], message)
        elif "id" in message and method == PING:
            await session.acknowledge(message["id"])
        elif "id" in message:
            await session.refuse(message["id"], self._make_unrecorded_error(method, params, meant))

    def _make_unrecorded_error(self, method: str, params: Any, meant: list[RecordedExchange]) -> RPCError:
        """Return the error for a request that was not recorded, or not as often."""
        asked = describe_message(method, params)
        if meant:
            times = "once" if len(meant) == 1 else f"{len(meant)} times"
            lines = ", ".join(str(exchange.line) for exchange in meant)
            return InternalError(
                f"{asked} was recorded {times} in {self._path} (line {lines}), and is now asked more often; "
                "record it anew, or use replay(…, again=True)"
            )
        if method == SERVER_DISCOVER:  # as an older server answers
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


class _ActiveExchange(NamedTuple):
    """An exchange in progress: the client's message, the steps left, and the current ids of requests."""

    exchange: RecordedExchange
    trigger: dict[str, Any]
    steps: list[dict[str, Any]]
    request_ids: dict[Any, int]


class _ReplaySession:
    """One channel, and the exchanges that wait for an answer of its client."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last_id = 0
        self._waiting: dict[Any, _ActiveExchange] = {}

    async def begin(self, exchange: RecordedExchange, message: dict[str, Any]) -> None:
        if exchange.loss_reason is None:
            await self._advance(_ActiveExchange(exchange, message, list(exchange.steps), {}))
        else:
            why = f"{exchange} was lost, too, when it was recorded: {exchange.loss_reason}"
            await self.refuse(message["id"], InternalError(why))

    async def handle_answer(self, message: dict[str, Any]) -> None:
        active = self._waiting.pop(message.get("id"), None)
        if active is None:
            return
        recorded, now = _extract_answer(active.steps.pop(0)), _extract_answer(message)
        if matches_recorded(recorded, now):
            await self._advance(active)
        elif "id" in active.trigger:
            answered, expected = describe_message("", now), describe_message("", recorded)
            why = f"in {active.exchange} the client answered {answered}; recorded was {expected}"
            await self.refuse(active.trigger["id"], InternalError(why))

    async def refuse(self, request_id: Any, error: RPCError) -> None:
        await self._channel.send(encode_error(request_id, error), request_id)

    async def acknowledge(self, request_id: Any) -> None:
        await self._channel.send(encode({"jsonrpc": "2.0", "id": request_id, "result": {}}), request_id)

    async def _advance(self, active: _ActiveExchange) -> None:
        """Send the recorded messages up to the next answer of the client."""
        while active.steps:
            step = active.steps[0]
            if "method" not in step and step.get("id") in active.request_ids:
                self._waiting[active.request_ids[step["id"]]] = active
                return
            message = self._renumber(active, active.steps.pop(0))
            if message is not None:
                await self._channel.send(encode(message), active.trigger.get("id"))

    def _renumber(self, active: _ActiveExchange, step: dict[str, Any]) -> dict[str, Any] | None:
        """Return a recorded message with current ids; None if it is not wanted."""
        if "method" not in step:
            return _renumber_subscription({**step, "id": active.trigger.get("id")}, "result", active)
        if "id" in step:
            self._last_id += 1
            active.request_ids[step["id"]] = self._last_id
            return {**step, "id": self._last_id}
        params: Any = step.get("params")
        if get_member(params, "progressToken") is not None:
            token = get_member(active.trigger, "params", "_meta", "progressToken")
            return None if token is None else {**step, "params": {**params, "progressToken": token}}
        if get_member(params, "requestId") in active.request_ids:
            return {**step, "params": {**params, "requestId": active.request_ids[params["requestId"]]}}
        return _renumber_subscription(step, "params", active)


def _renumber_subscription(message: dict[str, Any], body: str, active: _ActiveExchange) -> dict[str, Any]:
    """Return the message with the current subscription id, if it has one."""
    recorded = get_member(message, body, "_meta", SUBSCRIPTION_ID)
    if recorded is None:
        return message
    now = active.trigger.get("id")
    meta = {**message[body]["_meta"], SUBSCRIPTION_ID: str(now) if isinstance(recorded, str) else now}
    return {**message, body: {**message[body], "_meta": meta}}


def _decode_messages(data: bytes) -> list[dict[str, Any]]:
    """Return the messages in the bytes of a client; none if they are garbage."""
    try:
        return list(iterate_messages(msgspec.json.decode(data)))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return []


def _extract_answer(answer: dict[str, Any]) -> Any:
    return normalize_params("", answer.get("result", answer.get("error")))
