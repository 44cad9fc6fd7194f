"""Request states: a journal on its way to the client and back, sealed against change and reuse elsewhere.

A seal is bound to the principal, the method, its subject and its arguments. A journal that is too long for a
string stays in the store, and a handle travels. The content of a journal is not known here.
"""

import logging
import secrets
import time
from collections import deque
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolpost.errors import InternalError, InvalidParams, InvalidSeal
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import InvalidJSONValue
from toolpost.protocol.seal import MAX_PAYLOAD, KeyRing
from toolpost.server.elicitation.journal import ReplayJournal
from toolpost.types.base import UNSET, Raw

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

logger: Final = logging.getLogger("toolpost.server")

MAX_JOURNAL_BYTES: Final = 4 * 1024 * 1024
"""Bytes of answers and steps that one call may remember: some pictures."""

MAX_STORED_JOURNAL_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all journals that this process keeps in the store."""

_KEY_RECORD: Final = "keys/states"
_INLINE_MARK: Final = b"="
_STORED_MARK: Final = b"@"


class RequestStates:
    """The request states of one server."""

    def __init__(self, server: "Handler", keys: KeyRing | None, lifetime: float, *, once: bool) -> None:
        self._server = server
        self._keys = keys
        self.has_given_keys = keys is not None
        """Whether processes without a common store may have the same keys."""
        self._lifetime = lifetime
        self._once = once
        self._stored_sizes: deque[tuple[float, int]] = deque()
        self._stored_bytes = 0

    async def open(self, incoming: InboundRequest, principal: str | None) -> ReplayJournal:
        """Return the journal that a request brings back, or a new one. Raises InvalidParams (MRTR-10)."""
        params = incoming.params
        if params.request_state is None:
            # A client may know the keys of questions; with `once`, only answers to a question count.
            return ReplayJournal(None, None if self._once else params.input_responses)
        try:
            pages = await self._unseal(params.request_state, incoming, principal)
            return ReplayJournal(pages, params.input_responses)
        except (InvalidSeal, InvalidJSONValue) as error:
            reason = error.reason if isinstance(error, InvalidSeal) else str(error)
            logger.warning(
                "%s (id %r): a request state was refused: %s (do all processes have the same keys?)",
                incoming.row.name,
                incoming.id,
                reason,
            )
            raise InvalidParams("Invalid params: the requestState is not valid for this request") from None

    async def seal(self, journal: ReplayJournal, incoming: InboundRequest, principal: str | None) -> str:
        """Return the state that the client brings back."""
        pages = journal.encode()
        payload = _INLINE_MARK + pages
        if len(payload) > MAX_PAYLOAD:
            payload = _STORED_MARK + await self._store_journal(pages)
        keys, binding = await self.get_keys(), _make_binding(incoming, principal)
        expires = ceil(time.time() + self._lifetime)
        return keys.seal(payload, audience=self._audience, binding=binding, expires=expires)

    async def _store_journal(self, pages: bytes) -> bytes:
        """Store a journal that is too long to travel, and return its handle."""
        now = time.monotonic()
        while self._stored_sizes and self._stored_sizes[0][0] <= now:
            self._stored_bytes -= self._stored_sizes.popleft()[1]
        size, others = len(pages), self._stored_bytes
        if size > MAX_JOURNAL_BYTES or others + size > MAX_STORED_JOURNAL_BYTES:
            logger.warning("a journal of %d bytes cannot be kept, beside %d of others", size, others)
            raise InternalError(f"Internal error: answers and steps have {size} bytes, which is too much")
        handle = secrets.token_urlsafe(24)
        await self._server.store.records.put(f"state/{handle}", pages, self._lifetime)
        self._stored_sizes.append((now + self._lifetime, size))
        self._stored_bytes += size
        return handle.encode()

    async def _unseal(self, state: str, incoming: InboundRequest, principal: str | None) -> bytes:
        keys, binding = await self.get_keys(), _make_binding(incoming, principal)
        payload = keys.open(state, audience=self._audience, binding=binding, now=int(time.time()))
        if self._once:
            seen = f"used/{sha256(state.encode()).hexdigest()}"
            if not await self._server.store.records.swap(seen, None, b"1", self._lifetime):
                raise InvalidSeal("it was brought before")
        if payload[:1] == _INLINE_MARK:
            return payload[1:]
        pages = await self._server.store.records.get(f"state/{payload[1:].decode()}")
        if pages is None:
            raise InvalidSeal("it is not in the store: it came too late, or another store has it")
        return pages

    @property
    def _audience(self) -> str:
        return f"request state of {self._server.info.name}"

    async def get_keys(self) -> KeyRing:
        """Return the keys; the first call makes one for all servers that share the store."""
        if self._keys is None:
            records = self._server.store.records
            await records.swap(_KEY_RECORD, None, secrets.token_bytes(32), None)
            material = await records.get(_KEY_RECORD)
            assert material is not None, "it never expires"
            self._keys = KeyRing([material])
        return self._keys


def _make_binding(incoming: InboundRequest, principal: str | None) -> list[str | bytes]:
    """Return what has to be the same when a state comes back (MRTR-11)."""
    params = incoming.params
    about = getattr(params, incoming.row.named) if incoming.row.named else ""
    return [principal or "", incoming.row.name, about, _digest_arguments(getattr(params, "arguments", None))]


def _digest_arguments(arguments: Any) -> bytes:
    """Return a digest of arguments that does not depend on how the JSON is written."""
    if arguments is UNSET:
        arguments = None
    elif isinstance(arguments, Raw):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, ValueError):
            return sha256(arguments).digest()
    return sha256(msgspec.json.encode(arguments, order="sorted")).digest()
