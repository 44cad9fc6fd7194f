"""Servers with unusual responses to the first messages."""

from typing import Any

import msgspec

from revision_dates import DATES
from toolpost import Channel
from toolpost.errors import ChannelClosed

__all__ = ["EXIT", "NOT_FOUND", "SESSIONS", "WELCOME", "Odd"]


SESSIONS = DATES[:-1]
WELCOME = {
    "protocolVersion": DATES[3],
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "old", "version": "1"},
}
NOT_FOUND = {"code": -32601, "message": "Method not found"}
EXIT = "exit"


class Odd:
    """A server with a table: method → result, error, silence, exit, or a list of those in turn."""

    def __init__(self, **table: Any) -> None:
        self.table = {name.replace("__", "/"): answer for name, answer in table.items()}
        self.heard: list[list[str]] = []

    async def serve(self, channel: Channel) -> None:
        heard: list[str] = []
        self.heard.append(heard)
        try:
            while True:
                message = msgspec.json.decode(await channel.receive())
                heard.append(message["method"])
                answer = self.table.get(message["method"])
                if isinstance(answer, list):
                    answer = answer.pop(0)
                if answer == EXIT:
                    return
                if isinstance(answer, dict) and "id" in message:
                    kind = "error" if "code" in answer else "result"
                    await channel.send(
                        msgspec.json.encode({"jsonrpc": "2.0", "id": message["id"], kind: answer})
                    )
        except ChannelClosed:
            pass
