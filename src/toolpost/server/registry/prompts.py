"""A function as a prompt: its list item, and the messages it returns. Also completion of arguments.

Arguments of prompts are strings on the wire; the function may declare other types. A completer belongs to one
argument of one prompt or resource template.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final, ParamSpec, TypeVar, cast

from toolpost.errors import InvalidParams, ToolError
from toolpost.server.context import Context
from toolpost.server.registry.media import Media
from toolpost.server.registry.registry import Cache, FunctionEntry
from toolpost.server.signature.errors import SignatureError
from toolpost.types.content import Content, TextContent
from toolpost.types.prompts import (
    CompleteParams,
    CompleteResult,
    Completion,
    GetPromptParams,
    GetPromptResult,
    Prompt,
    PromptMessage,
)
from toolpost.types.resources import Resource, ResourceTemplate

MAX_COMPLETION_VALUES: Final = 100
"""Values in one response, by the specification (COMP-2)."""

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
ItemT = TypeVar("ItemT", Prompt, Resource, ResourceTemplate)


class CompletableEntry(FunctionEntry[P, R, ItemT]):
    """A prompt, a resource or a template, and the completion of its arguments."""

    cache: Cache | None = None
    """How long clients may cache the result; the server's setting by default."""

    @cached_property
    def _completers(self) -> dict[str, Callable[..., Any]]:
        return {}

    def complete(self, argument: str) -> Callable[[F], F]:
        """Decorate a function that completes one argument.

        The function takes the typed text and, if it has a second parameter, the known arguments. It returns
        the values, best first, or a `Completion`. It may be async.

        Raises:
            ValueError: there is no such argument.
            SignatureError: the function wants a context; completion has none.
        """
        arguments = () if isinstance(self._item, Resource) else self.bound.parameters
        names = [parameter.name for parameter in arguments]
        if argument not in names:
            known = ", ".join(names) or "none"
            raise ValueError(f"unknown argument {argument!r} (expected: {known})")

        def register(fn: F) -> F:
            for parameter in inspect.signature(fn).parameters.values():
                if "Context" in str(parameter.annotation):
                    raise SignatureError(
                        f"`{fn.__name__}` takes a context in `{parameter.name}`, but completion has none",
                        hint="a completer takes the typed text and, optionally, the known arguments",
                    )
            self._completers[argument] = fn
            self._mark_changed()
            return fn

        return register

    @property
    def has_completers(self) -> bool:
        """Whether any argument can be completed."""
        return bool(self._completers)

    async def serve_completion(self, context: Context, params: CompleteParams) -> CompleteResult:  # noqa: ARG002 - the client matters to others
        """Return the completions of an argument; none without a completer."""
        fn, value = self._completers.get(params.argument.name), params.argument.value
        if fn is None:
            return CompleteResult(completion=Completion(values=[]))
        known = (params.context.arguments if params.context else None) or {}
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(fn).parameters.values()
        given = (value, known)[: sum(parameter.kind in positional for parameter in parameters)]
        is_async = inspect.iscoroutinefunction(fn)
        found = fn(*given) if is_async else await self._threads.run_in_thread(lambda: fn(*given))
        if inspect.isawaitable(found):
            found = await found
        return CompleteResult(completion=_limit_completion(found))


def _limit_completion(found: Completion | Iterable[str]) -> Completion:
    completion = found if isinstance(found, Completion) else Completion(values=list(found))
    values, total = completion.values, completion.total
    if len(values) <= MAX_COMPLETION_VALUES:
        return completion
    return Completion(values=values[:MAX_COMPLETION_VALUES], total=total or len(values), has_more=True)


class RegisteredPrompt(CompletableEntry[P, R, Prompt]):
    """A prompt of a server."""

    @property
    def prompt(self) -> Prompt:
        """The list item."""
        return self._item

    def update(self, *, title: str | None = None, description: str | None = None) -> None:
        """Change the list item; None leaves a field as it is."""
        self._change_item(title=title, description=description)

    async def serve(self, context: Context, params: GetPromptParams) -> GetPromptResult:
        """Return the prompt with its arguments. Raises InvalidParams if they do not fit (PRM-7)."""
        try:
            values = self.bound.read_strings(params.arguments or {})
        except ToolError as error:
            raise InvalidParams(f"Prompt {self.name!r}: {error}") from error
        value = await self._threads.run(self.bound, values, context)
        return to_prompt_result(value, self.prompt.description)


def to_prompt_result(value: Any, description: str | None = None) -> GetPromptResult:
    """Return the result of a prompt, from the value of its function."""
    if isinstance(value, GetPromptResult):
        return value
    many = isinstance(value, list | tuple) and not _is_message_pair(cast("Any", value))
    items: list[Any] = list(cast("Any", value)) if many else [value]
    return GetPromptResult(messages=[_to_prompt_message(item) for item in items], description=description)


def _is_message_pair(value: Any) -> bool:
    """Return whether a value is one message: (role, content)."""
    return isinstance(value, tuple) and len(cast("Any", value)) == 2 and value[0] in {"user", "assistant"}


def _to_prompt_message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        return value
    role, content = value if _is_message_pair(value) else ("user", value)
    if isinstance(content, str):
        content = TextContent(content)
    elif isinstance(content, Media):
        content = content.content()
    if not isinstance(content, Content):
        raise TypeError(
            f"a prompt must return text, content blocks or messages, not {type(content).__name__}"
        )
    return PromptMessage(role, content)
