"""Creates empty tasks on an ASGI application in its own process, and waits for their end.

Sends bytes, so that the CPU is that of the server: no client library is measured. Imports no other package.
"""

import asyncio
import json
import resource
import time
from typing import Any, Final

from in_process import App, ask_app
from wire import parse_messages

__all__ = ["STATELESS", "EmptyTasks"]

STATELESS: Final = "2026-07-28"
AT_ONCE: Final = 50
WARM: Final = 100
MEASURED: Final = 1000
IDLE_SECONDS: Final = 3.0


class EmptyTasks:
    """The tool `nothing`, which is a task for those who can, and what it costs."""

    def __init__(self) -> None:
        self._runs = 0
        self._wanted = 0
        self._done = asyncio.Event()

    async def nothing(self) -> str:
        """Do nothing."""
        self._runs += 1
        if self._runs >= self._wanted:
            self._done.set()
        return ""

    async def measure(self, app: App) -> None:
        """Print how often per second an idle server wakes up, and the microseconds of CPU for one task."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        await asyncio.sleep(IDLE_SECONDS)
        woken = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before - 1  # one of them is ours
        await self._create(app, WARM)
        cpu = await self._create(app, MEASURED)
        print(json.dumps({"cpu": cpu * 1e6, "idle": max(0, woken) / IDLE_SECONDS}), flush=True)

    async def _create(self, app: App, amount: int) -> float:
        """Create tasks, and look at each once it has ended. Returns the seconds of CPU for one."""
        burnt = 0.0
        for _ in range(amount // AT_ONCE):
            self._wanted = self._runs + AT_ONCE
            self._done.clear()
            calls = [_make("tools/call", {"name": "nothing", "arguments": {}}, "nothing")] * AT_ONCE
            used = time.process_time()
            created = [await ask_app(app, *call) for call in calls]
            await self._done.wait()
            burnt += time.process_time() - used
            looks = [_make("tasks/get", {"taskId": task}, task) for task in map(_read_id, created)]
            while looks:
                used = time.process_time()
                seen = [await ask_app(app, *look) for look in looks]
                burnt += time.process_time() - used
                looks = [look for look, state in zip(looks, seen, strict=True) if b'"completed"' not in state]
                await asyncio.sleep(0)
        return burnt / amount


def _read_id(answer: bytes) -> str:
    """Return the id of a task that was created."""
    result = parse_messages(answer)[-1].get("result", {})
    if "taskId" not in result:
        raise RuntimeError(f"wrong response: {answer[:300]}")
    return result["taskId"]


def _make(method: str, params: dict[str, Any], name: str) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a request."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    }
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": STATELESS,
        "mcp-method": method,
        "mcp-name": name,
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return headers, json.dumps(message).encode()
