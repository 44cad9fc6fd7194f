"""The journal of a call without a session: its questions, answers and steps, and how the client carries them.

The key of a question is its kind, its content and its occurrence, not its position, so that functions may ask
concurrently. The client carries the journal in a seal, which is bound to the principal, the method, its
subject and its arguments. A journal that is too long for that stays in the store, and the client carries a
handle.
"""

import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from toolpost.errors import InternalError, InvalidParams, InvalidSeal
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.revisions import Revision
from toolpost.protocol.seal import MAX_PAYLOAD, KeyRing
from toolpost.server.runtime.eager_tasks import Unanswered
from toolpost.token_bucket import WarningThrottle
from toolpost.types.base import JSON, UNSET, InputRequest, Raw, Result, Struct, Unset

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

logger: Final = logging.getLogger("toolpost.server")

KEY_LENGTH: Final = 16
"""Characters of a key: enough to avoid collisions within one call."""


class ManualQuestion(Struct):
    """A question of an `InputRequired`; middleware may have answered it."""

    name: str
    method: str
    answer: Raw | Unset = UNSET


class JournalRecord(Struct):
    """The encoded content of a journal."""

    answers: dict[str, Raw]
    steps: dict[str, Raw]
    meant: dict[str, str]  # key → digest, of the questions that have a name
    by_hand: dict[str, ManualQuestion]  # the questions of an `InputRequired`, by key
    asked: list[str]  # the keys of the other questions of the last round
    state: Raw | Unset = UNSET  # of an `InputRequired`
    rounds: int = 0


_JOURNAL_READER: Final = JSONReader(JournalRecord)


class ReplayJournal:
    """The questions and steps of one call: `pages` of earlier runs, and the answers of this round."""

    def __init__(self, pages: bytes | None = None, answers: Mapping[str, Raw] | None = None) -> None:
        self.claim: tuple[str, bytes] | None = None  # records that the state is used up, and by which run
        self.record = JournalRecord({}, {}, {}, {}, []) if pages is None else _JOURNAL_READER(pages)
        self.open_questions: dict[str, InputRequest] = {}  # of this run, by key
        self.client_answers = answers or {}
        # An answer counts even if this run ends before it asks the question.
        self._new_answers = {
            key: self.client_answers[key] for key in self.record.asked if key in self.client_answers
        }
        self.record.answers |= self._new_answers
        self._unsolicited_answers = self.client_answers if pages is None else {}
        self._occurrences: Counter[str] = Counter()
        self._used_keys: set[str] = set()

    def answer(self, question: InputRequest, read: JSONReader[Any], name: str | None = None) -> Result:
        """Return the answer to a question. Raises Unanswered if there is none that can be read."""
        digest = _digest_question(question.method, bytes(question.params or b""))
        key = self._next_key(name or digest)
        answers, meant = self.record.answers, self.record.meant
        if name is not None:
            if meant.setdefault(key, digest) != digest:
                answers.pop(key, None)  # the answer to another question, which had this name (MRTR-22)
            meant[key] = digest
        answer = answers.get(key) or self._unsolicited_answers.get(key)
        if answer is not None:
            try:
                result = read(answer)
            except InvalidJSONValue:
                answers.pop(key, None)  # ask again, as if there were no answer (MRTR-16)
            else:
                answers[key] = answer
                return result
        self.open_questions[key] = question
        raise Unanswered("the question has no answer yet; the function runs again when it has one")

    def begin_manual_questions(self, state: Raw | Unset) -> None:
        """Start an `InputRequired`: drop the last one, and store the state."""
        self._unsolicited_answers = {}
        self.record.by_hand, self.record.state = {}, state

    def read_input(self, revision: Revision) -> tuple[dict[str, Result], JSON]:
        """Return the answers to an `InputRequired` that can be read, and its state (MRTR-13, MRTR-15)."""
        responses: dict[str, Result] = {}
        for key, asked in self.record.by_hand.items():
            row = revision.input_requests.get(asked.method)
            answer = self.client_answers.get(key) if asked.answer is UNSET else asked.answer
            if row is not None and answer is not None:
                with suppress(InvalidJSONValue):
                    responses[asked.name] = row.results["complete"](answer)
        state = self.record.state
        return responses, None if state is UNSET else msgspec.json.decode(state)

    def look_up_step(self, name: str) -> tuple[str, Raw | None]:
        """Return the key of a step, and its value if it ran before."""
        key = self._next_key(_digest_question("step", name.encode()))
        return key, self.record.steps.get(key)

    def count_unused_answers(self) -> int:
        """Return the number of new answers whose questions this run has not asked."""
        return len(self._new_answers.keys() - self._used_keys)

    def encode(self) -> bytes:
        """Return the journal as bytes, for the next round."""
        asked = [key for key in self.open_questions if key not in self.record.by_hand]
        return jsonrpc.encode(replace(self.record, asked=asked, rounds=self.record.rounds + 1))

    def _next_key(self, name: str) -> str:
        """Return a key that this run has not used: the same question twice is two questions (MRTR-3)."""
        while True:
            self._occurrences[name] += 1
            times = self._occurrences[name]
            key = name if times == 1 else f"{name}-{times}"
            if key not in self._used_keys:
                self._used_keys.add(key)
                return key


def _digest_question(kind: str, words: bytes) -> str:
    return sha256(b"%b\0%b" % (kind.encode(), words)).hexdigest()[:KEY_LENGTH]


MAX_JOURNAL_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the answers and steps of one call: enough for a few images."""

MAX_STORED_JOURNAL_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all journals of this process in the store."""

