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
from toolpost.protocol.eras import STATELESS
from toolpost.protocol.events import Incoming
from toolpost.protocol.inbox import MAX_ANSWERS
from toolpost.server.forms import Accepted
from toolpost.server.journal import Journal
from toolpost.server.pending import Unanswered
from toolpost.server.steps import Steps, read_again
from toolpost.types.base import Raw, Result, Wire
from toolpost.types.inputs import InputRequiredResult

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.handler import Handler

__all__ = ["MAX_ROUNDS", "Recall", "visit"]

MAX_ROUNDS: Final = 100
"""How often one call may ask: more than any client goes along with, and a bound for what asks in a circle."""

logger: Final = logging.getLogger("toolpost.server")


class Recall:
    """What one request has asked and done before it ran again; in a session, what it does now.

    Args:
        server: who serves it.
        incoming: the request.
        principal: on whose behalf its client speaks.
    """

    __slots__ = ("_incoming", "_journal", "_over", "_principal", "_server", "_steps")

    def __init__(self, server: "Handler", incoming: Incoming | None, principal: str | None) -> None:
        self._server = server
        self._incoming = incoming
        self._principal = principal
        self._journal: Journal | None = None
        self._steps = Steps(server)
        self._over = False

    @property
    def stateless(self) -> bool:
        """Whether the client is asked by a result."""
        incoming = self._incoming
        return incoming is not None and incoming.row.asks and incoming.peer.revision.stateless

    @property
    def opened(self) -> Journal | None:
        """What was asked and done before, if anybody has looked."""
        return self._journal

    async def journal(self) -> Journal:
        """What was asked and done before.

        Raises:
            InvalidParams: what the client has brought is not ours.
        """
        if self._journal is None:
            incoming = self._incoming
            if self.stateless and incoming is not None:
                self._journal = await self._server.states.open(incoming, self._principal)
            else:
                self._journal = Journal()
        return self._journal

    async def answer(self, connection: Connection, method: str, params: Wire, key: str | None) -> Result:
        """What the client has answered to a question.

        Raises:
            MissingCapability: it did not declare what the question needs.
            LocalProtocolError: the request may not ask.
            Unanswered: it was not asked before.
        """
        self._check_going_on()
        incoming = self._incoming
        assert incoming is not None, "outside of a request nothing can be asked in this era"
        asked = STATELESS.ask(connection, incoming, method, params)
        journal = await self.journal()
        return journal.answer(asked, incoming.peer.revision.asks[method].results["complete"], key)

    def check_outside(self) -> None:
        """Return unless a step asks.

        Raises:
            LocalProtocolError: it does.
        """
        self._steps.check_outside("ask")

    # ----------------------------------------------------------------- steps

    async def step(self, name: str, fn: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """What a function gives, or gave when it ran before; `call` calls it."""
        self._check_going_on()
        return await self._steps.run(await self.journal(), name, fn, call)

    def step_here(
        self, wait: Callable[[Any], Any], name: str, fn: Callable[..., Any], call: Callable[[], Any]
    ) -> Any:
        """The same for a function that runs in a thread; `wait` waits for what the loop has to do."""

        async def begin() -> tuple[str, Raw | None]:
            self._check_going_on()
            return self._steps.begin(await self.journal(), name)

        async def note(key: str, value: Any) -> Raw:
            return (await self.journal()).note(key, name, value)

        async def awaited(value: Awaitable[Any]) -> Any:
            return await value

        key, written = wait(begin())
        if written is None:
            written = wait(note(key, self._steps.call(call, lambda value: wait(awaited(value)))))
        return read_again(name, written, fn)

    def _check_going_on(self) -> None:
        """Return unless the function has ended with its questions; what still runs of it must do no more."""
        if self._over:
            raise Unanswered("the run that this belongs to is over; the function runs again from the top")

    # ----------------------------------------------------------------- the end of a run

    async def interim(self, method: str) -> InputRequiredResult:
        """The questions that have no answer, and what is to come back with the answers."""
        await self._steps.settle()
        self._over = True
        journal = await self.journal()
        if journal.rounds >= MAX_ROUNDS:
            raise InternalError(f"{method} has asked {MAX_ROUNDS} times, and still has no result")
        assert self._incoming is not None, "only a request can ask"
        # What is too much for one round is asked in the next.
        journal.asked = dict(islice(journal.asked.items(), MAX_ANSWERS))
        if journal.unused:
            logger.info(
                "%s: %d answers were not asked for again; a question has to be the same in each run",
                method,
                len(journal.unused),
            )
        state = await self._server.states.seal(journal, self._incoming, self._principal)
        return InputRequiredResult(input_requests=journal.asked or None, request_state=state)

    def give_up(self) -> None:
        """Do no more: nobody waits for the answer. Steps that have begun are finished."""
        self._over = True


async def visit(context: "Context", wanted: UrlElicitationRequired) -> None:
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
