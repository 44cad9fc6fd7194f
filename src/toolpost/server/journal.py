"""The journal of one call without a session: what was asked, what was answered, what was done.

A function that asks finds its answer here, or leaves by `Unanswered` and runs again from the top when its
client has come back. A question is known by its kind, its words and how often it was asked, not by its place,
so that functions may ask side by side; a name of its own changes its key, not what it is. Knows neither seals
nor stores: what it holds goes out and comes back as bytes, and whoever carries them answers for them.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from toolpost.errors import LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.server.pending import Unanswered
from toolpost.types.base import UNSET, Raw, Result, Struct, Unset
from toolpost.types.inputs import InputRequest

__all__ = ["ManualQuestion", "ReplayJournal"]

KEY_LENGTH: Final = 16
"""Letters of a key: no two questions of one call are the same by chance."""


class ManualQuestion(Struct):
    """A question that a function has put together itself; it has an answer if middleware had one."""

    name: str
    method: str
    answer: Raw | Unset = UNSET


class _JournalRecord(Struct):
    """What a journal holds, as it travels."""

    answers: dict[str, Raw]
    steps: dict[str, Raw]
    meant: dict[str, str]
    """What the questions with names of their own were, by key."""
    by_hand: dict[str, ManualQuestion]
    """The questions that a function has put together itself, by key."""
    asked: list[str]
    """The keys of the others that the client was asked last."""
    state: Raw | Unset = UNSET
    """What such a function wants back."""
    rounds: int = 0


_JOURNAL_READER: Final = JSONReader(_JournalRecord)


class ReplayJournal:
    """What one call has asked and done so far.

    Args:
        encode: what was written before; None for a call that begins.
        answers: what the client brings, by key.

    Raises:
        InvalidJSONValue: the pages are none of ours.
    """

    def __init__(self, pages: bytes | None = None, answers: Mapping[str, Raw] | None = None) -> None:
        written = _JOURNAL_READER(pages) if pages is not None else _JournalRecord({}, {}, {}, {}, [])
        self.rounds = written.rounds
        """How often the client has been asked."""
        self.open_questions: dict[str, InputRequest] = {}
        """The questions of this run that have no answer, by key."""
        self.manual_questions = written.by_hand
        """The questions that the function itself has put together, by key."""
        self.state = written.state
        """What such a function has wanted back."""
        self.client_answers = answers or {}
        """What the client has brought this time, by key: as it came."""
        self._answers = written.answers
        # What was answered counts, also if this run does not come so far as to ask.
        self._new_answers = {
            key: self.client_answers[key] for key in written.asked if key in self.client_answers
        }
        self._answers |= self._new_answers
        self._unsolicited_answers = self.client_answers if pages is None else {}
        self._steps = written.steps
        self._digests_by_key = written.meant
        self._occurrences: Counter[str] = Counter()
        self._used_keys: set[str] = set()

    def answer(self, question: InputRequest, read: JSONReader[Any], name: str | None = None) -> Result:
        """The answer to a question, if there is one that can be read.

        Args:
            question: what is asked.
            read: reads the answer.
            name: what the client is to call it; without, it is told by its words.

        Raises:
            Unanswered: there is none; the question is noted.
        """
        digest = _digest_question(question.method, bytes(question.params or b""))
        key = self._next_key(name or digest)
        if name is not None and self._digests_by_key.get(key, digest) != digest:
            self._answers.pop(key, None)  # it answers another question, which had this name (MRTR-22)
        answer = self._answers.get(key) or self._unsolicited_answers.get(key)
        if name is not None:
            self._digests_by_key[key] = digest
        if answer is not None:
            try:
                result = read(answer)
            except InvalidJSONValue:
                self._answers.pop(key, None)  # asked again, as if nothing had been said (MRTR-16)
            else:
                self._answers[key] = answer
                return result
        self.open_questions[key] = question
        raise Unanswered("the question has no answer yet: the function ends here, and runs again with it")

    def begin_manual_questions(self, state: Raw | Unset) -> None:
        """Let what is asked from here on be asked in any case, and want a state back with the answers."""
        self._unsolicited_answers = {}
        self.manual_questions = {}
        self.state = state

    def look_up_step(self, name: str) -> tuple[str, Raw | None]:
        """The key of a step, and what it gave if it was done before."""
        key = self._next_key(_digest_question("step", name.encode()))
        return key, self._steps.get(key)

    @property
    def unused_keys(self) -> list[str]:
        """The keys of what the client was asked last and has answered, and nobody has asked in this run."""
        return [key for key in self._new_answers if key not in self._used_keys]

    def record_step(self, key: str, name: str, value: Any) -> Raw:
        """Remember what a step gave.

        Raises:
            LocalProtocolError: it is nothing that JSON can hold.
        """
        try:
            written = Raw(jsonrpc.encode(value))
        except (LocalProtocolError, TypeError, ValueError) as error:
            text = error.message if isinstance(error, LocalProtocolError) else str(error)
            raise LocalProtocolError(
                f"the step {name!r} ran, but gave what cannot be kept: {text}"
            ) from error
        self._steps[key] = written
        return written

    def encode(self) -> bytes:
        """What is to be there when the client comes back."""
        asked = [key for key in self.open_questions if key not in self.manual_questions]
        return jsonrpc.encode(
            _JournalRecord(
                self._answers,
                self._steps,
                self._digests_by_key,
                self.manual_questions,
                asked,
                self.state,
                self.rounds + 1,
            )
        )

    def _next_key(self, name: str) -> str:
        """A key that is not used yet in this run: the same question twice is two (MRTR-3)."""
        while True:
            self._occurrences[name] += 1
            times = self._occurrences[name]
            key = name if times == 1 else f"{name}-{times}"
            if key not in self._used_keys:
                self._used_keys.add(key)
                return key


def _digest_question(kind: str, words: bytes) -> str:
    """What a question or a step is known by."""
    from hashlib import sha256  # noqa: PLC0415 - 0.6 ms of every start

    return sha256(b"%b\0%b" % (kind.encode(), words)).hexdigest()[:KEY_LENGTH]
