"""The requests that a function may send to its client: elicitation, sampling, roots; and its steps.

The calls are the same in both eras. In a session they wait for the result. Without a session, the function
ends at the question and runs again when the client returns with the answer (`elicitation.input_required`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, cast, overload

from toolpost import types
from toolpost.errors import LocalProtocolError, ToolError, UrlElicitationRequired
from toolpost.principal import Principal
from toolpost.protocol import downgrade, methods
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import Row
from toolpost.server.runtime.dispatch import Call, Middleware, run_middleware
from toolpost.types.base import JSON, Number, Result, WireStruct
from toolpost.types.content import Content, TextContent

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.context_request import ClientConnection
    from toolpost.server.elicitation.forms import Accepted, Cancelled, Declined
    from toolpost.server.elicitation.input_required import CallReplay
    from toolpost.server.handler import Handler
    from toolpost.tasks.run import TaskRun

P = ParamSpec("P")
T = TypeVar("T")

MAX_ELICIT_ATTEMPTS: Final = 3
"""Attempts to get an answer that is valid for the form."""

MAX_QUESTION_KEY_LENGTH: Final = 128
"""Characters of a question's key: it travels with every round."""

MAX_URL_ELICITATIONS: Final = 256
"""URL elicitations of one client whose end is still unknown."""


