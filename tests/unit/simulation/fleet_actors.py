"""The actors of a fleet: workers that die, pause and lose the store, and clients that note all they get.

Clients speak HTTP themselves, so that they see each event. A client that loses a connection resumes the
stream of its call at another worker.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from faulty_channel import DELAYS
from faulty_store import LEASE, FaultyStore, SharedData
from simulated_loop import World

from toolpost import Context, KeyRing, Server
from toolpost.errors import MCPError
from toolpost.protocol import sse
from toolpost.protocol.methods import DATES
from toolpost.transports.backends.asgi import AsgiBackend
from toolpost.transports.backends.backend import Response

__all__ = ["Call", "FleetLedger", "FleetWorker", "Guest"]

URL = "http://127.0.0.1/mcp"
URI = "note://all"
WORK = (0.0, 0.0, 0.01, 0.5, 3.0)
"""Seconds between two messages of a call."""

SLACK = 6.0
"""Seconds by which a report may be late: two polls, and messages that take long."""

PATIENCE = 90.0
"""Seconds after which a call hangs: more than all faults together."""


class Cut(Exception):
    """A connection ended early."""


@dataclass
class FleetLedger:
    """The record of actions in a simulation."""

    wrong: list[str] = field(default_factory=list[str])
    runs: Counter[str] = field(default_factory=Counter[str])
    """How often a tool ran, by the key of the call."""
    hanging: set[str] = field(default_factory=set[str])
    """The keys of calls that wait for their cancellation."""
    faults: set[str] = field(default_factory=set[str])
    """The kinds of faults so far."""


class FleetWorker:
    """One worker, its link to the store, and the way to it."""

    def __init__(
        self, world: World, ledger: FleetLedger, data: SharedData, name: str, **options: Any
    ) -> None:
        self.world = world
        self.ledger = ledger
        self.name = name
        self.store = FaultyStore(data, options.pop("loss"))
        self.server = _make_server(world, ledger, self.store, **options)
        self.app: Any = self.server.asgi()
        self.died = asyncio.Event()
        self.died_at = 0.0
        self.backend = AsgiBackend(self._serve)
        self.starting = world.create_task(self._start())

    async def _start(self) -> None:
        async with self.ask("GET", {}):
            pass  # it starts with its first request

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request, while the worker is not paused."""

        async def receive_later() -> Any:
            message = await receive()
            await self.store.running.wait()
            return message

        async def send_later(message: Any) -> None:
            await self.store.running.wait()
            if not self.store.is_dead:
                await send(message)

        await self.app(scope, receive_later, send_later)

    def kill(self) -> None:
        """Make it look dead to the others."""
        self.store.is_dead = True
        self.store.running.set()
        self.died_at = self.world.time()
        self.died.set()

    @asynccontextmanager
    async def ask(
        self, method: str, headers: dict[str, str], body: bytes | None = None
    ) -> AsyncGenerator[Response]:
        """Send a request. Raises Cut if the worker dies before it responds."""
        async with self.backend.send(method, URL, headers, body) as response:
            yield response

    async def until_death(self, work: Any) -> Any:
        """Wait for work of a client on a connection to this worker. Raises Cut if the worker dies first."""
        task, died = asyncio.ensure_future(work), asyncio.ensure_future(self.died.wait())
        try:
            await asyncio.wait((task, died), return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                raise Cut
            return task.result()
        finally:
            for each in (task, died):
                each.cancel()
            await asyncio.wait((task, died))


def _make_server(world: World, ledger: FleetLedger, store: Any, key: KeyRing | None) -> Server:
    server = Server("fleet", store=store, keys=key)

    async def work() -> None:
        await asyncio.sleep(world.rng.choice(WORK))

    @server.tool
    async def plain(key: str) -> str:
        ledger.runs[key] += 1
        return key

    @server.tool
    async def story(key: str, most: int, ctx: Context) -> str:
        ledger.runs[key] += 1
        for number in range(most):
            await ctx.info({"key": key, "number": number})
            await work()
        return key

    @server.tool
    async def ask(key: str, ctx: Context) -> str:
        ledger.runs[key] += 1
        await work()
        answer = await ctx.sample(key)
        await work()
        return f"{key} {answer.text}"

    @server.tool
    async def hang(key: str, ctx: Context) -> str:
        ledger.hanging.add(key)
        try:
            await ctx.info({"key": key, "number": 0})
            await asyncio.Event().wait()
        finally:
            ledger.hanging.discard(key)
        return key

    @server.resource(URI)
    def note() -> str:
        return ""

    return server


class Call:
    """One call of a client, and the events of its stream."""

    def __init__(self, key: str, request_id: int) -> None:
        self.key = key
        self.request_id = request_id
        self.story: list[int] = []
        self.answers: list[dict[str, Any]] = []
        self.last_id = ""
        self.was_refused = False
        """Whether the server has said that the stream cannot be resumed."""

    @property
    def worker(self) -> int:
        """The number of the worker that serves it, as its events say."""
        return int(self.last_id.partition("-")[0], 16) if self.last_id else 0

    @property
    def is_reported_dead(self) -> bool:
        """Whether another worker has reported that its worker is dead."""
        return bool(self.answers) and "died" in self.answers[0].get("error", {}).get("message", "")


class Guest:
    """A client of the fleet."""

    def __init__(self, world: World, ledger: FleetLedger, fleet: list[FleetWorker], name: str) -> None:
        self.world = world
        self.ledger = ledger
        self.fleet = fleet
        self.name = name
        self.revision = world.rng.choice(DATES[1:4])
        self.session = ""
        self.is_ended = False
        self.heard: Counter[str] = Counter()
        """The notifications of the general stream, by method."""
        self.outcomes: Counter[str] = Counter()
        self._next_id = 0
        self._answering: set[asyncio.Task[None]] = set()

    def wrong(self, what: str) -> None:
        """Record a violation."""
        self.world.note(f"{self.name} WRONG {what}")
        self.ledger.wrong.append(f"{self.name}: {what}")

    # ----------------------------------------------------------------- requests

    def _headers(self, *, last: str | None = None, reads: bool = False) -> dict[str, str]:
        accept = "text/event-stream" if reads else "application/json, text/event-stream"
        headers = {"accept": accept, "mcp-protocol-version": self.revision}
        if not reads:
            headers["content-type"] = "application/json"
        if self.session:
            headers["mcp-session-id"] = self.session
        return headers if last is None else {**headers, "last-event-id": last}

    def _pick(self) -> FleetWorker:
        return self.world.rng.choice([each for each in self.fleet if not each.store.is_dead])

    async def post(self, message: dict[str, Any]) -> tuple[int, bytes]:
        """Post a message without a stream to any worker, until it is taken."""
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        for _ in range(60):
            worker = self._pick()
            with suppress(Cut):
                return await worker.until_death(self._post_to(worker, body))
            if "method" in message and "id" in message:
                raise Cut
            await asyncio.sleep(0.5)
        raise Cut

    async def _post_to(self, worker: FleetWorker, body: bytes) -> tuple[int, bytes]:
        await asyncio.sleep(self.world.rng.choice(DELAYS))
        while True:
            async with worker.ask("POST", self._headers(), body) as response:
                data = b"".join([chunk async for chunk in response.chunks()])
                what = body.decode()[16:100]
                self.world.note(f"{self.name} posts {what} at {worker.name}: {response.status}")
                if not self.session:
                    self.session = response.headers.get("mcp-session-id", "")
                if response.status != 503:
                    return response.status, data
            await asyncio.sleep(1)

    async def open(self) -> None:
        """Open a session."""
        about = {"name": self.name, "version": "1"}
        params = {"protocolVersion": self.revision, "capabilities": {"sampling": {}}, "clientInfo": about}
        while not self.session:
            with suppress(Cut):
                await self.post({"id": 0, "method": "initialize", "params": params})
        status, _ = await self.post({"method": "notifications/initialized"})
        if status != 202:
            self.wrong(f"the handshake ended with {status}")

    def begin(self) -> Call:
        """Return a new call."""
        self._next_id += 1
        key = f"<{self.name}:{self.world.rng.getrandbits(48):012x}>"
        return Call(key, self._next_id)

    async def call(self, tool: str, *, cuts: float = 0.0, **arguments: Any) -> Call:
        """Make a call, and resume its stream until it has its answer; `cuts` is how likely we cut one."""
        call = self.begin()
        began = self.world.time()
        params = {"name": tool, "arguments": {"key": call.key, **arguments}}
        body = json.dumps({"jsonrpc": "2.0", "id": call.request_id, "method": "tools/call", "params": params})
        self.world.note(f"{self.name} calls {tool} {call.key}")
        worker = self._pick()
        try:
            await worker.until_death(self._read(worker, call, "POST", body.encode(), cuts))
        except Cut:
            self.world.note(f"{self.name} {call.key} was cut behind {call.last_id!r}")
        await self._resume(call, cuts)
        self._check(tool, call, worker, began, **arguments)
        return call

    async def _resume(self, call: Call, cuts: float) -> None:
        while not call.answers and call.last_id and not call.was_refused:
            reader = self._pick()
            with suppress(Cut):
                await reader.until_death(self._read(reader, call, "GET", None, cuts))
            await asyncio.sleep(self.world.rng.choice(DELAYS))

    async def _read(
        self, worker: FleetWorker, call: Call, method: str, body: bytes | None, cuts: float
    ) -> None:
        await asyncio.sleep(self.world.rng.choice(DELAYS))
        reads = method == "GET"
        headers = self._headers(reads=reads, last=call.last_id if reads else None)
        async with worker.ask(method, headers, body) as response:
            kind = response.headers.get("content-type", "")
            if response.status == 200 and kind == "text/event-stream":
                await self._read_events(call, response, cuts)
                return
            data = b"".join([chunk async for chunk in response.chunks()])
            self._check_status(response.status)
            if response.status == 503 and reads:
                await asyncio.sleep(1)
            elif response.status == 400 and reads:
                call.was_refused = True
            elif data:
                call.answers.append(json.loads(data))

    def _check_status(self, status: int) -> None:
        if status == 404 and not self.is_ended:
            self.wrong("its session is lost")

    async def _read_events(self, call: Call, response: Response, cuts: float) -> None:
        decoder = sse.EventStreamDecoder()
        async for chunk in response.chunks():
            for event in decoder.feed(chunk):
                self._take(call, event)
                if self.world.rng.random() < cuts:
                    raise Cut

    def _take(self, call: Call, event: sse.ServerSentEvent) -> None:
        if event.id:
            self._check_order(call, event)
            call.last_id = event.id
        if not event.data:
            return
        message = json.loads(event.data)
        self.world.note(f"{self.name} {call.key} gets {event.id} {event.data.decode()[:150]}")
        if message.get("method") == "notifications/message":
            if message["params"]["data"]["key"] != call.key:
                self.wrong(f"{call.key} hears what belongs to {message['params']['data']['key']}")
            call.story.append(message["params"]["data"]["number"])
        elif "method" in message:
            answering = self.world.create_task(self._answer(message))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)
        else:
            call.answers.append(message)

    def _check_order(self, call: Call, event: sse.ServerSentEvent) -> None:
        name, _, number = event.id.rpartition(".")
        before, _, last = call.last_id.rpartition(".")
        if call.last_id and name != before:
            self.wrong(f"{call.key} gets events of another stream: {call.last_id}, {event.id}")
        elif event.data and call.last_id and int(number) <= int(last):
            self.wrong(f"{call.key} gets an event twice: {call.last_id}, {event.id}")
        elif event.data and int(number) > int(last or 0) + 1 and "loss" not in self.ledger.faults:
            self.wrong(f"{call.key} misses events: {call.last_id}, {event.id}")

    async def _answer(self, question: dict[str, Any]) -> None:
        """Answer a question at any worker."""
        asked = question["params"]["messages"][0]["content"]["text"]
        content = {"type": "text", "text": asked.upper()}
        result = {"role": "assistant", "content": content, "model": "m"}
        await asyncio.sleep(self.world.rng.choice((0.0, 0.01, 1.0)))
        with suppress(Cut):
            status, _ = await self.post({"id": question["id"], "result": result})
            if status != 202:
                self._check_status(status)

    # ----------------------------------------------------------------- what must hold

    def _check(self, tool: str, call: Call, worker: FleetWorker, began: float, **arguments: Any) -> None:
        took, runs = self.world.time() - began, self.ledger.runs[call.key]
        if runs > 1:
            self.wrong(f"{call.key} ran {runs} times")
        if len(call.answers) > 1:
            self.wrong(f"{call.key} has {len(call.answers)} answers: {call.answers}")
        if took > PATIENCE:
            self.wrong(f"{call.key} took {took:.1f} s")
        if not call.answers:
            self._check_cut(tool, call, worker)
        elif call.is_reported_dead:
            self._check_report(call, worker, began)
        else:
            self._check_answer(tool, call, **arguments)

    def _check_cut(self, tool: str, call: Call, worker: FleetWorker) -> None:
        """Check that a call without an answer was on a dead worker, or its stream was refused for cause."""
        self.outcomes["cut"] += 1
        has_cause = call.was_refused and self.ledger.faults - {"kill"}
        if not worker.store.is_dead and not has_cause:
            self.wrong(f"{tool} {call.key} has no answer, though its worker lives")

    def _check_report(self, call: Call, worker: FleetWorker, began: float) -> None:
        """Check that a worker which was reported as dead is dead, and that the report was not late."""
        self.outcomes["reported"] += 1
        if self.ledger.faults - {"kill"}:
            return
        late = self.world.time() - max(began, worker.died_at)
        if not worker.store.is_dead:
            self.wrong(f"{call.key} was reported as lost, though its worker lives")
        elif late > LEASE + SLACK:
            self.wrong(f"{call.key} was reported {late:.1f} s after the death")

    def _check_answer(self, tool: str, call: Call, most: int = 0) -> None:
        [answer] = call.answers[:1]
        if "result" not in answer:
            self.outcomes["error"] += 1
            if not self.ledger.faults:
                self.wrong(f"{tool} {call.key} failed: {answer}")
            return
        self.outcomes["ok"] += 1
        text = answer["result"]["content"][0]["text"]
        expected = f"{call.key} {call.key.upper()}" if tool == "ask" else call.key
        if text != expected:
            self.wrong(f"{call.key} got {text!r}")
        if call.story != [*range(most)] and "loss" not in self.ledger.faults:
            self.wrong(f"{call.key} was told {call.story} of {most}")

    # ----------------------------------------------------------------- what it does

    async def plain(self) -> None:
        """Call a tool that answers at once."""
        await self.call("plain")

    async def hear(self) -> None:
        """Follow a story; cut the connection now and then, and read an old part of it again."""
        rng = self.world.rng
        call = await self.call("story", cuts=rng.choice((0.0, 0.2, 0.6)), most=rng.randrange(1, 6))
        name, _, number = call.last_id.rpartition(".")
        if int(number or 0) and rng.random() < 0.3:
            again = Call(call.key, call.request_id)
            again.last_id = f"{name}.{rng.randrange(int(number))}"
            await self._resume(again, 0.0)
            if not self.ledger.faults - {"kill"} and again.answers not in ([], call.answers):
                self.wrong(f"{call.key} has another answer now: {again.answers}")

    async def think(self) -> None:
        """Call a tool that asks."""
        await self.call("ask", cuts=self.world.rng.choice((0.0, 0.0, 0.3)))

    async def give_up(self) -> None:
        """Cancel a call at any worker."""
        call = self.begin()
        params = {"name": "hang", "arguments": {"key": call.key}}
        message = {"jsonrpc": "2.0", "id": call.request_id, "method": "tools/call", "params": params}
        worker = self._pick()
        reading = self.world.create_task(
            worker.until_death(self._read(worker, call, "POST", json.dumps(message).encode(), 0.0))
        )
        await asyncio.sleep(self.world.rng.choice((0.0, 0.2, 2.0)))
        with suppress(Cut):
            await self.post({"method": "notifications/cancelled", "params": {"requestId": call.request_id}})
        with suppress(Cut, MCPError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await reading
        if reading.cancelled() and not self.ledger.faults:
            self.wrong(f"{call.key} goes on though it was cancelled")
        if any("result" in answer for answer in call.answers):
            self.wrong(f"{call.key} was cancelled, and got {call.answers}")

    async def listen(self, seconds: float) -> None:
        """Read the general stream for a while, and come back when it ends."""
        until, last = self.world.time() + seconds, None
        while self.world.time() < until and not self.is_ended:
            worker = self._pick()
            with suppress(Cut, TimeoutError):
                async with asyncio.timeout_at(until):
                    last = await worker.until_death(self._listen_at(worker, last)) or last
            await asyncio.sleep(0.1)

    async def _listen_at(self, worker: FleetWorker, last: str | None) -> str | None:
        async with worker.ask("GET", self._headers(reads=True, last=last)) as response:
            self.world.note(f"{self.name} listens at {worker.name}: {response.status}")
            if response.status != 200:
                self._check_status(response.status)
                await asyncio.sleep(1)
                return None
            decoder = sse.EventStreamDecoder()
            async for chunk in response.chunks():
                for event in decoder.feed(chunk):
                    last = event.id or last
                    if event.data:
                        self.heard[json.loads(event.data)["method"]] += 1
            return last

    async def end(self) -> None:
        """Delete the session; after that, no worker serves it."""
        self.is_ended = True
        while True:
            worker = self._pick()
            with suppress(Cut):
                status = await worker.until_death(self._delete(worker))
                if status in {200, 404}:
                    break
            await asyncio.sleep(1)
        await asyncio.sleep(self.world.rng.choice((3.0, 10.0)))
        with suppress(Cut):
            status, _ = await self.post({"id": 1, "method": "ping"})
            if status != 404 and not self.ledger.faults:
                self.wrong(f"its session was deleted, and goes on: {status}")

    async def _delete(self, worker: FleetWorker) -> int:
        async with worker.ask("DELETE", self._headers(reads=True)) as response:
            return response.status

    async def settle(self) -> None:
        """Wait for the answers that are on their way."""
        if self._answering:
            await asyncio.wait(self._answering)
