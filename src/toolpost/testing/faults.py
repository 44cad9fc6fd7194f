"""Lets things go wrong on a channel: messages get lost, late, doubled, out of order or spoilt, or it is cut.

Owns what can go wrong with a message, and when: by an exact plan, or by chance that a seed decides, so that
the same happens in every run. Knows of a message who sends it and its method, and nothing else.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal, cast, get_args

import msgspec

from toolpost.channel import Channel
from toolpost.connect import Target
from toolpost.errors import ChannelClosed, MCPError
from toolpost.testing.channel import ChannelWrapper, Sender, WrappedTarget, other_end, with_traits

FaultKind = Literal["cut", "delay", "drop", "duplicate", "garbage", "reorder"]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, once.

    Args:
        kind: what happens to the message. "drop": it never arrives. "delay": it is late, and all behind it.
            "duplicate": it arrives twice. "reorder": the next one overtakes it. "garbage": something
            unreadable arrives instead. "cut": the channel ends instead.
        sender: whose message.
        nth: which of them, counted from 1, over all connections to the target.
        method: count only messages about this method: requests, notices, and answers to such requests.
        seconds: how late it is, or how long it waits for one that overtakes it.
        data: the garbage; by default the first half of the message.

    Raises:
        ValueError: this can never happen, so that a test with it would prove nothing.
    """

    kind: FaultKind
    sender: Sender = "server"
    nth: int = 1
    method: str | None = None
    seconds: float = 0.05
    data: bytes | None = None

    def __post_init__(self) -> None:
        for name, kinds in (("kind", FaultKind), ("sender", Sender)):
            if getattr(self, name) not in get_args(kinds):
                choice = ", ".join(map(repr, get_args(kinds)))
                raise ValueError(f"{name}: {getattr(self, name)!r} is none of {choice}")
        if self.nth < 1:
            raise ValueError(f"nth: messages are counted from 1, so that none is number {self.nth}")


class Chance:
    """Things that go wrong by chance: the same for the same seed and the same messages.

    Args:
        seed: decides everything.
        sender: whose messages; None for those of both.
        seconds: how late messages are, at most.
        cut: how likely it is for each message that the channel ends instead.
        delay: how likely it is late.
        drop: how likely it is lost.
        duplicate: how likely it arrives twice.
        garbage: how likely it arrives spoilt.
        reorder: how likely the next one overtakes it.
    """

    def __init__(
        self,
        seed: int,
        *,
        sender: Sender | None = None,
        seconds: float = 0.05,
        cut: float = 0.0,
        delay: float = 0.0,
        drop: float = 0.0,
        duplicate: float = 0.0,
        garbage: float = 0.0,
        reorder: float = 0.0,
    ) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - dice that anybody can foresee are wanted
        self._sender = sender
        self._seconds = seconds
        self._probabilities: dict[FaultKind, float] = {
            "cut": cut,
            "delay": delay,
            "drop": drop,
            "duplicate": duplicate,
            "garbage": garbage,
            "reorder": reorder,
        }

    def select_faults(self, sender: Sender, data: bytes) -> Iterator[Fault]:
        """Iterate over the faults of a message."""
        if self._sender in {None, sender}:
            for kind, likely in self._probabilities.items():
                if self._rng.random() < likely:
                    seconds = self._rng.random() * self._seconds
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
    """The faults, and how many messages there were so far."""

    def __init__(self, faults: tuple[Fault | Chance, ...]) -> None:
        self._faults = [(fault, count(1)) for fault in faults if isinstance(fault, Fault)]
        self._chances = [chance for chance in faults if isinstance(chance, Chance)]

    def select_faults(self, sender: Sender, method: str | None, data: bytes) -> list[Fault]:
        """Return the faults of the next message."""
        meant = [
            each for each in self._faults if each[0].sender == sender and each[0].method in {None, method}
        ]
        found = [fault for fault, numbers in meant if next(numbers) == fault.nth]
        return found + [fault for chance in self._chances for fault in chance.select_faults(sender, data)]


def faulty(target: Target, *faults: Fault | Chance) -> Target:
    """The target, on the way to which things go wrong.

    Example:
        >>> import asyncio
        >>> from toolpost import Client, RequestTimeout, Server
        >>> server = Server("calculator")
        >>> @server.tool
        ... def add(a: int, b: int) -> int:
        ...     return a + b
        >>> async def main():
        ...     deaf = faulty(server, Fault("drop", "client", method="tools/call"))
        ...     async with Client(deaf, timeout=0.05, retries=0) as mcp:
        ...         try:
        ...             await mcp.call_tool("add", {"a": 1, "b": 2})
        ...         except RequestTimeout:
        ...             return await mcp.call_tool("add", {"a": 1, "b": 2})
        >>> asyncio.run(main()).data
        3

    Args:
        target: whatever a client takes.
        faults: what goes wrong. Faults of a plan happen once, however often the client connects.
    """
    plan = FaultPlan(faults)
    return WrappedTarget(target, lambda channel: with_traits(Faulty, channel)(channel, plan))


