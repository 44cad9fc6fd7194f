"""What is published for clients that need a token: an ASGI application of its own, for who mounts both.

Owns how the documents of a keeper are served. Knows nothing of messages.
"""

import logging
from typing import Final

from toolpost.transports.exchange import ASGIReceive, ASGISend, Exchange, Scope
from toolpost.transports.gate import Refusal
from toolpost.transports.keeper import METADATA_HEADERS, Keeper

__all__ = ["Metadata", "trimmed"]

logger: Final = logging.getLogger("toolpost.http")


class Metadata:
    """The documents about one endpoint.

    Args:
        keeper: who asks for tokens there, if anybody does.
    """

    def __init__(self, keeper: Keeper | None) -> None:
        self._keeper = keeper
        self._asked_elsewhere = False

    async def answer(self, exchange: Exchange, root: str = "") -> None:
        """Answer with the document at a path, which there is."""
        assert self._keeper is not None, "there is no path to it otherwise"
        if exchange.method == "OPTIONS":
            await exchange.empty(204, METADATA_HEADERS)
        else:
            document = self._keeper.published[trimmed(root + exchange.path)]
            await exchange.json(200, document, METADATA_HEADERS)

    async def __call__(self, scope: Scope, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        exchange, keeper = Exchange(scope, receive, send), self._keeper
        if keeper is None or trimmed(exchange.root + exchange.path) not in keeper.published:
            if keeper is not None and not self._asked_elsewhere:
                self._asked_elsewhere = True
                logger.warning(
                    "app.metadata was asked for %.200r, but has %s: if that is about another server, "
                    "mount the metadata of each below its own path, such as %s",
                    exchange.root + exchange.path,
                    ", ".join(keeper.published),
                    next(iter(keeper.published)),
                )
            await exchange.json(404, Refusal(404, "There is nothing published at this path.").body)
        elif exchange.method in {"GET", "HEAD", "OPTIONS"}:
            await self.answer(exchange, exchange.root)
        else:
            await exchange.empty(405, [(b"allow", b"GET, HEAD, OPTIONS")])


def trimmed(path: str) -> str:
    """A path without what stands behind its last part."""
    return path.rstrip("/") or "/"
