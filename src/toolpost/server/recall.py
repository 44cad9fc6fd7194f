"""A request that may ask before it answers: in the stateless era by returning its questions.

What its client brings back is opened first; a function that leaves with a question unanswered becomes a
result that wants input, and runs again from the top. In a session questions are requests, and only its steps
are kept here. What a journal holds is told in `journal`, how it travels in `states`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from toolpost.errors import InternalError, UrlElicitationRequired, UserRejected
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import STATELESS_ERA
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.inbox import MAX_INPUT_RESPONSES
from toolpost.server.forms import Accepted
from toolpost.server.journal import ReplayJournal
from toolpost.server.pending import Unanswered
from toolpost.server.steps import Steps, decode_step_value
from toolpost.types.base import Raw, Result, WireStruct
from toolpost.types.inputs import InputRequiredResult

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.handler import Handler

__all__ = ["MAX_ROUNDS", "CallReplay", "request_url_visits"]

MAX_ROUNDS: Final = 100
"""How often one call may ask: more than any client goes along with, and a bound for what asks in a circle."""

logger: Final = logging.getLogger("toolpost.server")


class CallReplay:
    """What one request has asked and done before it ran again; in a session, what it does now.

    Args:
        server: who serves it.
        incoming: the request.
        principal: on whose behalf its client speaks.
    """

    __slots__ = ("_incoming", "_is_over", "_journal", "_principal", "_server", "_steps")

    def __init__(self, server: "Handler", incoming: InboundRequest | None, principal: str | None) -> None:
        self._server = server
        self._incoming = incoming
        self._principal = principal
        self._journal: ReplayJournal | None = None
        self._steps = Steps(server)
        self._is_over = False

    @property
    def is_stateless(self) -> bool:
        """Whether the client is asked by a result."""
        incoming = self._incoming
        return incoming is not None and incoming.row.can_require_input and incoming.peer.revision.stateless

    @property
    def loaded_journal(self) -> ReplayJournal | None:
        """What was asked and done before, if anybody has looked."""
        return self._journal

    async def load_journal(self) -> ReplayJournal:
        """What was asked and done before.

        Raises:
            InvalidParams: what the client has brought is not ours.
        """
        if self._journal is None:
            incoming = self._incoming
            if self.is_stateless and incoming is not None:
                self._journal = await self._server.request_states.open(incoming, self._principal)
            else:
                self._journal = ReplayJournal()
        return self._journal

    async def get_answer(
        self, connection: Connection, method: str, params: WireStruct, key: str | None
    ) -> Result:
        """What the client has answered to a question.

        Raises:
            MissingCapability: it did not declare what the question needs.
            LocalProtocolError: the request may not ask.
            Unanswered: it was not asked before.
        """
        self._check_running()
        incoming = self._incoming
        assert incoming is not None, "outside of a request nothing can be asked in this era"
        asked = STATELESS_ERA.make_client_request(connection, incoming, method, params)
        journal = await self.load_journal()
        return journal.answer(asked, incoming.peer.revision.input_requests[method].results["complete"], key)

    def check_not_in_step(self) -> None:
        """Return unless a step asks.

        Raises:
            LocalProtocolError: it does.
        """
        self._steps.check_not_in_step("ask")

    # ----------------------------------------------------------------- steps

    async def step(self, name: str, fn: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """What a function gives, or gave when it ran before; `call` calls it."""
        self._check_running()
        return await self._steps.run(await self.load_journal(), name, fn, call)

    def step_in_thread(
        self, wait: Callable[[Any], Any], name: str, fn: Callable[..., Any], call: Callable[[], Any]
    ) -> Any:
        """The same for a function that runs in a thread; `wait` waits for what the loop has to do."""

        async def begin_step() -> tuple[str, Raw | None]:
            self._check_running()
            return self._steps.begin_step(await self.load_journal(), name)

        async def record_step(key: str, value: Any) -> Raw:
            return (await self.load_journal()).record_step(key, name, value)

        async def await_value(value: Awaitable[Any]) -> Any:
            return await value

        key, written = wait(begin_step())
        if written is None:
            written = wait(record_step(key, self._steps.call(call, lambda value: wait(await_value(value)))))
        return decode_step_value(name, written, fn)

    def _check_running(self) -> None:
        """Return unless the function has ended with its questions; what still runs of it must do no more."""
        if self._is_over:
            raise Unanswered("the run that this belongs to is over; the function runs again from the top")

    # ----------------------------------------------------------------- the end of a run

    async def build_input_required(self, method: str) -> InputRequiredResult:
        """The questions that have no answer, and what is to come back with the answers."""
        await self._steps.settle()
        self._is_over = True
        journal = await self.load_journal()
        if journal.rounds >= MAX_ROUNDS:
            raise InternalError(f"{method} has asked {MAX_ROUNDS} times, and still has no result")
        assert self._incoming is not None, "only a request can ask"
        # What is too much for one round is asked in the next.
        journal.open_questions = dict(islice(journal.open_questions.items(), MAX_INPUT_RESPONSES))
        if journal.unused_keys:
            logger.info(
                "%s: %d answers were not asked for again; a question has to be the same in each run",
                method,
                len(journal.unused_keys),
            )
        state = await self._server.request_states.seal(journal, self._incoming, self._principal)
        return InputRequiredResult(input_requests=journal.open_questions or None, request_state=state)

    def give_up(self) -> None:
        """Do no more: nobody waits for the answer. Steps that have begun are finished."""
        self._is_over = True


async def request_url_visits(context: "Context", wanted: UrlElicitationRequired) -> None:
    """Ask whether the user visits the URLs without which the request cannot be served.

    Whoever has agreed before was not there yet, or it would not be wanted again: they are asked once more.

    Raises:
        UserRejected: the user does not want to.
        MissingCapability: the client cannot show them.
        UrlElicitationRequired: it names none, or middleware always says yes, and it has to do as it is.
    """
    asked = False
    for each in wanted.elicitations:
        try:
            for _ in range(MAX_ROUNDS):
                if not isinstance(await context.elicit_url(each["message"], each["url"]), Accepted):
                    raise UserRejected(f"The user does not want to visit the URL: {each['message']}")
                await asyncio.sleep(0)  # middleware may answer at once, and others want to be served
        except Unanswered:
            asked = True
    if not asked:
        raise wanted
