"""An issuer with an introspection endpoint, with configurable delays and errors."""

import asyncio
import json
from typing import Any

from protected_server import RESOURCE
from toolpost import Introspection

__all__ = ["GOOD", "ISSUER", "Issuer", "asks"]


ISSUER = "https://login.example.com"
GOOD = {"active": True, "aud": RESOURCE, "sub": "ann"}


class Issuer:
    """Responds to introspection, with a configurable delay."""

    def __init__(self, told: Any = None) -> None:
        self.told = GOOD if told is None else told
        self.asked = 0
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.each = asyncio.Semaphore(0)
        self.go.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        self.asked += 1
        self.begun.set()
        self.each.release()
        await receive()
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(self.told).encode()})


def asks(issuer: Issuer, **more: Any) -> Introspection:
    return Introspection(f"{ISSUER}/i", "mcp", "secret", http=issuer, **more)
