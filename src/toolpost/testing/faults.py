"""Injects faults into a channel: messages are dropped, delayed, duplicated, reordered, garbled, or cut off.

Faults follow an exact plan, or a random one with a seed, so that every run is the same. Of a message, it uses
only the sender and the method.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import count
from typing import Literal, get_args

from toolpost.channel import Channel
from toolpost.connect import Target
from toolpost.errors import ChannelClosed, MCPError
from toolpost.json_schema import get_member
from toolpost.protocol.methods import Role
from toolpost.testing.channel import ChannelWrapper, WrappedTarget, decode_or_text, other_end

FaultKind = Literal["cut", "delay", "drop", "duplicate", "garbage", "reorder"]


@dataclass(frozen=True)
class Fault:
    """One fault, which happens once.

    Args:
        kind: the effect on the message. "drop": it never arrives. "delay": it and all later ones are late.
            "duplicate": it arrives twice. "reorder": the next one overtakes it. "garbage": unreadable data
            arrives instead. "cut": the channel ends instead.
        sender: the sender of the message.
        nth: its number, counted from 1, over all connections to the target.
        method: count only messages of this method: requests, notifications, and responses to such requests.
        seconds: the delay, or how long it waits to be overtaken.
        data: the garbage; by default the first half of the message.

    Raises:
        ValueError: the fault could never happen.
    """

    kind: FaultKind
    sender: Role = "server"
    nth: int = 1
    method: str | None = None
    seconds: float = 0.05
    data: bytes | None = None

    def __post_init__(self) -> None:
        for name, kinds in (("kind", FaultKind), ("sender", Role)):
            if getattr(self, name) not in get_args(kinds):
                choice = ", ".join(map(repr, get_args(kinds)))
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {choice}")
        if self.nth < 1:
            raise ValueError(f"nth: must be at least 1, not {self.nth}")


@dataclass(eq=False)
class Chance:
    """Random faults: the same for the same seed and the same messages.

    Args:
        seed: the seed of the random numbers.
        sender: the sender of the messages; None for both.
        seconds: the maximum delay.
        cut: for each message, the probability that the channel ends instead.
        delay: the probability that it is late.
        drop: the probability that it is lost.
        duplicate: the probability that it arrives twice.
        garbage: the probability that it arrives garbled.
        reorder: the probability that the next one overtakes it.
    """

    seed: int
    _: KW_ONLY
    sender: Role | None = None
    seconds: float = 0.05
    cut: float = 0.0
    delay: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    garbage: float = 0.0
    reorder: float = 0.0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - must be reproducible

    def select_faults(self, sender: Role, data: bytes) -> Iterator[Fault]:
        """Iterate over the faults of a message."""
        if self.sender in {None, sender}:
            for kind in get_args(FaultKind):
                if self._rng.random() < getattr(self, kind):
                    seconds = self._rng.random() * self.seconds
                    yield Fault(kind, sender, seconds=seconds, data=garble_message(self._rng, data))


def garble_message(rng: random.Random, data: bytes) -> bytes:
    """Return a message with something removed, changed or added."""
    some = bytearray(data or b" ")
    place = rng.randrange(len(some))
    how = rng.randrange(4)
    if how == 0:
        del some[place:]
    elif how == 1:
        del some[place : place + rng.randrange(1, 9)]
    elif how == 2:
        some[place] ^= 1 << rng.randrange(8)
    else:
        some[place:place] = rng.randbytes(rng.randrange(1, 5))
    return bytes(some)


class FaultPlan:
    """The faults, and the number of messages so far."""

    def __init__(self, faults: tuple[Fault | Chance, ...]) -> None:
        self._faults = [(fault, count(1)) for fault in faults if isinstance(fault, Fault)]
        self._chances = [chance for chance in faults if isinstance(chance, Chance)]

    def select_faults(self, sender: Role, method: str | None, data: bytes) -> list[Fault]:
        """Return the faults of the next message."""
        found = [
            fault
            for fault, numbers in self._faults
            if fault.sender == sender and fault.method in {None, method} and next(numbers) == fault.nth
        ]
        return found + [fault for chance in self._chances for fault in chance.select_faults(sender, data)]


def faulty(target: Target, *faults: Fault | Chance) -> Target:
    """Return the target, with faults injected into its connections.

    Example:
        >>> import asyncio
        >>> from toolpost import Client, RequestTimeout, Server
        >>> server = Server("calculator")
        >>> @server.tool
        ... def add(a: int, b: int) -> int:
        ...     return a + b
        >>> async def main():
        ...     lossy = faulty(server, Fault("drop", "client", method="tools/call"))
        ...     async with Client(lossy, retries=0) as mcp:
        ...         try:
        ...             await mcp.call_tool("add", {"a": 1, "b": 2}, timeout=0.05)
        ...         except RequestTimeout:
        ...             return await mcp.call_tool("add", {"a": 1, "b": 2})
        >>> asyncio.run(main()).data
        3

    Args:
        target: any target of a client.
        faults: the faults. A `Fault` happens once, even if the client reconnects.
    """
    plan = FaultPlan(faults)
    return WrappedTarget(target, lambda channel: Faulty(channel, plan=plan))


class Faulty(ChannelWrapper):
    """A channel with faults, in both directions.

    Args:
        inner: the channel.
        faults: the faults.
        end: the side that uses the channel.
        plan: faults that are counted over several channels; instead of `faults`.
    """

    def __init__(
        self, inner: Channel, *faults: Fault | Chance, end: Role = "client", plan: FaultPlan | None = None
    ) -> None:
        super().__init__(inner)
        self._plan = plan or FaultPlan(faults)
        self._here: Role = end
        self._there: Role = other_end(end)
        self._methods: dict[tuple[Role, str], str] = {}
        self._cut = False
        self._ready: deque[tuple[float, bytes]] = deque()
        self._overtaken: tuple[float, bytes] | None = None
        self._send_lock = asyncio.Lock()
        self._waiting: tuple[bytes, int | str | None] | None = None
        self._late_task: asyncio.Task[None] | None = None

    async def receive(self) -> bytes:
        """Return the next message of the peer that arrives."""
        now = asyncio.get_running_loop().time
        while True:
            self._check_cut()
            if self._ready:
                wait = self._ready[0][0] - now()
                if wait <= 0:
                    return self._ready.popleft()[1]
                await asyncio.sleep(wait)  # the message stays queued, so a cancellation does not lose it
                continue
            try:
                async with asyncio.timeout_at(self._overtaken[0] if self._overtaken else None):
                    data = await self.inner.receive()
            except TimeoutError:
                self._release_overtaken()
            except ChannelClosed:
                self._check_cut()
                if self._overtaken is None:
                    raise
                self._release_overtaken()
            else:
                effects, data = await self._inject_faults(self._there, data)
                if "drop" in effects:
                    continue
                if "reorder" in effects and self._overtaken is None:
                    self._overtaken = now() + effects["reorder"], data
                else:
                    copies = 2 if "duplicate" in effects else 1
                    self._ready.extend([(now() + effects.get("delay", 0.0), data)] * copies)
                    self._release_overtaken()

    def _release_overtaken(self) -> None:
        if self._overtaken is not None:
            self._ready.append((0.0, self._overtaken[1]))
            self._overtaken = None

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Send a message that may not arrive."""
        async with self._send_lock:
            self._check_cut()
            effects, data = await self._inject_faults(self._here, data)
            if "drop" in effects:
                return
            if effects.get("delay"):
                await asyncio.sleep(effects["delay"])
            if "reorder" in effects and self._waiting is None:
                self._waiting = data, related
                if self._late_task is not None:
                    self._late_task.cancel()  # it has nothing more to send
                self._late_task = asyncio.create_task(self._send_later(effects["reorder"]))
                return
            for _ in range(2 if "duplicate" in effects else 1):
                await self.inner.send(data, related)
            await self._send_overtaken()

    async def _send_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self._send_lock:
            with suppress(MCPError):  # the caller assumes that it was sent
                await self._send_overtaken()

    async def _send_overtaken(self) -> None:
        if self._waiting is not None:
            (data, related), self._waiting = self._waiting, None
            await self.inner.send(data, related)

    async def close(self) -> None:
        """Close the inner channel."""
        if self._late_task is not None:
            self._late_task.cancel()
            await asyncio.wait([self._late_task])
        await self.inner.close()

    def _check_cut(self) -> None:
        if self._cut:
            raise ChannelClosed("the connection was cut", sent=False)

    async def _inject_faults(self, sender: Role, data: bytes) -> tuple[dict[str, float], bytes]:
        """Return the faults of a message with their seconds, and its data. Raises ChannelClosed for a cut."""
        planned = self._plan.select_faults(sender, self._method(sender, data), data)
        faults = {fault.kind: fault for fault in planned}
        if "cut" in faults:
            self._cut = True
            await self.inner.close()
            self._check_cut()
        if "garbage" in faults:
            garbage = faults["garbage"].data
            data = data[: len(data) // 2] if garbage is None else garbage
        return {kind: fault.seconds for kind, fault in faults.items()}, data

    def _method(self, sender: Role, data: bytes) -> str | None:
        """Return the method of a message; for a response that of its request."""
        message = decode_or_text(data)
        method, request_id = get_member(message, "method"), get_member(message, "id")
        if method is None:
            return self._methods.pop((other_end(sender), repr(request_id)), None)
        if request_id is not None:
            self._methods[sender, repr(request_id)] = method
        return method
