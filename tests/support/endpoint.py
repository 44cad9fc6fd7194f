"""A server behind a channel that works like HTTP: a table defines the response to each request, or its loss.

`Endpoint` is the server, `HttpLike` a channel to it; `client_of` creates a client of it.
"""

import asyncio
from typing import Any

import msgspec

from revision_dates import DATES
from toolpost import Channel, Client
from toolpost.client.connection.negotiate import Connector
from toolpost.errors import ConnectFailed, RequestFailed, SessionLost
from toolpost.testing import ScriptedChannel

WELCOME = {
    "protocolVersion": DATES[3],
    "capabilities": {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {},
        "logging": {},
    },
    "serverInfo": {"name": "old", "version": "1"},
}
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": [DATES[-1]],
    "capabilities": WELCOME["capabilities"],
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "new", "version": "1"}},
}
NOT_FOUND = {"code": -32601, "message": "Method not found"}
OPENED = ["initialize", "notifications/initialized"]


class HttpLike(ScriptedChannel):
    """A channel that can lose a single request, and mirrors arguments."""

    def __init__(self, endpoint: "Endpoint") -> None:
        super().__init__()
        self.endpoint = endpoint
        self.find_header_parameters: Any = lambda _: None
        self.tell: Any = None
        self.heard: list[str] = []
        self.mirrored: list[Any] = []
        self.forgotten = False

    def on_request_lost(self, tell: Any) -> None:
        self.tell = tell

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        await super().send(data, related)
        message = msgspec.json.decode(data)
        self.heard.append(message["method"])
        if message["method"] == "tools/call":
            self.mirrored.append(self.find_header_parameters(message["params"]["name"]))
        self.endpoint.news.set()
        if "id" in message:
            answer = self.lost() if self.forgotten else self.endpoint.answer(self, message)
            self.answer(message["id"], answer)

    def answer(self, request_id: Any, answer: Any) -> None:
        """Answer a request: a result, an error, a status, an exception, or not at all."""
        if isinstance(answer, int):
            answer = RequestFailed(f"the server answered {answer}", status=answer)
        if isinstance(answer, Exception):
            self.tell(request_id, answer)
            if isinstance(answer, SessionLost):
                self.forget()
                self.end(SessionLost(answer.message))
        elif answer is not None:
            kind = "error" if "code" in answer else "result"
            self.feed({"jsonrpc": "2.0", "id": request_id, kind: answer})

    def say(self, method: str, **params: Any) -> None:
        """Feed a notification."""
        self.feed({"jsonrpc": "2.0", "method": method, "params": params})

    def lost(self) -> SessionLost:
        """Return the error for a request that was rejected because the session is lost."""
        return SessionLost("the server no longer knows the session", sent=False)

    def forget(self) -> None:
        """Forget the session; the client notices at its next request."""
        self.forgotten = True


class Endpoint:
    """A server with a table: method → response, a list of responses in turn, or a function."""

    def __init__(self, **table: Any) -> None:
        self.table: dict[str, Any] = {name.replace("__", "/"): answer for name, answer in table.items()}
        self.channels: list[HttpLike] = []
        self.refuses: Exception | None = None
        self.news = asyncio.Event()

    async def open(self) -> Channel:
        if self.refuses is not None:
            raise self.refuses
        self.channels.append(HttpLike(self))
        return self.channels[-1]

    def answer(self, channel: HttpLike, message: Any) -> Any:
        answer = self.table.get(message["method"], {})
        if isinstance(answer, list):
            answer = answer.pop(0)
        return answer(channel, message) if callable(answer) else answer

    @property
    def heard(self) -> list[list[str]]:
        """The methods, for each channel."""
        return [channel.heard for channel in self.channels]

    @property
    def now(self) -> HttpLike:
        """The channel that was opened last."""
        return self.channels[-1]

    def sent(self, method: str) -> list[Any]:
        """The parameters of all messages of a method."""
        return [
            message.get("params")
            for channel in self.channels
            for message in channel.sent
            if message["method"] == method
        ]

    async def until(self, method: str, count: int = 1) -> None:
        """Wait until a method was received this often."""
        while sum(channel.heard.count(method) for channel in self.channels) < count:
            self.news.clear()
            await self.news.wait()


def way_of(endpoint: Endpoint, fallback: Endpoint | None = None, **fields: Any) -> Connector:
    """Return a target that leads to an endpoint."""
    behind = None if fallback is None else Connector("behind", fallback.open, session=True)
    return Connector("http://host/mcp", endpoint.open, fallback=behind, **fields)


def client_of(endpoint: Endpoint, fallback: Endpoint | None = None, **options: Any) -> Client:
    """Return a client of an endpoint; `key` and `can_reopen` are those of its target."""
    fields = {name: options.pop(name) for name in ("key", "can_reopen") if name in options}
    return Client(Reached(way_of(endpoint, fallback, **fields)), **options)


class Reached:
    """A target that opens itself, like those of `toolpost.testing.faulty`."""

    def __init__(self, way: Connector) -> None:
        self._way = way

    def make_connector(self, options: Any) -> Connector:
        return self._way


def refused() -> ConnectFailed:
    return ConnectFailed("there is no event stream")
