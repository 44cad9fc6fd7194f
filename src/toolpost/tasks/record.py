"""The record of a task, and its state machine: pure functions that change a record or refuse to.

    working ⇄ input_required        a run ends with questions; the last answer starts another run
    both → completed | failed | cancelled, which never change (TASK-11)

A run is one attempt to execute the function. It names itself in `holder`; what a run that lost the task says
has no effect. Times are in milliseconds since 1970.
"""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import field

from toolpost.errors import InternalError, RPCError
from toolpost.principal import Principal
from toolpost.protocol import jsonrpc
from toolpost.tasks.wire import TERMINAL_STATUSES
from toolpost.types.base import UNSET, InputRequest, Number, Raw, Struct, Unset
from toolpost.types.tools import TaskStatus

MAX_RESULT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a result or an error that a task may keep."""

MAX_MESSAGE: Final = 2000
"""Characters of a status message."""

DEATH_TEXT: Final = "The worker that ran this task has died; it was not run again."

Questions: TypeAlias = dict[str, tuple[str, bytes]]
"""Open questions: key → key in the journal, request."""

Start: TypeAlias = Literal["run", "over", "stale", "early"]
"""What to do with an item of the queue: run the task; it has ended now; drop the item; leave it."""


class TaskRecord(Struct, array_like=True):
    """The state of a task, as it is stored."""

    kind: Literal["extension", "session"]
    owner: str  # see `make_owner`
    created: int
    ttl: int  # from `created` on; only raised
    life: int  # how long it is kept after its last change
    poll: int
    attempts: int  # how often the function may begin
    status: TaskStatus = "working"
    updated: int = 0
    message: str | None = None
    progress: tuple[Number, Number | None, str | None] | None = None
    attempt: int = 0  # how often a run has begun
    deaths: int = 0  # how many runs ended without a word
    holder: str = ""  # the run that has the task
    round: int = 0  # how often it was answered
    journal: bytes = b""
    questions: Questions = field(default_factory=dict[str, tuple[str, bytes]])
    asked: list[str] = field(default_factory=list[str])  # the keys of all questions so far
    answers: dict[str, bytes] = field(default_factory=dict[str, bytes])  # new ones, by key in the journal
    result: bytes | None = None
    error: bytes | None = None
    is_error: bool = False  # whether the result is that of a tool that failed

    @property
    def is_over(self) -> bool:
        """Whether the task has ended."""
        return self.status in TERMINAL_STATUSES

    @property
    def expires(self) -> int:
        """When the record may be dropped."""
        return self.created + self.ttl

    def prolong(self, now: int) -> None:
        """Keep the task for `life` from now on."""
        self.ttl = max(self.ttl, now - self.created + self.life)

    def touch(self, now: int) -> None:
        """Record a visible change."""
        self.updated = max(now, self.updated + 1)
        self.prolong(now)

    # ----------------------------------------------------------------- runs

    def start(self, number: int, token: str, now: int) -> Start:
        """Give the task to a run; `number` is the round of its item in the queue."""
        if self.is_over or number < self.round:
            return "stale"
        if number > self.round:
            return "early"  # the last answer is about to be stored
        if self.status != "working":
            return "stale"
        if self.holder == token:
            return "run"  # it was stored, but the store's reply was lost
        if self.holder:
            self.deaths += 1
            if self.deaths >= self.attempts:
                self.fail(InternalError(f"Internal error: {DEATH_TEXT}"), now)
                return "over"
        self.attempt += 1
        self.holder = token
        self.prolong(now)
        return "run"

    def is_held_by(self, token: str) -> bool:
        """Return whether a run still has the task."""
        return self.holder == token and not self.is_over

    def lose(self, token: str, now: int) -> bool:
        """End a run whose worker stops: like a death, but known at once. Return whether it may run again."""
        if not self.is_held_by(token):
            return False
        self.deaths += 1
        self.holder = ""
        if self.deaths < self.attempts:
            return True
        self.fail(InternalError(f"Internal error: {DEATH_TEXT.replace('died', 'stopped')}"), now)
        return False

    def suspend(self, token: str, questions: Mapping[str, InputRequest], journal: bytes, now: int) -> bool:
        """End a run that has questions."""
        if not self.is_held_by(token):
            return False
        self.questions = {}
        self.answers = {}
        for key, asked in questions.items():
            name, times = key, 1
            while name in self.asked:  # a key is never used twice
                times += 1
                name = f"{key}~{times}"
            self.asked.append(name)
            self.questions[name] = key, jsonrpc.encode(asked)
        self.status, self.holder, self.journal = "input_required", "", journal
        self.touch(now)
        return True

    def take_answers(self, answers: Mapping[str, Raw], now: int) -> bool:
        """Take the answers to open questions and ignore others; with the last one, the task works again."""
        known = [key for key in answers if key in self.questions]
        if not known or self.status != "input_required":
            return False
        for key in known:
            self.answers[self.questions.pop(key)[0]] = bytes(answers[key])
        if not self.questions:
            self.status = "working"
            self.round += 1
        self.touch(now)
        return True

    # ----------------------------------------------------------------- ends

    def complete(self, result: bytes, now: int, *, is_error: bool = False, text: str | None = None) -> bool:
        """End the task with a result."""
        if self.is_over:
            return False
        if len(result) > MAX_RESULT_BYTES:
            return self.fail(
                InternalError(
                    f"Internal error: the result has {len(result)} bytes; a task keeps {MAX_RESULT_BYTES}"
                ),
                now,
            )
        self.result, self.is_error = result, is_error
        return self._end("completed", text if is_error else None, now)

    def fail(self, error: RPCError, now: int) -> bool:
        """End the task with a protocol error."""
        if self.is_over:
            return False
        self.error = encode_error_object(error)
        if len(self.error) > MAX_RESULT_BYTES:
            self.error = encode_error_object(RPCError(error.message[:MAX_MESSAGE], code=error.code))
        return self._end("failed", error.message, now)

    def cancel(self, now: int) -> bool:
        """End the task without a result."""
        return not self.is_over and self._end("cancelled", "The task was cancelled.", now)

    def _end(self, status: TaskStatus, message: str | None, now: int) -> bool:
        self.status, self.holder = status, ""
        self.journal, self.questions, self.answers = b"", {}, {}
        if message is not None:
            self.message = message[:MAX_MESSAGE]
        self.touch(now)
        return True


class TaskCall(Struct, array_like=True):
    """The call behind a task, as it is stored: all that another worker needs to run it. Never a token."""

    params: bytes  # of `tools/call`
    revision: str
    capabilities: bytes  # of the client
    info: bytes | None
    principal: "StoredPrincipal | None" = None
    is_remote: bool = False


class StoredPrincipal(Struct, array_like=True):
    """A principal, as it is stored."""

    subject: str
    issuer: str
    client: str
    scopes: list[str]
    claims: bytes

    @classmethod
    def of(cls, principal: Principal | None) -> "StoredPrincipal | None":
        """Return what to store of a principal."""
        if principal is None:
            return None
        claims = jsonrpc.encode(principal.claims)
        return cls(principal.subject, principal.issuer, principal.client, sorted(principal.scopes), claims)

    def restore(self) -> Principal:
        """Return the principal."""
        scopes, claims = frozenset(self.scopes), msgspec.json.decode(self.claims)
        return Principal(self.subject, self.issuer, self.client, scopes, claims)


class _StoredError(Struct, omit_defaults=True):
    code: int
    message: str
    data: Raw | Unset = UNSET


_ERROR_DECODER: Final = msgspec.json.Decoder(_StoredError)


def encode_error_object(error: RPCError) -> bytes:
    """Return an error as the JSON object that responses have."""
    data = UNSET if error.data is None else Raw(jsonrpc.encode(error.data))
    return jsonrpc.encode(_StoredError(error.code, error.message, data))


def decode_error_object(encoded: bytes) -> RPCError:
    """Return the error of such an object."""
    found = _ERROR_DECODER.decode(encoded)
    data = None if found.data is UNSET else msgspec.json.decode(found.data)
    return RPCError(found.message, data, code=found.code)


def make_task_id() -> str:
    """Return an id that cannot be guessed (TASK-10, TASK-32)."""
    return secrets.token_urlsafe(16)


def make_owner(kind: str, principal: Principal | None) -> str:
    """Return what a request has to share with the task that it names: its kind and its principal."""
    key = "" if principal is None else principal.key
    return sha256(f"{kind}\0{key}".encode()).hexdigest()[:24]


def format_time(milliseconds: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"
