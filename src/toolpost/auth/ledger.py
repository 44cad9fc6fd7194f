"""What is kept about one server between runs: who issues its tokens, and the tokens.

Owns the keys by which they are found, so that nobody finds what is for somebody else. What is done with
tokens is not known here.
"""

import logging
from contextlib import AbstractAsyncContextManager
from typing import Final

from toolpost.auth.tokens import Known, Tokens, read, written
from toolpost.auth.vault import Vault

__all__ = ["Ledger"]

logger: Final = logging.getLogger("toolpost.auth")


class Ledger:
    """What one client keeps about one server.

    Args:
        vault: keeps it.
        server: the address of the server.
        who: tells the clients apart that share a storage.
    """

    def __init__(self, vault: Vault, server: str, who: str) -> None:
        self._vault = vault
        self._server = server
        self._who = who
        self._noted: Known | None = None

    async def known(self) -> Known | None:
        """What was found out about the server the last time."""
        text = await self._vault.get(f"server\n{self._server}\n{self._who}")
        self._noted = None if text is None else read(text, Known)
        return self._noted

    async def note(self, known: Known) -> None:
        """Keep what was found out."""
        if self._noted != known:
            await self._vault.put(f"server\n{self._server}\n{self._who}", written(known))
            self._noted = known

    async def tokens(self, known: Known) -> Tokens | None:
        """The tokens that were kept."""
        text = await self._vault.get(self._key(known))
        tokens = None if text is None else read(text, Tokens)
        if text is not None and tokens is None:
            logger.warning("the tokens for %s cannot be read; they are got anew", known.issuer)
        return tokens

    async def keep(self, known: Known, tokens: Tokens) -> None:
        """Keep new tokens, before they are used: a refresh token that is lost cannot be had again."""
        await self._vault.put(self._key(known), written(tokens))
        await self.note(known)

    async def drop(self, known: Known) -> None:
        """Keep tokens no longer."""
        await self._vault.delete(self._key(known))

    def lock(self, known: Known) -> AbstractAsyncContextManager[None]:
        """Keep out others who want these tokens."""
        return self._vault.lock(self._key(known))

    def _key(self, known: Known) -> str:
        """The name of the tokens: issuer, resource, client; the address too, where the resource is wider.

        A server may call all of its host its resource. So may its neighbour, where nobody has logged in.
        """
        narrow = "" if known.resource == self._server else f"\n{self._server}"
        return f"tokens\n{known.issuer}\n{known.resource}\n{self._who}{narrow}"