_KEY_RECORD: Final = "keys/states"
_INLINE_MARK: Final = b"="
_STORED_MARK: Final = b"@"
_NONCE_BYTES: Final = 12


class RequestStates:
    """The request states of one server."""

    def __init__(self, server: "Handler", keys: KeyRing | None, lifetime: float, *, once: bool) -> None:
        self._server = server
        self._keys = keys
        self._material = b""  # of the keys that are in the store
        self.has_given_keys = keys is not None  # then processes without a common store may share them
        self._lifetime = lifetime
        self._once = once
        self._stored_sizes: deque[tuple[float, int]] = deque()
        self._stored_bytes = 0
        self._warnings = WarningThrottle()

    async def open(self, incoming: InboundRequest, principal: str | None) -> ReplayJournal:
        """Return the journal of a request, or a new one. Raises InvalidParams (MRTR-10)."""
        params = incoming.params
        if params.request_state is None:
            # A client may guess the keys of questions; with `once`, only answers to a sent question count.
            return ReplayJournal(None, None if self._once else params.input_responses)
        try:
            pages = await self._unseal(params.request_state, incoming, principal)
            journal = ReplayJournal(pages, params.input_responses)
        except (InvalidSeal, InvalidJSONValue) as error:
            reason = error.reason if isinstance(error, InvalidSeal) else str(error)
            raise self._reject(incoming, f"{reason} (do all processes use the same keys?)") from None
        used = f"used/{sha256(params.request_state.encode()).hexdigest()}"
        journal.claim = used, secrets.token_bytes(16)
        if self._once or journal.record.steps:
            await self.claim_state(journal, incoming)
        return journal

    async def claim_state(self, journal: ReplayJournal, incoming: InboundRequest) -> None:
        """Use up the state of a journal, which must not run twice. Raises InvalidParams if it is used up."""
        if journal.claim is None:
            return
        (used, run), records = journal.claim, self._server.store.records
        # Concurrent steps of one run claim it together.
        if not await records.swap(used, None, run, self._lifetime) and await records.get(used) != run:
            raise self._reject(incoming, "it was already used")
        journal.claim = None

    def _reject(self, incoming: InboundRequest, why: str) -> InvalidParams:
        logger.log(
            self._warnings.choose_level(),
            "%s (id %.100r): request state rejected: %.250s",
            incoming.row.name,
            incoming.id,
            why,
        )
        return InvalidParams("Invalid params: the requestState is not valid for this request")

    async def seal(self, journal: ReplayJournal, incoming: InboundRequest, principal: str | None) -> str:
        """Return the state that the client carries."""
        pages = journal.encode()
        # The same call twice has two states: each is used once, and not every seal has a nonce.
        payload = _INLINE_MARK + secrets.token_bytes(_NONCE_BYTES) + pages
        if len(payload) > MAX_PAYLOAD:
            payload = _STORED_MARK + await self._store_journal(pages)
        keys, binding = await self.get_keys(), _make_binding(incoming, principal)
        expires = ceil(time.time() + self._lifetime)
        return keys.seal(payload, audience=self._audience, binding=binding, expires=expires)

    async def _store_journal(self, pages: bytes) -> bytes:
        """Store a journal that is too long for a state, and return its handle."""
        now = time.monotonic()
        while self._stored_sizes and self._stored_sizes[0][0] <= now:
            self._stored_bytes -= self._stored_sizes.popleft()[1]
        size, others = len(pages), self._stored_bytes
        if size > MAX_JOURNAL_BYTES or others + size > MAX_STORED_JOURNAL_BYTES:
            logger.warning("cannot store a journal of %d bytes: %d bytes are in use", size, others)
            raise InternalError(f"Internal error: answers and step results are too large ({size} bytes)")
        handle = secrets.token_urlsafe(24)
        await self._server.store.records.put(f"state/{handle}", pages, self._lifetime)
        self._stored_sizes.append((now + self._lifetime, size))
        self._stored_bytes += size
        return handle.encode()

    async def _unseal(self, state: str, incoming: InboundRequest, principal: str | None) -> bytes:
        keys, binding = await self.get_keys(), _make_binding(incoming, principal)
        payload = keys.open(state, audience=self._audience, binding=binding, now=int(time.time()))
        if payload[:1] == _INLINE_MARK:
            return payload[1 + _NONCE_BYTES :]
        pages = await self._server.store.records.get(f"state/{payload[1:].decode()}")
        if pages is None:
            raise InvalidSeal("it is not in the store: it has expired, or another store has it")
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
            self._material, self._keys = material, KeyRing([material])
        return self._keys

    async def restore_keys(self) -> None:
        """Put the keys back into a store that may have lost them, for workers that start later."""
        if self._material:
            await self._server.store.records.swap(_KEY_RECORD, None, self._material, None)


def _make_binding(incoming: InboundRequest, principal: str | None) -> list[str | bytes]:
    """Return the values that have to be the same when a state is used (MRTR-11)."""
    params = incoming.params
    about = getattr(params, incoming.row.named) if incoming.row.named else ""
    return [principal or "", incoming.row.name, about, _digest_arguments(getattr(params, "arguments", None))]


def _digest_arguments(arguments: Any) -> bytes:
    """Return a digest of arguments that does not depend on the formatting of the JSON."""
    if arguments is UNSET:
        arguments = None
    elif isinstance(arguments, Raw):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, ValueError):
            return sha256(arguments).digest()
    return sha256(msgspec.json.encode(arguments, order="sorted")).digest()
