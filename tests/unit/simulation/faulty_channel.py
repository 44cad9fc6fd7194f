"""A channel with faults, between a server and the channel of its client.

Owns the faults of messages and pieces, and chooses them by the random generator of the world. Two kinds:
a post, where each message goes its own way, and a line, where bytes flow in order and `LineBuffer` cuts them
into messages, as on stdio. Does not know the messages.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from simulated_loop import World

from toolpost.channel import Channel
from toolpost.errors import ChannelClosed
from toolpost.protocol.line_framing import LineBuffer, flatten
from toolpost.testing.faults import garble_message
from toolpost.transports.memory import MessageQueue

__all__ = ["CALM", "FAULTS", "Faults", "Way", "Wire"]

Way = Literal["up", "down"]
"""To the server, or to the client."""

DELAYS = (0.0, 0.0, 0.0, 0.01, 0.01, 0.02, 0.1)
"""Seconds on the way. Few values, so that much happens in the same instant."""

LONG = (0.5, 2.0, 4.0, 4.01, 9.0)
"""Seconds of a long delay: around the timeout of a call."""

JUNK_MESSAGES = (
    b"",
    b"\n",
    b"null",
    b"[]",
    b"{}",
    b"[[[[[[",
    b"\xff\xfe\x00",
    b"Listening on port 8000",
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","id":null,"result":{}}',
    b'{"jsonrpc":"2.0","id":"1","result":{}}',
    b'{"jsonrpc":"2.0","id":true,"result":{}}',
    b'{"jsonrpc":"2.0","id":1e400,"result":{}}',
    b'{"jsonrpc":"2.0","id":987654321,"result":{}}',
    b'{"jsonrpc":"2.0","id":987654321,"error":{"code":1,"message":"no"}}',
    b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"what?"}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":987654321}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":987654321,"progress":1}}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"jsonrpc":"2.0","method":"what/is/this"}',
    b'{"jsonrpc":"2.0","id":"x","method":"what/is/this"}',
    b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
)
"""Messages that may arrive unexpectedly. None of them names a request in flight."""


@dataclass(frozen=True)
class Faults:
    """The probability of each fault, per message.

    Args:
        drop: it never arrives.
        late: it is delayed, and so are all later ones on a line.
        twice: it arrives twice.
        overtake: later messages may overtake it; otherwise none does.
        garble: some bytes are changed or missing, or it ends early.
        junk: something else arrives before it.
        slow: the sender has to wait.
        cut: the channel ends, perhaps in the middle of it.
        line: the channel carries bytes, not messages.
    """

    drop: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    overtake: float = 0.0
    garble: float = 0.0
    junk: float = 0.0
    slow: float = 0.0
    cut: float = 0.0
    line: bool = False

    @property
    def honest(self) -> bool:
        """Whether messages arrive unchanged."""
        return not self.garble

    @property
    def faithful(self) -> bool:
        """Whether all of it arrives, once and in order."""
        return not (self.drop or self.twice or self.overtake or self.garble)


CALM = Faults()

FAULTS = {
    "calm": CALM,
    "slow": Faults(late=0.2, slow=0.3),
    "lossy": Faults(drop=0.2, slow=0.1),
    "echo": Faults(twice=0.3, late=0.1),
    "shuffled": Faults(overtake=0.7, late=0.2, twice=0.1),
    "junk": Faults(junk=0.4, slow=0.1),
    "garbled": Faults(garble=0.25, junk=0.1),
    "cut": Faults(cut=0.05, late=0.1, slow=0.2),
    "pieces": Faults(line=True, late=0.05, slow=0.2),
    "torn": Faults(line=True, cut=0.05, late=0.05),
    "scratched": Faults(line=True, garble=0.2, junk=0.2),
    "all": Faults(0.05, 0.1, 0.1, 0.2, 0.05, 0.1, 0.2, 0.02),
    "all on a line": Faults(drop=0.05, late=0.05, garble=0.05, junk=0.1, slow=0.1, cut=0.02, line=True),
}

END = object()
"""The mark behind the last message on a wire."""


class Wire:
    """The server's end of a faulty channel to a client. Created in a running world.

    Args:
        world: the source of chance.
        inner: the channel to the client, without faults.
        faults: the probabilities.
        name: its name in the trace.
        told: called for each message: direction, bytes, and how often it was delivered. Once with 0, when
            it is sent, and once for each time that it arrives.
    """

    def __init__(
        self,
        world: World,
        inner: Channel,
        faults: Faults,
        name: str,
        told: Callable[[Way, bytes, bool], None] = lambda *_: None,
    ) -> None:
        self.faults = faults
        self.broken = False
        """Whether it was cut."""
        self._world = world
        self._inner = inner
        self._line = faults.line
        self._torn: set[Way] = set()
        self._name = name
        self._told = told
        self._box = MessageQueue()
        self._lines: dict[Way, LineBuffer] = {"up": LineBuffer(), "down": LineBuffer()}
        self._queues: dict[Way, deque[bytes | object]] = {"up": deque(), "down": deque()}
        self._due: dict[Way, float] = {"up": 0.0, "down": 0.0}
        self._leaving: asyncio.Queue[bytes | object] = asyncio.Queue()
        self._pumps = [world.create_task(self._hear()), world.create_task(self._say())]

    def calm(self) -> None:
        """Stop adding faults; earlier ones still take effect."""
        self.faults = CALM
        if self._line:
            for way in self._queues:
                self._push(way, b"\n", 0.0)  # what was half said ends here

    def cut(self) -> None:
        """End the channel, at both ends."""
        if not self.broken:
            self._note("cut")
            self._end("up")
            self._end("down")
            self.broken = True
            self._box.end("the wire was cut")
            self._leaving.put_nowait(END)

    # ----------------------------------------------------------------- the channel of the server

    async def receive(self) -> bytes:
        """Return the next message of the client that arrived."""
        return await self._box.receive()

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Send a message to the client; it may get lost."""
        if self._tossed(self.faults.slow):
            await asyncio.sleep(self._world.rng.choice(DELAYS))
        if self.broken or self._box.reason is not None:
            raise ChannelClosed(self._box.reason or "the wire was cut", sent=False)
        self._carry("down", data)

    async def close(self) -> None:
        """Disconnect from the client."""
        self._box.close("this end was closed")
        for pump in self._pumps:
            pump.cancel()
        await asyncio.wait(self._pumps)
        await self._inner.close()

    # ----------------------------------------------------------------- pumps

    async def _hear(self) -> None:
        try:
            while True:
                data = await self._inner.receive()
                if self._tossed(self.faults.slow):
                    await asyncio.sleep(self._world.rng.choice(DELAYS))
                if not self.broken:
                    self._carry("up", data)
        except ChannelClosed:
            self._push("up", END, self._world.rng.choice(DELAYS))

    async def _say(self) -> None:
        while True:
            data = await self._leaving.get()
            if not isinstance(data, bytes):
                await self._inner.close()
                return
            try:
                await self._inner.send(data)
            except ChannelClosed:
                return

    # ----------------------------------------------------------------- what goes wrong

    def _tossed(self, likely: float) -> bool:
        return bool(likely) and self._world.rng.random() < likely

    def _note(self, what: str) -> None:
        self._world.note(f"{self._name} {what}")

    def _carry(self, way: Way, data: bytes) -> None:
        """Choose the faults of a message, and deliver it."""
        faults, rng = self.faults, self._world.rng
        if way in self._torn:
            return
        self._told(way, data, False)
        self._note(f"{way} {data.decode(errors='replace')}")
        if self._tossed(faults.cut):
            if self._line and rng.random() < 0.5:
                self._torn.add(way)  # nothing comes behind half a line
                self._flow(way, flatten(data)[: rng.randrange(len(data))])
            else:
                self.cut()
                return
            self._world.call_later(rng.choice(DELAYS), self.cut)
            return
        if self._tossed(faults.junk):
            junk = rng.choice((*JUNK_MESSAGES, rng.randbytes(rng.randrange(1, 40))))
            self._note(f"{way} junk {junk!r}")
            self._pass(way, junk)
        if self._tossed(faults.drop):
            self._note(f"{way} dropped")
            return
        if self._tossed(faults.garble):
            data = garble_message(rng, data)
            self._note(f"{way} garbled {data!r}")
        for _ in range(2 if self._tossed(faults.twice) else 1):
            self._pass(way, data)

    def _pass(self, way: Way, data: bytes) -> None:
        if self._line:
            self._flow(way, (flatten(data) if self.faults.honest else data) + b"\n")
            return
        delay = self._delay()
        if self._tossed(self.faults.overtake):
            self._world.call_later(delay, self._arrive, way, data)
        else:
            self._push(way, data, delay)

    def _flow(self, way: Way, data: bytes) -> None:
        """Let bytes flow in pieces of any size."""
        rng = self._world.rng
        while data:
            size = rng.choice((1, 7, 50, 1000, len(data))) if rng.random() < 0.5 else len(data)
            self._push(way, data[:size], self._delay())
            data = data[size:]

    def _delay(self) -> float:
        return self._world.rng.choice(LONG if self._tossed(self.faults.late) else DELAYS)

    # ----------------------------------------------------------------- on the way

    def _push(self, way: Way, data: bytes | object, delay: float) -> None:
        """Queue data behind everything that is on its way in order."""
        self._due[way] = max(self._due[way], self._world.time() + delay)
        self._queues[way].append(data)
        self._world.call_at(self._due[way], self._pull, way)

    def _pull(self, way: Way) -> None:
        data = self._queues[way].popleft()
        if not isinstance(data, bytes):
            self._end(way)
            self._box.end("the client has gone")
        elif self._line:
            for line in self._lines[way].feed(data):
                assert isinstance(line, bytes), "nothing here is that long"
                self._arrive(way, line)
        else:
            self._arrive(way, data)

    def _end(self, way: Way) -> None:
        """An incomplete message at the end of the bytes counts as sent."""
        rest = self._lines[way].end()
        if isinstance(rest, bytes):
            self._arrive(way, rest)

    def _arrive(self, way: Way, data: bytes) -> None:
        if self.broken:
            return
        self._told(way, data, True)
        if way == "down":
            self._leaving.put_nowait(data)
        elif self._box.reason is None:
            self._box.put(data)
