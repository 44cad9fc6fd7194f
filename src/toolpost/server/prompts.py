"""A function as a prompt: what the list shows of it, and how its gaps are filled.

What the function returns becomes messages here. Arguments of prompts are text on the wire; the function may
still ask for numbers and the like.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, ParamSpec, TypeVar, cast

from toolpost.errors import InvalidParams, ToolError
from toolpost.protocol.icons import check_icons
from toolpost.server.bind import BoundFunction
from toolpost.server.catalogue import Registry, RegistryEntry
from toolpost.server.complete import Completable
from toolpost.server.context import Context
from toolpost.server.media import Media
from toolpost.server.options import check_strings
from toolpost.server.work import WorkerThreads
from toolpost.types.base import Role
from toolpost.types.content import Content, TextContent
from toolpost.types.prompts import GetPromptResult, Prompt, PromptMessage

__all__ = ["RegisteredPrompt", "to_prompt_result"]

P = ParamSpec("P")
R = TypeVar("R")


class RegisteredPrompt(RegistryEntry[P, R], Completable):
    """A prompt of a server."""

    def __init__(
        self, prompt: Prompt, bound: BoundFunction, home: Registry[Any], work: WorkerThreads
    ) -> None:
        check_strings(name=prompt.name, title=prompt.title, description=prompt.description)
        check_icons(prompt.icons)
        super().__init__(prompt.name, bound.fn, home)
        Completable.__init__(self, [parameter.name for parameter in bound.parameters], home.mark_changed)
        self.prompt = prompt
        self._bound = bound
        self._worker_threads = work

    def to_list_item(self, structured: str | None) -> Prompt:  # noqa: ARG002 - the same for every peer
        """The prompt."""
        return self.prompt

    def update(self, *, title: str | None = None, description: str | None = None) -> None:
        """Change what the list shows; what is not given stays."""
        self.prompt = copy(self.prompt)
        self.prompt.title = title or self.prompt.title
        self.prompt.description = description or self.prompt.description
        self._registry.mark_changed()

    async def get(self, context: Context, arguments: Mapping[str, str]) -> GetPromptResult:
        """The prompt, filled in.

        Raises:
            InvalidParams: an argument is missing, unknown or does not fit (PRM-7).
        """
        try:
            values = self._bound.read_strings(arguments)
        except ToolError as error:
            raise InvalidParams(f"Invalid params for the prompt {self.name}: {error}") from error
        value = await self._worker_threads.run(self._bound, values, context)
        return to_prompt_result(value, self.prompt.description)


def to_prompt_result(value: Any, description: str | None = None) -> GetPromptResult:
    """The result of getting a prompt, from what its function returned."""
    if isinstance(value, GetPromptResult):
        return value
    many = isinstance(value, list | tuple) and not _is_message_pair(cast("Any", value))
    items: list[Any] = list(cast("Any", value)) if many else [value]
    return GetPromptResult(messages=[_to_prompt_message(item) for item in items], description=description)


def _is_message_pair(value: Any) -> bool:
    """Whether a pair is one message: who says it, and what."""
    return isinstance(value, tuple) and len(cast("Any", value)) == 2 and value[0] in {"user", "assistant"}


def _to_prompt_message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        return value
    role: Role = "user"
    said = value
    if _is_message_pair(value):
        role, said = value
    if isinstance(said, str):
        said = TextContent(said)
    elif isinstance(said, Media):
        said = said.content()
    if not isinstance(said, Content):
        raise TypeError(f"a prompt returns text, content blocks or messages, not {type(said).__name__}")
    return PromptMessage(role, said)
