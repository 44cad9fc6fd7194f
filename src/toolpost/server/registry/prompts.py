"""A function as a prompt: its list item, and the messages it returns. Also completion of arguments.

Arguments of prompts are strings on the wire; the function may declare numbers and the like. A completer
belongs to one argument of one prompt or resource template.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from toolpost.errors import InvalidParams, ToolError
from toolpost.protocol.local_peer import check_icons
from toolpost.server.context import Context
from toolpost.server.options import check_strings
from toolpost.server.registry.media import Media
from toolpost.server.registry.registry import Cache, Registry, RegistryEntry
from toolpost.server.runtime.worker_threads import WorkerThreads
from toolpost.server.signature.errors import SignatureError
from toolpost.server.signature.function_schema import BoundFunction
from toolpost.types.content import Content, TextContent
from toolpost.types.prompts import CompleteResult, Completion, GetPromptResult, Prompt, PromptMessage
from toolpost.types.resources import Resource, ResourceTemplate

MAX_COMPLETION_VALUES: Final = 100
"""Values in one answer, by the specification (COMP-2)."""

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
ItemT = TypeVar("ItemT", Prompt, Resource, ResourceTemplate)


class CompletableEntry(RegistryEntry[P, R], Generic[P, R, ItemT]):
    """A prompt, a resource or a template: its list item, and the completion of its arguments."""

    def __init__(
        self,
        item: ItemT,
        bound: BoundFunction,
        home: Registry[Any],
        work: WorkerThreads,
        cache: Cache | None = None,
    ) -> None:
        check_strings(name=item.name, title=item.title, description=item.description)
        check_icons(item.icons)
        super().__init__(_get_key(item), bound.fn, home)
        self._item = item
        self._bound = bound
        self._worker_threads = work
        self.cache = cache
        """How long clients may keep the result, if not as long as the server says."""
        self._completers: dict[str, Callable[..., Any]] = {}

    def to_list_item(self, structured: str | None) -> ItemT:  # noqa: ARG002 - the same for every peer
        """Return the list item."""
        return self._item

    def complete(self, argument: str) -> Callable[[F], F]:
        """Decorate a function that completes one argument.

        It takes the typed text and, if it has a second parameter, the known arguments; it returns the values,
        best first, or a `Completion`. It may be async.

        Raises:
            ValueError: there is no such argument.
            SignatureError: it wants a context; completion has none.
        """
        arguments = () if isinstance(self._item, Resource) else self._bound.parameters
        names = [parameter.name for parameter in arguments]
        if argument not in names:
            known = ", ".join(names) or "none"
            raise ValueError(f"there is no argument {argument!r} to complete; there are: {known}")

        def register(fn: F) -> F:
            for parameter in inspect.signature(fn).parameters.values():
                if "Context" in str(parameter.annotation):
                    raise SignatureError(
                        f"`{fn.__name__}` wants a context in `{parameter.name}`, and completion has none",
                        hint="it gets what was typed, and the arguments that are known",
                    )
            self._completers[argument] = fn
            self._registry.mark_changed()
            return fn

        return register

    @property
    def has_completers(self) -> bool:
        """Whether any argument can be completed."""
        return bool(self._completers)

    async def complete_argument(
        self, argument: str, value: str, known: Mapping[str, str], work: WorkerThreads
    ) -> CompleteResult:
        """Return the completions of an argument; none without a completer."""
        fn = self._completers.get(argument)
        if fn is None:
            return CompleteResult(completion=Completion(values=[]))
        given = (value, known)[: _count_completer_arguments(fn)]
        found = (
            fn(*given) if inspect.iscoroutinefunction(fn) else await work.run_in_thread(lambda: fn(*given))
        )
        if inspect.isawaitable(found):
            found = await found
        return CompleteResult(completion=_limit_completion(found))


def _get_key(item: Prompt | Resource | ResourceTemplate) -> str:
    """Return the name under which an item is registered."""
    if isinstance(item, Prompt):
        return item.name
    return item.uri if isinstance(item, Resource) else item.uri_template


def _count_completer_arguments(fn: Callable[..., Any]) -> int:
    """Return how many of (typed, known) a completer takes."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(fn).parameters.values()
    return min(2, sum(parameter.kind in positional for parameter in parameters))


def _limit_completion(found: Completion | Iterable[str]) -> Completion:
    completion = found if isinstance(found, Completion) else Completion(values=list(found))
    values, total = completion.values, completion.total
    if len(values) <= MAX_COMPLETION_VALUES:
        return completion
    return Completion(values=values[:MAX_COMPLETION_VALUES], total=total or len(values), has_more=True)


# --------------------------------------------------------------------- prompts


class RegisteredPrompt(CompletableEntry[P, R, Prompt]):
    """A prompt of a server."""

    @property
    def prompt(self) -> Prompt:
        """The list item."""
        return self._item

    def update(self, *, title: str | None = None, description: str | None = None) -> None:
        """Change the list item; None leaves a field as it is."""
        self._item = copy(self._item)
        self._item.title = title or self._item.title
        self._item.description = description or self._item.description
        self._registry.mark_changed()

    async def get(self, context: Context, arguments: Mapping[str, str]) -> GetPromptResult:
        """Return the prompt with its arguments. Raises InvalidParams if they do not fit (PRM-7)."""
        try:
            values = self._bound.read_strings(arguments)
        except ToolError as error:
            raise InvalidParams(f"Invalid params for the prompt {self.name}: {error}") from error
        value = await self._worker_threads.run(self._bound, values, context)
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
        raise TypeError(f"a prompt returns text, content blocks or messages, not {type(content).__name__}")
    return PromptMessage(role, content)