class ClientRequests:
    """The half of a `Context` that sends requests to the client; without a session, by replay."""

    __slots__ = ()

    server: "Handler"
    middleware: Sequence[Middleware]
    outer: "Context | None"
    client_connection: "ClientConnection"
    incoming: InboundRequest | None
    principal: Principal | None
    loaded_replay: "CallReplay | None"
    task_run: "TaskRun | None"
    """For handlers: the task of this call, or the task that it may become."""
    _peer: Peer

    async def ask(
        self, method: str, params: WireStruct, *, key: str | None = None, timeout: float | None = None
    ) -> Result:
        """Send one of the protocol's client requests, and return the result; `key` as in `elicit`."""
        if key is not None and not 0 < len(key) <= MAX_QUESTION_KEY_LENGTH:
            raise ValueError(f"key must have 1 to {MAX_QUESTION_KEY_LENGTH} characters, not {len(key)}")
        self.replay.check_not_in_step()
        return await self.send_request(method, params, timeout, key)

    async def send_request(
        self,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        timeout: float | None,
        key: str | None = None,
    ) -> Result:
        """For handlers: send a request to the client through middleware; without a session, by replay."""

        async def ask(context: "Context", params: Any) -> Result:
            return await self.client_connection.ask(context, method, params, timeout)

        async def replay(context: "Context", params: Any) -> Result:
            if context.cancelled:
                raise make_abandoned_error(context)
            return await context.replay.get_answer(context.connection, str(method), params, key)

        stateless = self.incoming is not None and self.incoming.peer.revision.stateless
        in_task = self.task_run is not None and self.task_run.is_task
        inner = replay if (stateless or in_task) and isinstance(method, str) else ask
        context = cast("Context", self)
        if not self.middleware:
            return await inner(context, params)
        name = method if isinstance(method, str) else method.name
        return await run_middleware(self.middleware, Call(name, params, context, incoming=False), inner)

    async def sample(
        self,
        messages: str | Content | types.SamplingMessage | Sequence[types.SamplingMessage | str],
        *,
        max_tokens: int = 1024,
        system: str | None = None,
        model: types.ModelPreferences | str | None = None,
        temperature: Number | None = None,
        stop: list[str] | None = None,
        tools: list[types.Tool] | None = None,
        tool_choice: Literal["auto", "required", "none"] | None = None,
        metadata: dict[str, JSON] | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> types.CreateMessageResult:
        """Ask the client's model, and return its answer.

        Args:
            messages: for the model: text, content, or turns of a conversation.
            max_tokens: the maximum length of the answer.
            system: the system prompt; the client may change or drop it.
            model: the preferred model: a part of its name, or preferences.
            temperature: the sampling temperature.
            stop: stop sequences.
            tools: the tools that the model may call; you call them, and sample again with the result.
            tool_choice: whether the model has to call a tool.
            metadata: for the provider of the model.
            key: as in `elicit`.
            timeout: seconds to wait.

        Raises:
            CapabilityNotDeclared: the client does not offer sampling.
            UserRejected: the user declined.
        """
        if isinstance(model, str):
            model = types.ModelPreferences(hints=[types.ModelHint(model)])
        is_single = isinstance(messages, str | Content | types.SamplingMessage)
        turns = [_to_sampling_message(message) for message in ([messages] if is_single else messages)]
        wrong = downgrade.explain_invalid_tool_turns(turns)
        if wrong:
            raise LocalProtocolError(f"invalid messages for the model: {wrong}")
        params = types.CreateMessageParams(
            messages=turns,
            max_tokens=max_tokens,
            system_prompt=system,
            model_preferences=model,
            temperature=temperature,
            stop_sequences=stop,
            tools=tools,
            tool_choice=None if tool_choice is None else types.ToolChoice(tool_choice),
            metadata=metadata,
        )
        result = await self.ask(methods.SAMPLING_CREATE_MESSAGE, params, key=key, timeout=timeout)
        assert isinstance(result, types.CreateMessageResult)
        return result

    async def roots(self, *, key: str | None = None, timeout: float | None = None) -> list[types.Root]:
        """Return the roots of the client. Raises CapabilityNotDeclared if it does not offer roots."""
        result = await self.ask(methods.ROOTS_LIST, types.ClientRequestParams(), key=key, timeout=timeout)
        assert isinstance(result, types.ListRootsResult)
        return result.roots

    @overload
    async def elicit(
        self, message: str, form: type[T], *, key: str | None = None, timeout: float | None = None
    ) -> "Accepted[T] | Declined | Cancelled": ...

    @overload
    async def elicit(
        self, message: str, form: Any, *, key: str | None = None, timeout: float | None = None
    ) -> "Accepted[Any] | Declined | Cancelled": ...

    async def elicit(
        self, message: str, form: Any, *, key: str | None = None, timeout: float | None = None
    ) -> "Accepted[Any] | Declined | Cancelled":
        """Ask the user, and return the answer.

        Args:
            message: the question.
            form: the type of the answer: a primitive, a Literal, an enum, or a flat dataclass, struct,
                TypedDict or model of them.
            key: identifies the question to stateless clients; by default derived from its content.
            timeout: seconds to wait; by default no limit, because people may need time.

        Raises:
            CapabilityNotDeclared: the client cannot ask a user.
        """
        from toolpost.server.elicitation.forms import ElicitationForm  # noqa: PLC0415 - start-up time

        asked, words, attempts = ElicitationForm(form), message, 1
        while True:
            params = types.ElicitParams(message=words, requested_schema=asked.schema)
            result = await self.ask(methods.ELICITATION_CREATE, params, key=key, timeout=timeout)
            assert isinstance(result, types.ElicitResult)
            try:
                return asked.read(result)
            except ToolError as error:
                if attempts == MAX_ELICIT_ATTEMPTS:
                    raise
                words, attempts = f"{message}\n\n{error}", attempts + 1

    async def elicit_url(
        self,
        message: str,
        url: str,
        *,
        elicitation_id: str | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> "Accepted[None] | Declined | Cancelled":
        """Ask the user to visit a URL, for data that must not go through the client.

        Args:
            message: the reason, for the user.
            url: the page. Another person may open it: verify the identity of the visitor (ELIC-44).
            elicitation_id: for `server.complete_elicitation`, which notifies the client.
            key: as in `elicit`.
            timeout: seconds to wait.

        Raises:
            CapabilityNotDeclared: the client cannot open URLs.
            ValueError: `url` is not a URL.
        """
        from toolpost.server.elicitation.forms import ANSWERS_BY_ACTION  # noqa: PLC0415 - as in `elicit`

        params = self._make_url_elicitation(message, url, elicitation_id)
        result = await self.ask(methods.ELICITATION_CREATE, params, key=key, timeout=timeout)
        assert isinstance(result, types.ElicitResult)
        return ANSWERS_BY_ACTION[result.action]

    def url_required(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> UrlElicitationRequired:
        """Return the error to raise if the user must visit a URL first.

        A client of 2025-11-25 shows the URL, and calls again when the user is done. A stateless client gets
        the URL in a result, and calls again; the function then checks whether the user has been there.

        Raises:
            ValueError: `url` is not a URL.
        """
        elicitation_id = self._make_url_elicitation(message, url, elicitation_id).elicitation_id
        visit: JSON = {"mode": "url", "message": message, "url": url, "elicitationId": elicitation_id}
        return UrlElicitationRequired(message, {"elicitations": [visit]})

    def _make_url_elicitation(self, message: str, url: str, elicitation_id: str | None) -> types.ElicitParams:
        """Return the params of a URL elicitation, and remember it for `complete_elicitation`."""
        from toolpost.protocol import urls  # noqa: PLC0415 - start-up time

        if urls.split_http_url(url) is None or not url.isprintable() or " " in url:  # (ELIC-13)
            raise ValueError(
                f"{url!r} is not a URL that a user can visit, such as https://example.com/sign-in"
            )
        if not elicitation_id:
            from secrets import token_urlsafe  # noqa: PLC0415 - start-up time

            elicitation_id = token_urlsafe(16)
        if methods.ELICITATION_COMPLETE in self._peer.revision.notifications["server"]:
            self.client_connection.add_url_elicitation(elicitation_id)
        return types.ElicitParams(message=message, mode="url", url=url, elicitation_id=elicitation_id)

    # ----------------------------------------------------------------- tasks

    async def background(self) -> None:
        """Let this call go on as a task: the client gets the task now, and its result later.

        Questions before this are asked as in any call; later ones are questions of the task. Nothing happens
        if the tool has no `task=`, or if the client does not support tasks: it waits for the result.
        """
        if self.task_run is not None:
            await self.task_run.become_task()

    async def detach(self, fn: Callable[..., object], *args: Any) -> None:
        """Let another program finish this task: call `fn(task_id, *args)`, async or not, and return.

        `server.tasks.complete` or `fail` ends the task, in this process or in another one with the same
        store. What the function of the tool returns afterwards has no effect.

        Raises:
            LocalProtocolError: this call cannot become a task; see `TaskOptions(required=True)`.
        """
        run = self.task_run
        if run is None or not await run.become_task():
            raise LocalProtocolError(
                "this call cannot be finished elsewhere: it is not a task",
                hint="use task=TaskOptions(required=True)",
            )
        await run.detach(fn, args)

    # ----------------------------------------------------------------- replay

    @overload
    async def step(
        self, name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def step(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def step(
        self, name: str, fn: Callable[P, Awaitable[T] | T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function once per call, even if the call is replayed, and return its value.

        Use it for side effects that must not happen twice, such as a payment before a question. The value
        must be JSON-serializable. It is converted to the declared return type of the function.

        Args:
            name: the name of the step. Using the same name again later creates another step.
            fn: the function; if it is not async, it runs in a thread.
            args: its arguments.
            kwargs: its arguments by name.
        """
        if not callable(fn):
            raise TypeError(f"step {name!r}: pass the function and its arguments, not its result {fn!r}")
        return await self.replay.step(name, fn, partial(fn, *args, **kwargs))

    @property
    def input_responses(self) -> Mapping[str, Result]:
        """The client's answers to an `InputRequired` of this request, by key; only those that are valid."""
        return self.replay.input[0]

    @property
    def request_state(self) -> JSON:
        """The state of the last `InputRequired`; None if there was none."""
        return self.replay.input[1]

    @property
    def replay(self) -> "CallReplay":
        """For handlers: the questions and steps of earlier runs of this request."""
        if self.outer is not None:
            return self.outer.replay
        if self.loaded_replay is None:
            from toolpost.server.elicitation.input_required import CallReplay  # noqa: PLC0415 - start-up time

            key = None if self.principal is None else self.principal.key
            self.loaded_replay = CallReplay(self.server, self.incoming, key)
        return self.loaded_replay


def _to_sampling_message(message: str | Content | types.SamplingMessage) -> types.SamplingMessage:
    """Return a message for the model; plain text and single blocks have the role of the user."""
    if isinstance(message, types.SamplingMessage):
        return message
    return types.SamplingMessage("user", TextContent(message) if isinstance(message, str) else message)


def make_abandoned_error(context: "Context") -> LocalProtocolError:
    """Return the error for a question after the end of its request."""
    return LocalProtocolError(
        f"{context.method} (id {context.related!r}) has ended or was cancelled; it can no longer ask"
    )
