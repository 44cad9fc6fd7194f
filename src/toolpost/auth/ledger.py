"""What is kept about one server between runs: who issues its tokens, and the tokens.

Owns the keys by which they are found, so that nobody finds what is for somebody else. What is done with
tokens is not known here.
"""

import logging
from contextlib import AbstractAsyncContextManager
from typing import Final

from toolpost.auth.tokens import ServerRecord, Tokens, decode_record, encode_record
from toolpost.auth.vault import Vault

__all__ = ["TokenRecords"]

logger: Final = logging.getLogger("toolpost.auth")


class TokenRecords:
    """What one client keeps about one server.

    Args:
        vault: keeps it.
        server: the address of the server.
        who: tells the clients apart that share a storage.
    """

    def __init__(self, vault: Vault, server: str, who: str) -> None:
        self._storage = vault
        self._server = server
        self._client_key = who
        self._saved_server: ServerRecord | None = None

    async def load_server(self) -> ServerRecord | None:
        """What was found out about the server the last time."""
        text = await self._storage.get(f"server\n{self._server}\n{self._client_key}")
        self._saved_server = None if text is None else decode_record(text, ServerRecord)
        return self._saved_server

    async def save_server(self, known: ServerRecord) -> None:
        """Keep what was found out."""
        if self._saved_server != known:
            await self._storage.put(f"server\n{self._server}\n{self._client_key}", encode_record(known))
            self._saved_server = known

    async def load_tokens(self, known: ServerRecord) -> Tokens | None:
        """The tokens that were kept."""
        text = await self._storage.get(self._tokens_key(known))
        tokens = None if text is None else decode_record(text, Tokens)
        if text is not None and tokens is None:
            logger.warning("the tokens for %s cannot be read; they are got anew", known.issuer)
        return tokens

    async def save_tokens(self, known: ServerRecord, tokens: Tokens) -> None:
        """Keep new tokens, before they are used: a refresh token that is lost cannot be had again."""
        await self._storage.put(self._tokens_key(known), encode_record(tokens))
        await self.save_server(known)

    async def delete_tokens(self, known: ServerRecord) -> None:
        """Keep tokens no longer."""
        await self._storage.delete(self._tokens_key(known))

    def lock(self, known: ServerRecord) -> AbstractAsyncContextManager[None]:
        """Keep out others who want these tokens."""
        return self._storage.lock(self._tokens_key(known))

    def _tokens_key(self, known: ServerRecord) -> str:
        """The name of the tokens: issuer, resource, client; the address too, where the resource is wider.

        A server may call all of its host its resource. So may its neighbour, where nobody has logged in.
        """
        narrow = "" if known.resource == self._server else f"\n{self._server}"
        return f"tokens\n{known.issuer}\n{known.resource}\n{self._client_key}{narrow}"