class Faulty(ChannelWrapper):
    """A channel on which things go wrong, both ways.

    Args:
        inner: the channel, which works.
        faults: what goes wrong.
        end: whose channel it is.
    """

    def __init__(self, inner: Channel, *faults: Fault | Chance | FaultPlan, end: Sender = "client") -> None:
        super().__init__(inner)
        plan = faults[0] if faults and isinstance(faults[0], FaultPlan) else None
        self._plan = plan or FaultPlan(cast("tuple[Fault | Chance, ...]", faults))
        self._here: Sender = end
        self._there: Sender = other_end(end)
        self._methods: dict[Any, str] = {}
        self._cut = False
        self._ready: deque[tuple[float, bytes]] = deque()
        self._overtaken: tuple[float, bytes] | None = None
        self._send_lock = asyncio.Lock()
        self._waiting: tuple[bytes, int | str | None] | None = None
        self._late_task: asyncio.Task[None] | None = None

    async def receive(self) -> bytes:
        """The next message of the peer that arrives."""
        now = asyncio.get_running_loop().time
        while True:
            self._check_cut()
            if self._ready:
                wait = self._ready[0][0] - now()
                if wait <= 0:
                    return self._ready.popleft()[1]
                await asyncio.sleep(wait)  # it stays in the queue, so that a cancellation loses nothing
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
                await self._arrive(data, now())

    async def _arrive(self, data: bytes, now: float) -> None:
        faults = self._select_faults(self._there, data)
        if "cut" in faults:
            await self._cut_channel()
            return
        if "drop" in faults:
            return
        data = _corrupt(faults, data)
        due = now + faults["delay"].seconds if "delay" in faults else now
        if "reorder" in faults and self._overtaken is None:
            self._overtaken = now + faults["reorder"].seconds, data
            return
        self._ready.extend([(due, data)] * (2 if "duplicate" in faults else 1))
        self._release_overtaken()

    def _release_overtaken(self) -> None:
        """Deliver the message that was overtaken, or has waited long enough."""
        if self._overtaken is not None:
            self._ready.append((0.0, self._overtaken[1]))
            self._overtaken = None

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Send something that may or may not arrive."""
        async with self._send_lock:
            self._check_cut()
            faults = self._select_faults(self._here, data)
            if "cut" in faults:
                await self._cut_channel()
                self._check_cut()
            if "drop" in faults:
                return
            if "delay" in faults:
                await asyncio.sleep(faults["delay"].seconds)
            data = _corrupt(faults, data)
            if "reorder" in faults and self._waiting is None:
                self._waiting = data, related
                if self._late_task is not None:
                    self._late_task.cancel()  # it has nothing more to send
                self._late_task = asyncio.create_task(self._send_later(faults["reorder"].seconds))
                return
            for _ in range(2 if "duplicate" in faults else 1):
                await self.inner.send(data, related)
            await self._send_overtaken()

    async def _send_later(self, seconds: float) -> None:
        """Send the waiting message if no other comes."""
        await asyncio.sleep(seconds)
        async with self._send_lock:
            with suppress(MCPError):  # as if it had been sent
                await self._send_overtaken()

    async def _send_overtaken(self) -> None:
        if self._waiting is not None:
            (data, related), self._waiting = self._waiting, None
            await self.inner.send(data, related)

    async def close(self) -> None:
        """End the inner channel."""
        if self._late_task is not None:
            self._late_task.cancel()
            await asyncio.wait([self._late_task])
        await self.inner.close()

    async def _cut_channel(self) -> None:
        self._cut = True
        await self.inner.close()

    def _check_cut(self) -> None:
        if self._cut:
            raise ChannelClosed("the wire was cut", sent=False)

    def _select_faults(self, sender: Sender, data: bytes) -> dict[FaultKind, Fault]:
        faults = self._plan.select_faults(sender, self._method(sender, data), data)
        return {fault.kind: fault for fault in faults}

    def _method(self, sender: Sender, data: bytes) -> str | None:
        """Return the method of a message; for a response that of its request."""
        try:
            head = _HEAD_DECODER.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        if head.method is None:
            return self._methods.pop((other_end(sender), head.id), None)
        if head.id is not None:
            self._methods[sender, head.id] = head.method
        return head.method


class _MessageHead(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None


_HEAD_DECODER: Final = msgspec.json.Decoder(_MessageHead)


def _corrupt(faults: dict[FaultKind, Fault], data: bytes) -> bytes:
    if "garbage" not in faults:
        return data
    garbage = faults["garbage"].data
    return data[: len(data) // 2] if garbage is None else garbage
