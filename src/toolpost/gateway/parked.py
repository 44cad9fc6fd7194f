"""Parked calls: a stateless client gets the question of a server with sessions in a result.

The call of the upstream server goes on meanwhile, on this worker. The client comes back with the answers and
a sealed handle, waits for the result or the next question, and nothing is ever called twice.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from toolpost.errors import InternalError, InvalidParams, RateLimited
from toolpost.gateway.bridge import Relay
from toolpost.protocol.forward import ForwardedResult
from toolpost.server.elicitation.input_required import InputRequired, resolve_input_required
from toolpost.types.base import Result
from toolpost.types.client_requests import ElicitResult

if TYPE_CHECKING:
    from toolpost.server.context import Context

ANSWER_TIMEOUT: Final = 600.0
"""Seconds in which the client has to come back with its answers."""

GATHER_DELAY: Final = 0.02
"""Seconds to wait for further questions after the first one."""

MAX_PARKED: Final = 1000
"""Calls of one upstream server that wait for answers."""

MAX_PARKED_OF_PRINCIPAL: Final = 100
"""Those of them that belong to one principal."""

_HANDLE: Final = "parked"
_ROUND: Final = "round"


class ParkedCall:
    """A call of an upstream server, which may ask while no request of the client is open."""

    def __init__(self, owner: object) -> None:
        self.id = secrets.token_urlsafe(16)
        self.owner = owner
        self.relay: Relay
        self.work: asyncio.Task[ForwardedResult]
        self.round = 0
        self.questions: dict[str, tuple[Any, asyncio.Future[Result]]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._count = 0

    async def ask(self, method: str, params: Any) -> Result:
        """Ask the client: now, or when it comes back."""
        self._count += 1
        key = f"{method.partition('/')[0]}-{self._count}"
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.questions[key] = params, answer
        self._changed.set()
        try:
            return await answer
        finally:
            self.questions.pop(key, None)

    async def wait(self) -> bool:
        """Wait for the result or for questions; return whether there is a result."""
        while not self.work.done() and not self.questions:
            self._changed.clear()
            waiting = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait({waiting, self.work}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        if not self.work.done():
            await asyncio.wait({self.work}, timeout=GATHER_DELAY)
        return self.work.done()

    def answer(self, answers: Mapping[str, Result]) -> None:
        """Pass the answers of a round on; each counts once."""
        for key, result in answers.items():
            _, answer = self.questions.pop(key, (None, None))
            if answer is not None and not answer.done():
                answer.set_result(result)

    def give_up(self) -> None:
        """The client did not come back: its user cancelled, as far as the server can know."""
        for params, answer in list(self.questions.values()):
            if not answer.done() and getattr(params, "requested_schema", None) is not None:
                answer.set_result(ElicitResult(action="cancel"))
        self.work.cancel()


class ParkedCalls:
    """The calls of one upstream server that may ask stateless clients."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._calls: dict[str, ParkedCall] = {}
        self._counts: Counter[object] = Counter()

    def __len__(self) -> int:
        return len(self._calls)

    async def serve(
        self, context: "Context", is_retry: bool, forward: Callable[[Relay], Awaitable[ForwardedResult]]
    ) -> Any:
        """Serve a call: start it, or go on with one that the client has answered."""
        state: Any = context.request_state if is_retry else None
        call = self._start(context, forward) if state is None else self._take(context, state)

        async def serve() -> Any:
            try:
                is_over = await call.wait()
            except asyncio.CancelledError:
                self._forget(call)
                call.work.cancel()
                raise
            if is_over:
                self._forget(call)
                return await call.work
            self._park(call)
            questions = {key: params for key, (params, _) in call.questions.items()}
            return InputRequired(questions, state={_HANDLE: call.id, _ROUND: call.round})

        return await resolve_input_required(context, serve)

    def close(self) -> None:
        """End all calls."""
        for call in list(self._calls.values()):
            self._forget(call)
            call.give_up()

    def _start(
        self, context: "Context", forward: Callable[[Relay], Awaitable[ForwardedResult]]
    ) -> ParkedCall:
        owner = context.conversation
        if len(self._calls) >= MAX_PARKED or self._counts[owner] >= MAX_PARKED_OF_PRINCIPAL:
            raise RateLimited(f"too many calls of {self._label} wait for answers", {"retryAfter": 5})
        call = ParkedCall(owner)
        call.relay = Relay(context)
        call.relay.ask = call.ask
        with call.relay.accompany():
            call.work = asyncio.ensure_future(forward(call.relay))
        call.work.add_done_callback(_retrieve)
        self._calls[call.id] = call
        self._counts[owner] += 1
        return call

    def _take(self, context: "Context", state: Any) -> ParkedCall:
        """Return the call that a client comes back to, and pass its answers on."""
        call = self._calls.get(state.get(_HANDLE, ""))
        if call is None:
            raise InternalError(
                f"{self._label}: the call that asked is gone, because the worker that served it has ended or "
                "the answer came too late. The operation may have run in part; it is not repeated",
                {"server": self._label, "sent": True},
            )
        if state[_ROUND] != call.round:
            raise InvalidParams("Invalid params: the requestState was already used")
        call.round += 1
        if call.timer is not None:
            call.timer.cancel()
        call.relay.context = context
        call.answer(context.input_responses)
        return call

    def _park(self, call: ParkedCall) -> None:
        """Let the call wait for the client."""
        call.relay.context = None  # progress and logs have no place to go to
        call.timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT, self._expire, call)

    def _expire(self, call: ParkedCall) -> None:
        self._forget(call)
        call.give_up()

    def _forget(self, call: ParkedCall) -> None:
        if call.timer is not None:
            call.timer.cancel()
        if self._calls.pop(call.id, None) is not None:
            self._counts[call.owner] -= 1
            if not self._counts[call.owner]:
                del self._counts[call.owner]


def _retrieve(work: "asyncio.Task[ForwardedResult]") -> None:
    """Mark the error of a call as retrieved: its client may be gone."""
    if not work.cancelled():
        work.exception()
