"""What is published for clients that need a token: an ASGI application of its own, for who mounts both.

Owns how the documents of a keeper are served. Knows nothing of messages.
"""

import logging
from typing import Final

from toolpost.transports.exchange import ASGIReceive, ASGIScope, ASGISend, HttpExchange
from toolpost.transports.gate import HTTPRefusal
from toolpost.transports.keeper import METADATA_HEADERS, Authenticator

__all__ = ["ResourceMetadataApp", "strip_trailing_slash"]

logger: Final = logging.getLogger("toolpost.http")


class ResourceMetadataApp:
    """The documents about one endpoint.

    Args:
        keeper: who asks for tokens there, if anybody does.
    """

    def __init__(self, keeper: Authenticator | None) -> None:
        self._authenticator = keeper
        self._has_warned = False

    async def send_document(self, exchange: HttpExchange, root: str = "") -> None:
        """Answer with the document at a path, which there is."""
        assert self._authenticator is not None, "there is no path to it otherwise"
        if exchange.method == "OPTIONS":
            await exchange.send_empty(204, METADATA_HEADERS)
        else:
            document = self._authenticator.metadata_documents[strip_trailing_slash(root + exchange.path)]
            await exchange.send_json(200, document, METADATA_HEADERS)

    async def __call__(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        exchange, keeper = HttpExchange(scope, receive, send), self._authenticator
        if (
            keeper is None
            or strip_trailing_slash(exchange.root + exchange.path) not in keeper.metadata_documents
        ):
            if keeper is not None and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "app.metadata was asked for %.200r, but has %s: if that is about another server, "
                    "mount the metadata of each below its own path, such as %s",
                    exchange.root + exchange.path,
                    ", ".join(keeper.metadata_documents),
                    next(iter(keeper.metadata_documents)),
                )
            await exchange.send_json(404, HTTPRefusal(404, "There is nothing published at this path.").body)
        elif exchange.method in {"GET", "HEAD", "OPTIONS"}:
            await self.send_document(exchange, exchange.root)
        else:
            await exchange.send_empty(405, [(b"allow", b"GET, HEAD, OPTIONS")])


def strip_trailing_slash(path: str) -> str:
    """A path without what stands behind its last part."""
    return path.rstrip("/") or "/"
