"""Plays the server of a recorded conversation, so that a test needs no server.

An exchange is a client message with all server messages that it caused. Exchanges are found in the
recording and played in any order, each once, with current ids and without delays. Masked values match
anything; an unrecorded request gets an error.
"""

from collections.abc import Iterator
from contextlib import suppress
from difflib import SequenceMatcher
from os import PathLike, fspath
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolpost.channel import Channel
from toolpost.errors import ChannelClosed, InternalError, MethodNotFound, RPCError
from toolpost.json_schema import get_member
from toolpost.protocol.jsonrpc import encode, encode_error, shorten
from toolpost.protocol.methods import CANCELLED, INITIALIZE, PING, SERVER_DISCOVER, SUBSCRIPTIONS_LISTEN
from toolpost.testing.channel import decode_or_text
from toolpost.testing.masking import MASKED
from toolpost.testing.tape import TapeLine, read_tape
from toolpost.types.initialize import SUBSCRIPTION_ID

MAX_SHOWN_LENGTH: Final = 300  # characters of a message that an error shows
MAX_COMPARED_REQUESTS: Final = 200  # recorded requests to compare an unrecorded one with
_HANDSHAKE_METHODS: Final = frozenset({INITIALIZE, SERVER_DISCOVER})  # their parameters describe the client


# --------------------------------------------------------------------- comparison


def matches_pattern(pattern: str, text: str, gap: str) -> bool:
    """Return whether a text matches a pattern with `gap` as a wildcard, in linear time."""
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
    """Return whether two JSON values are equal, except for masked parts of the recorded one."""
    if isinstance(recorded, str) and isinstance(now, str):
        with suppress(msgspec.DecodeError, RecursionError):  # masking re-encodes JSON strings
            values = [msgspec.json.decode(recorded)], [msgspec.json.decode(now)]
            if MASKED in recorded and matches_recorded(*values):
                return True
        return matches_pattern(recorded, now, MASKED)
    if isinstance(recorded, dict) and isinstance(now, dict):
        ours, theirs = cast("dict[str, Any]", recorded), cast("dict[str, Any]", now)
        return ours.keys() == theirs.keys() and all(matches_recorded(ours[key], theirs[key]) for key in ours)
    if isinstance(recorded, list) and isinstance(now, list):
        some, others = cast("list[Any]", recorded), cast("list[Any]", now)
        return len(some) == len(others) and all(map(matches_recorded, some, others))
    return recorded == MASKED or (recorded == now and isinstance(recorded, bool) == isinstance(now, bool))


# --------------------------------------------------------------------- exchanges


