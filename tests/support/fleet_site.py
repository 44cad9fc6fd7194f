"""Three server processes that share a store, behind a proxy. Each request uses its own connection."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from hosted import OLD, Site, legacy, message, opening
from raw_http import Wire, wired
from round_robin import RoundRobin, round_robin
from server_processes import Victim, victim
from session_site import listening, steps, text, tool

__all__ = [
    "FleetSite",
    "answer_question",
    "answer_to",
    "call_pid",
    "cancel_call",
    "next_message",
    "open_session",
    "resume_stream",
    "three_workers",
]


class FleetSite(Site):
    """The proxy, and the workers behind it."""

    def __init__(self, url: str, proxy: RoundRobin, stack: AsyncExitStack) -> None:
        super().__init__(None, proxy.port)
        self.workers: list[Victim] = []
        self._url = url
        self._proxy = proxy
        self._processes = stack

    async def start_worker(self) -> None:
        """Start a worker, and send connections to it."""
        self.take_back(await self._processes.enter_async_context(victim(store=self._url)))

    def take_back(self, worker: Victim) -> None:
        """Send connections to a worker."""
        self.avoid(worker)
        self.workers.append(worker)
        self._proxy.ports.append(worker.port)

    def avoid(self, worker: Victim) -> None:
        """Send no connections to a worker."""
        self.workers = [each for each in self.workers if each is not worker]
        self._proxy.ports = [each.port for each in self.workers]

    async def kill_worker(self) -> str:
        """Kill the oldest worker; return the number of its process."""
        worker = self.workers[0]
        self.avoid(worker)
        worker.process.kill()
        await worker.process.wait()
        return str(worker.pid)


@asynccontextmanager
async def three_workers(url: str) -> AsyncGenerator[FleetSite]:
    """Run three workers on the store at this URL."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(round_robin())
        site = FleetSite(url, proxy, stack)
        for _ in range(3):
            await site.start_worker()
        yield site


async def open_session(site: Site, revision: str = OLD) -> str:
    """Open a session; its handshake may be completed at another worker."""
    opened = await site.post(legacy(revision=None), opening(revision, {"sampling": {}}))
    assert opened.status == 200, opened
    session = opened.headers["mcp-session-id"]
    greeted = await site.post(legacy(session, revision), message("notifications/initialized"))
    assert greeted.status == 202, greeted
    return session


async def call_pid(site: Site, session: str, number: int, revision: str = OLD) -> str:
    """Make a call, and return the number of the process that served it."""
    answer = await site.post(legacy(session, revision), tool("pid", number))
    assert (answer.status, answer.json["id"]) == (200, number)
    return text(answer)


async def answer_question(site: Site, session: str, number: int, revision: str = OLD) -> None:
    """Answer the question of a call at any worker; the result comes on the stream of the call."""
    async with wired(site.port) as wire:
        await wire.ask("POST", "/mcp", legacy(session, revision), tool("sample", number))
        await wire.head()
        question = await next_message(wire)
        answered = await site.post(legacy(session, revision), answer_to(question["id"], f"guest {number}"))
        assert (answered.status, answered.body) == (202, b"")
        result = await next_message(wire)
    assert result["result"]["content"][0]["text"] == f"Hello, guest {number}"


def answer_to(question: int, guest: str = "guest") -> bytes:
    """Return the answer to a question of `sample`."""
    content = {"type": "text", "text": guest}
    return message(id=question, result={"role": "assistant", "content": content, "model": "m"})


async def resume_stream(site: Site, session: str, number: int, revision: str = OLD) -> None:
    """Cut a stream after its first event, and resume it at any worker, without lost or repeated events."""
    async with wired(site.port) as wire:
        call = tool("steps", number, token=number, count=5)
        await wire.ask("POST", "/mcp", legacy(session, revision), call)
        await wire.head()
        events = [await wire.event()]
        await wire.abort()
    async with wired(site.port) as wire:
        await wire.ask("GET", "/mcp", listening(session, events[-1].id, revision))
        assert (await wire.head()).status == 200
        events += await wire.events()
    assert steps(events) == [1, 2, 3, 4, 5]
    assert text(events[-1]) == "done"


async def cancel_call(site: Site, session: str, number: int, revision: str = OLD) -> None:
    """Cancel a call at any worker; its stream ends without a result."""
    async with wired(site.port) as wire:
        await wire.ask("POST", "/mcp", legacy(session, revision), tool("hang", number, token=number))
        await wire.head()
        await next_message(wire)
        cancelled = message("notifications/cancelled", {"requestId": number})
        assert (await site.post(legacy(session, revision), cancelled)).status == 202
        assert not [event for event in await wire.events() if event.data]


async def next_message(wire: Wire) -> Any:
    """Return the next message of a stream; a priming event has none."""
    while not (event := await wire.event()).data:
        pass
    return event.json
