"""Commands about one thing that a server has: `call TARGET TOOL …`, `prompt TARGET PROMPT …`.

Owns where our own options end on such a line, that what follows is read by the thing itself, and how both are
completed by a shell. What is done with it is the command's business.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from toolpost.cli.exits import USAGE, CommandError
from toolpost.cli.target import TargetCommand, TargetConnector, build_connector

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from toolpost.cli.options import SchemaCommand
    from toolpost.cli.target import TargetSpec
    from toolpost.client.client import Client

__all__ = [
    "ItemNameParam",
    "NamedItemCommand",
    "add_args_and_save_options",
    "find_item",
    "get_remaining_words",
]

F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_TIMEOUT: Final = 3.0
"""Seconds that somebody who has pressed Tab waits, before they type on."""

MAX_SUGGESTED_NAMES: Final = 30
"""How many names an error tells: a server may have hundreds."""

_REST_KEY: Final = "toolpost.rest"
_ARGS_HELP: Final = "All arguments as one JSON object; @FILE reads it from a file, - from stdin."
_SAVE_HELP: Final = "Folder for pictures, sounds and files; by default this one."


def add_args_and_save_options(function: F) -> F:
    """Gives a command the options `--args` and `--save`, for before the name."""
    function = click.option("--save", metavar="DIR", help=_SAVE_HELP)(function)
    return click.option("--args", metavar="JSON", help=_ARGS_HELP)(function)


def _create_trailing_options() -> list[click.Option]:
    """The options of ours that may stand behind the name as well."""
    return [
        click.Option(["--args"], metavar="JSON", help=_ARGS_HELP),
        click.Option(["--save"], metavar="DIR", help=_SAVE_HELP),
        click.Option(["--json"], is_flag=True, help="Print the result as one JSON document."),
    ]


def get_remaining_words(ctx: click.Context) -> list[str]:
    """The words after the name."""
    return list(ctx.meta.get(_REST_KEY, ()))


class NamedItemCommand(TargetCommand, ABC):
    """A command whose words, after TARGET and a name, belong to what is named.

    Subclasses say what there is by `fetch`, and what one of it wants to know by `get_schema`.
    """

    def take_own_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words up to the name."""
        values = {
            opt
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and not param.is_flag
            for opt in param.opts
        }
        place = names = 0
        while place < len(args) and names < 2:
            word = args[place]
            option = len(word) > 1 and word.startswith("-")
            place += 2 if option and word in values else 1
            names += not option
        ctx.meta[_REST_KEY] = args[place:]
        return args[:place]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The pieces of the usage line."""
        return [*super().collect_usage_pieces(ctx), "[PARAMETERS]"]

    @abstractmethod
    async def fetch(self, client: "Client") -> Sequence[Any]:
        """All that may be named."""

    @abstractmethod
    def get_schema(self, item: Any) -> Mapping[str, Any]:
        """The JSON Schema of what one of them wants to know."""

    def create_schema_command(self, item: Any, target: "TargetSpec") -> "SchemaCommand":
        """The options of one of them."""
        from toolpost.cli.fields import extract_fields  # noqa: PLC0415 - with what it needs, for no help of ours
        from toolpost.cli.options import SchemaCommand  # noqa: PLC0415 - as above

        return SchemaCommand(
            self.name or "",
            item.name,
            target,
            fields=extract_fields(self.get_schema(item)),
            own=_create_trailing_options(),
            elsewhere={opt for param in self.params if isinstance(param, click.Option) for opt in param.opts},
            description=item.description or item.title,
        )

    # ----------------------------------------------------------------- completion

    def fetch_candidates(self, ctx: click.Context) -> Sequence[Any]:
        """All that may be named, or nothing if that takes too long or fails."""
        import asyncio  # noqa: PLC0415 - for completion only

        try:
            reach = build_connector(ctx)
            reach.timeout = COMPLETION_TIMEOUT

            async def fetch_in_time() -> Sequence[Any]:
                async with asyncio.timeout(COMPLETION_TIMEOUT), reach.create_client(auth=None) as client:
                    return await self.fetch(client)

            return asyncio.run(fetch_in_time())
        except Exception:  # noqa: BLE001 - whatever it is, somebody is in the middle of a word
            return ()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """What may follow: our own options before the name, its own behind it."""
        name, rest = ctx.params.get("name"), get_remaining_words(ctx)
        if name is None:
            return super().shell_complete(ctx, incomplete)
        item = next((each for each in self.fetch_candidates(ctx) if each.name == name), None)
        if item is None:
            return []
        form = self.create_schema_command(item, build_connector(ctx).target)
        inner = form.make_context(name, [], resilient_parsing=True)
        for option in form.params:
            if rest and rest[-1] in option.opts and isinstance(option, click.Option) and not option.is_flag:
                return option.shell_complete(inner, incomplete)
        return form.shell_complete(inner, incomplete)


class ItemNameParam(click.ParamType[str]):
    """The name of one of them, completed by asking the server."""

    name = "name"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        """The names that begin so."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for completion only

        del param
        assert isinstance(ctx.command, NamedItemCommand), "nobody else takes names"
        return [
            CompletionItem(each.name, help=_first_line(each.description))
            for each in ctx.command.fetch_candidates(ctx)
            if each.name.startswith(incomplete)
        ]


def _first_line(text: str | None) -> str | None:
    return text.strip().partition("\n")[0] if text else None


def find_item(items: Sequence[Any], name: str | None, what: str, reach: TargetConnector) -> Any:
    """The one of this name.

    Raises:
        CommandError: there is none; the text says which there are, the closest first.
    """
    names = [each.name for each in items]
    if name in names:
        return items[names.index(name)]
    from difflib import SequenceMatcher  # noqa: PLC0415 - for mistakes only

    problem = f"name a {what}" if name is None else f"{reach.target.label} has no {what} {name!r}"
    close = sorted(names, key=lambda each: -SequenceMatcher(None, each.lower(), (name or "").lower()).ratio())
    shown = [
        *(close if name else names)[:MAX_SUGGESTED_NAMES],
        *(["…"] if len(names) > MAX_SUGGESTED_NAMES else []),
    ]
    there = f"there are: {', '.join(shown)}" if names else f"the server has no {what}s"
    raise CommandError(problem, USAGE, hint=there)
