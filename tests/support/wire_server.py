"""A server at the other end of a channel of a test."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from revision_dates import DATES

__all__ = ["ANSWER", "OLD", "Said", "Wire"]


OLD = DATES[0]


# --------------------------------------------------------------------- URLs, nonsense


ANSWER = {
    "server/discover": {"resultType": "complete", "supportedVersions": [DATES[-1]], "capabilities": {}},
    "initialize": {
        "protocolVersion": OLD,
        "capabilities": {},
        "serverInfo": {"name": "old", "version": "1"},
    },
}


class Wire:
    """An HTTP backend that responds with JSON and records the requests."""

    def __init__(self, *refuse: str) -> None:
        self.refuse = refuse
        self.sent: list[tuple[str, str, dict[str, str], str]] = []

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Any, body: bytes | None = None
    ) -> AsyncGenerator["Said"]:
        message = json.loads(body or b'{"method": null}')
        self.sent.append((method, url, dict(headers), message["method"]))
        if method == "GET":
            yield Said(200, {"content-type": "text/event-stream"}, b"event: endpoint\ndata: /post\n\n")
        elif message["method"] in self.refuse:
            yield Said(404, {}, b"")
        elif "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWER[message["method"]]}
            yield Said(200, {"content-type": "application/json"}, json.dumps(answer).encode())
        else:
            yield Said(202, {}, b"")

    async def close(self) -> None:
        pass


class Said:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    async def chunks(self) -> Any:
        yield self.body

    async def read(self, limit: int = 0) -> bytes:
        return self.body
