"""Options made from the fields of a tool or prompt: `call weather.py forecast --city Oslo`.

`SchemaCommand` parses the words behind the name, shows their help and finds out what is missing;
`NamedItemCommand` is the command before it, which ends at the name, with the completion of both in a shell.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TextIO, TypeVar, cast

import click
import msgspec

from toolpost.cli.errors import usage_error
from toolpost.cli.output import escape_control_characters, first_line
from toolpost.cli.schema_fields import NumberParam, SchemaField
from toolpost.cli.target import TargetCommand, TargetConnector, TargetSpec, build_connector

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from toolpost.cli.terminal import TerminalPrompter
    from toolpost.client.client import Client


class ParsedArguments(NamedTuple):
    """What was typed after the name of a tool or a prompt."""

    arguments: dict[str, Any]
    options: dict[str, Any]


class SchemaCommand(click.Command):
    """A tool or a prompt, as a command of its own: its fields are options."""

    def __init__(
        self,
        verb: str,
        name: str,
        target: TargetSpec,
        *,
        fields: Sequence[SchemaField],
        own: Sequence[click.Option] = (),
        elsewhere: Collection[str] = (),
        description: str | None = None,
    ) -> None:
        exact = {each.name: each for each in reversed(fields)}  # two may be called alike: a.b, and b in a
        self.fields = [each for each in fields if exact[each.name] is each]
        taken = {f"--{name}" for name in exact}
        self._options = [_build_option(number, each, taken) for number, each in enumerate(self.fields)]
        self._own_options = [each for each in own if taken.isdisjoint(each.opts)]
        self._earlier_options = elsewhere
        super().__init__(
            name,
            params=[*self._options, *self._own_options],
            help=_preserve_line_breaks(description or ""),
            add_help_option="--help" not in taken,
            context_settings={"help_option_names": ["--help"]},
        )
        commanded = target.kind == "command"
        self._usage_prefix = " ".join(["toolpost", verb, *([] if commanded else [target.label]), name])
        self._usage_suffix = ["--", "COMMAND..."] if commanded else []

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The pieces of the usage line."""
        del ctx
        return [*(["[PARAMETERS]"] if self.fields else []), "[OPTIONS]", *self._usage_suffix]

    def parse_words(self, words: Sequence[str]) -> click.Context:
        """The context in which these words have been read."""
        try:
            return self.make_context(self._usage_prefix, list(words))
        except click.NoSuchOption as error:
            if error.option_name in self._earlier_options:
                said = f"{self.name} has no {error.option_name}; our own options stand before its name"
                raise click.UsageError(said, error.ctx) from None
            raise

    def collect_arguments(self, ctx: click.Context, args: str | None = None) -> ParsedArguments:
        """Collect the arguments; those of options override those of `--args`, here or before the name."""
        own = {option.name or "": ctx.params[option.name or ""] for option in self._own_options}
        whole = own.get("args") or args
        arguments = {} if whole is None else parse_arguments(whole)
        for each, option in zip(self.fields, self._options, strict=True):
            value = ctx.params.get(option.name or "")
            if value is not None and value != ():
                set_argument(arguments, each, list(value) if each.many else value)
        return ParsedArguments(arguments, {name: value for name, value in own.items() if value})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the parameters apart from our own options."""
        parameters = [_build_help_record(*both) for both in zip(self.fields, self._options, strict=True)]
        if parameters:
            with formatter.section("Parameters"):
                formatter.write_dl(parameters)
        ours = [*self._own_options, *([option] if (option := self.get_help_option(ctx)) else [])]
        records = [record for option in ours if (record := option.get_help_record(ctx))]
        with formatter.section("Options"):
            formatter.write_dl(records)


def set_argument(arguments: dict[str, Any], field: SchemaField, value: Any) -> None:
    """Set the value of a field, in nested objects where it has a path."""
    inner = arguments
    for step in field.path[:-1]:
        if not isinstance(inner.get(step), dict):
            inner[step] = {}
        inner = cast("dict[str, Any]", inner[step])
    inner[field.path[-1]] = value


def find_missing(fields: Sequence[SchemaField], arguments: dict[str, Any]) -> list[SchemaField]:
    """The required fields that are missing, after those with a default have been set to it.

    A member of an object is missing if the object is there or is required; it replaces the object then.
    """
    gone: dict[tuple[str, ...], SchemaField] = {}
    for each in fields:
        *above, last = each.path
        holder = _find_object(arguments, above)
        if not each.required or (holder is not None and last in holder):
            continue
        if holder is not None and "default" in each.schema:
            holder[last] = each.default
        elif holder is not None or tuple(above) in gone:
            gone[each.path] = each
    stood_for = {path[:-1] for path in gone}
    return [each for path, each in gone.items() if path not in stood_for]


def _find_object(arguments: dict[str, Any], path: Sequence[str]) -> dict[str, Any] | None:
    """The object at a path; None if there is none."""
    found: Any = arguments
    for step in path:
        found = cast("dict[str, Any]", found).get(step)
        if not isinstance(found, dict):
            return None
    return cast("dict[str, Any]", found)


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments that `--args` gives: JSON, `@` and a file of it, or `-` for stdin."""
    try:
        source = "-" if text == "-" else text[1:] if text.startswith("@") else None
        if source is not None:
            with cast("TextIO", click.open_file(source, encoding="utf-8")) as file:
                text = file.read()
        return msgspec.json.decode(text, type=dict[str, Any])
    except OSError as error:
        raise usage_error(f"--args: {text[1:]} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        hint = """such as '{"city": "Oslo"}', @arguments.json, or - for stdin"""
        raise usage_error(f"--args: this is no JSON object: {error}", hint) from error


def _build_option(number: int, field: SchemaField, taken: set[str]) -> click.Option:
    """The option for a field, named as in the schema, or with hyphens. Adds its names to `taken`."""
    names = [f"--{field.name}"]
    hyphened = f"--{field.name.replace('_', '-')}"
    if hyphened not in taken:
        taken.add(hyphened)
        names.append(hyphened)
    if not field.is_flag:
        return click.Option([f"field_{number}", *names], type=field.kind, multiple=field.many, default=None)
    both = [name if f"--no-{name[2:]}" in taken else f"{name}/--no-{name[2:]}" for name in names]
    taken.update(f"--no-{name[2:]}" for name in names)
    return click.Option([f"field_{number}", *both], is_flag=True, default=None)


def _build_help_record(field: SchemaField, option: click.Option) -> tuple[str, str]:
    """How help shows a field."""
    name = f"--{field.name}"
    if field.is_flag:
        typed = " / ".join([name, *option.secondary_opts[:1]])
    elif isinstance(field.kind, click.Choice):
        typed = f"{name} [{'|'.join(map(_format_value, field.kind.choices))}]"
    else:
        typed = f"{name} {field.kind.name.upper()}"
    required = "required" if len(field.path) == 1 else f"required in {'.'.join(field.path[:-1])}"
    facts = [
        required if field.required else "",
        "may be repeated" if field.many else "",
        field.kind.range if isinstance(field.kind, NumberParam) else "",
        "or its members, below" if field.group else "",
        "" if field.default is None else f"default: {_format_value(field.default)}",
    ]
    extra = "; ".join(filter(None, facts))
    description = " ".join(field.description.split())
    return typed, "  ".join(filter(None, (description, f"[{extra}]" if extra else "")))


def _format_value(value: Any) -> str:
    return escape_control_characters(
        value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    )


def _preserve_line_breaks(text: str) -> str:
    """A text of the server's as click wraps it: lines that it broke on purpose stay as they are."""
    kept = [part.strip("\n") for part in escape_control_characters(text).strip().split("\n\n")]
    return "\n\n".join(f"\b\n{part}" if "\n" in part else part for part in kept)


# --------------------------------------------------------------------- commands about one tool or prompt

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

    Subclasses list the items by `fetch`, and return the JSON Schema of one by `get_schema`.
    """

    item_kind: ClassVar[str]

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

    async def read_item(
        self,
        client: "Client",
        reach: TargetConnector,
        prompter: "TerminalPrompter",
        name: str | None,
        args: str | None,
    ) -> tuple[Any, "ParsedArguments"]:
        """Find the item of this name, and read its arguments from the words behind it."""
        item = find_item(await self.fetch(client), name, self.item_kind, reach)
        form = self.create_schema_command(item, reach.target)
        words = get_remaining_words(click.get_current_context())
        typed = await prompter.run_in_thread(lambda: prompter.read_arguments(form, words, args))
        reach.output.json = reach.json or bool(typed.options.get("json"))
        return item, typed

    def create_schema_command(self, item: Any, target: "TargetSpec") -> "SchemaCommand":
        """The options of one of them."""
        from toolpost.cli.schema_fields import extract_fields  # noqa: PLC0415 - with what it needs, for no help of ours

        return SchemaCommand(
            self.name or "",
            item.name,
            target,
            fields=extract_fields(self.get_schema(item)),
            own=_create_trailing_options(),
            elsewhere={opt for param in self.params if isinstance(param, click.Option) for opt in param.opts},
            description=item.description or item.title,
        )

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
            CompletionItem(each.name, help=first_line(each.description) or None)
            for each in ctx.command.fetch_candidates(ctx)
            if each.name.startswith(incomplete)
        ]


def find_item(items: Sequence[Any], name: str | None, what: str, reach: TargetConnector) -> Any:
    """The one of this name."""
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
    raise usage_error(problem, there)