class RecordedExchange:
    """A recorded client message, and as `steps` all messages that it caused, responses included.

    `loss_reason` says why there is no response. The method is empty for unsolicited server messages.
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
        """Return whether this exchange was recorded for such a message."""
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


def iterate_messages(value: Any) -> Iterator[dict[str, Any]]:
    """Iterate over the message, or the messages of a batch, that have a valid id or none."""
    for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
        if isinstance(each, dict) and not isinstance(get_member(each, "id"), dict | list):
            yield cast("dict[str, Any]", each)


# --------------------------------------------------------------------- finding exchanges


def group_exchanges(lines: list[TapeLine]) -> list[RecordedExchange]:
    """Return all exchanges of a recording, in order."""
    groupers: dict[int, _ExchangeGrouper] = {}
    for number, line in enumerate(lines, 2):
        grouper = groupers.setdefault(line.link, _ExchangeGrouper())
        if not isinstance(line.lost, msgspec.UnsetType):
            grouper.mark_lost(line.lost, line.why)
        if line.sender == "server" and not isinstance(line.closed, msgspec.UnsetType):
            grouper.mark_ended(line.closed)
        add = grouper.add_client_message if line.sender == "client" else grouper.add_server_message
        for message in iterate_messages(line.message):
            add(number, message)
    for grouper in groupers.values():
        grouper.mark_ended("the recording ends before the response")
    found = [exchange for grouper in groupers.values() for exchange in grouper.exchanges]
    return sorted(found, key=lambda exchange: exchange.line)


class _ExchangeGrouper:
    """Finds the exchange that each message of one connection belongs to, and adds new ones."""

    def __init__(self) -> None:
        self.exchanges: list[RecordedExchange] = []
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
        self.exchanges.append(exchange)
        return exchange

    def _find_owner(self, message: dict[str, Any]) -> RecordedExchange | None:
        """Return the exchange of a server message: the one it names, or else the latest."""
        token = get_member(message, "params", "progressToken")
        subscription = get_member(message, "params", "_meta", SUBSCRIPTION_ID)
        for exchange in reversed(self.exchanges):
            if token is not None and exchange.progress_token == token:
                return exchange
            if None not in {exchange.id, subscription} and str(exchange.id) == str(subscription):
                return exchange
        latest = next(reversed(self._pending.values()), None)
        return latest or (self.exchanges[-1] if self.exchanges else None)


# --------------------------------------------------------------------- playing them


class Replay:
    """The server of a recorded conversation: `Client(replay("weather.jsonl"))`.

    A target for any number of clients, each from the beginning. A request gets the response that was recorded
    for the same method and params, in recorded order, with the notifications and requests of the server that
    came with it. The client must respond to those as recorded. An unrecorded request gets an error that shows
    the closest recorded one.

    Args:
        path: a file written by `record` or `toolpost tap --record`.
        again: whether a request may be sent more often than it was recorded; the last response is repeated.

    Raises:
        MCPError: the file is not a recording.
    """

    def __init__(self, path: str | PathLike[str], *, again: bool = False) -> None:
        self._path = fspath(path)
        header, lines = read_tape(path)
        self.name = header.target or self._path
        """The recorded name of the server."""
        self._exchanges = group_exchanges(lines)
        self._again = again
        self._unplayed = dict.fromkeys(self._exchanges)

    @property
    def unplayed_requests(self) -> list[str]:
        """The recorded requests that the last client has not sent."""
        return [str(exchange) for exchange in self._unplayed if exchange.id is not None]

    async def serve(self, channel: Channel) -> None:
        """Play the server on a channel, from the beginning, until the client disconnects."""
        session = _ReplaySession(channel)
        self._unplayed = unplayed = dict.fromkeys(self._exchanges)
        try:
            for exchange in self._exchanges:
                if not exchange.method:  # sent before the first request
                    del unplayed[exchange]
                    await session.begin(exchange, {})
            while True:
                for message in iterate_messages(decode_or_text(await channel.receive())):
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
        if meant:  # prefer one that was answered
            exchange = next((each for each in meant if each.loss_reason is None), meant[0])
            del unplayed[exchange]
            await session.begin(exchange, message)
            return
        meant = [exchange for exchange in self._exchanges if exchange.matches(method, params)]
        if meant and self._again:
            await session.begin(meant[-1], message)
        elif "id" in message and method == PING:
            pong: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"], "result": {}}
            await session.channel.send(encode(pong), message["id"])
        elif "id" in message:
            await session.refuse(message["id"], self._make_unrecorded_error(method, params, meant))

    def _make_unrecorded_error(self, method: str, params: Any, meant: list[RecordedExchange]) -> RPCError:
        request = describe_message(method, params)
        if meant:
            times = "once" if len(meant) == 1 else f"{len(meant)} times"
            lines = ", ".join(str(exchange.line) for exchange in meant)
            return InternalError(
                f"{request} was recorded {times} in {self._path} (line {lines}), but is sent more often; "
                "record it again, or use replay(…, again=True)"
            )
        if method == SERVER_DISCOVER:  # as an older server responds
            return MethodNotFound(f"{method} was not recorded in {self._path}")
        same = [one for one in self._exchanges if one.method == method]
        requests = (one for one in self._exchanges if one.id is not None)
        some = same or [one for one in requests if one.method not in _HANDSHAKE_METHODS]
        some = some[:MAX_COMPARED_REQUESTS]
        some.sort(key=lambda one: SequenceMatcher(None, str(one), request).ratio())
        hint = "".join(f"; the closest is line {one.line}: {one}" for one in some[-1:])
        return InternalError(f"{request} was not recorded in {self._path}{hint}")


replay = Replay


class _ActiveExchange(NamedTuple):
    """An exchange in progress: the client's message, the steps left, and the current ids of our requests."""

    exchange: RecordedExchange
    trigger: dict[str, Any]
    steps: list[dict[str, Any]]
    request_ids: dict[Any, int]


class _ReplaySession:
    """One channel, and the exchanges that wait for a response of its client."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._last_id = 0
        self._waiting: dict[Any, _ActiveExchange] = {}

    async def begin(self, exchange: RecordedExchange, message: dict[str, Any]) -> None:
        if exchange.loss_reason is None:
            await self._advance(_ActiveExchange(exchange, message, list(exchange.steps), {}))
        else:
            why = f"{exchange} has no recorded response: {exchange.loss_reason}"
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
            why = f"in {active.exchange} the client responded with {answered}; recorded: {expected}"
            await self.refuse(active.trigger["id"], InternalError(why))

    async def refuse(self, request_id: Any, error: RPCError) -> None:
        await self.channel.send(encode_error(request_id, error), request_id)

    async def _advance(self, active: _ActiveExchange) -> None:
        """Send the recorded messages up to the next response of the client."""
        while active.steps:
            step = active.steps[0]
            if "method" not in step and step.get("id") in active.request_ids:
                self._waiting[active.request_ids[step["id"]]] = active
                return
            message = self._renumber(active, active.steps.pop(0))
            if message is not None:
                await self.channel.send(encode(message), active.trigger.get("id"))

    def _renumber(self, active: _ActiveExchange, step: dict[str, Any]) -> dict[str, Any] | None:
        """Return a recorded message with current ids; None for progress without a token."""
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
    recorded = get_member(message, body, "_meta", SUBSCRIPTION_ID)
    if recorded is None:
        return message
    now = active.trigger.get("id")
    meta = {**message[body]["_meta"], SUBSCRIPTION_ID: str(now) if isinstance(recorded, str) else now}
    return {**message, body: {**message[body], "_meta": meta}}


def _extract_answer(answer: dict[str, Any]) -> Any:
    return normalize_params("", answer.get("result", answer.get("error")))
