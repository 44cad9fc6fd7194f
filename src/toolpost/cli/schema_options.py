"""Options made from the JSON Schema of a tool or prompt: `call weather.py forecast --city Oslo`.

Strings, numbers, choices, lists and the members of objects have options; anything else is typed as JSON. The
server decides whether a value is valid in the end. `SchemaCommand` parses the words behind the name and shows
their help; `NamedItemCommand` is the command before it, which ends at the name.
"""

import asyncio
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO, cast

import click
import msgspec
from click.shell_completion import CompletionItem

from toolpost.cli.errors import usage_error
from toolpost.cli.output import escape_control_characters, first_line
from toolpost.cli.target import TargetCommand, TargetConnector, TargetSpec, build_connector
from toolpost.json_schema import as_list, as_object, get_types, is_number, read_choices, resolve_schema
from toolpost.types.prompts import Prompt
from toolpost.types.tools import Tool

if TYPE_CHECKING:
    from toolpost.cli.terminal import TerminalPrompter
    from toolpost.client.client import Client

MAX_FIELDS: Final = 200  # fields of one tool that have an option; the others are given by `--args`
MAX_DEPTH: Final = 4  # objects within objects whose members have options
_OPTION_NAME: Final = re.compile(r"[\w$][\w.$@:-]*")  # fields with other names are given by `--args`


@dataclass(frozen=True)
class SchemaField:
    """One argument, and how it is typed: each word is converted by `kind`, to one item of a list if `many`.

    `path` are the names that lead to it in the arguments. A member of an object is required if the object is
    there. A `group` is an object whose members are fields, too.
    """

    path: tuple[str, ...]
    kind: "click.ParamType[Any]"
    many: bool = False
    required: bool = False
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    group: bool = False

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return ".".join(self.path)

    @property
    def is_flag(self) -> bool:
        """Whether it is typed without a value."""
        return self.kind is click.BOOL and not self.many


def extract_fields(schema: Mapping[str, Any]) -> list[SchemaField]:
    """Return the fields of an object in its order; the members of an object come right after it."""
    return list(islice(_iterate_fields(schema, schema, ()), MAX_FIELDS))


def _iterate_fields(
    schema: Mapping[str, Any], root: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[SchemaField]:
    required = as_list(schema.get("required"))
    for name, each in as_object(schema.get("properties")).items():
        if not _OPTION_NAME.fullmatch(name) or (path and "." in name):
            continue
        inner = resolve_schema(each, root)
        where = (*path, name)
        group = inner.get("type") == "object" and bool(inner.get("properties")) and len(where) < MAX_DEPTH
        items = resolve_schema(inner.get("items"), root) if inner.get("type") == "array" else None
        text = inner.get("description") or inner.get("title")
        yield SchemaField(
            where,
            kind=_choose_param_type(inner if items is None else items),
            many=items is not None,
            required=name in required,
            description=escape_control_characters(text).strip() if isinstance(text, str) else "",
            schema=inner,
            group=group,
        )
        if group:
            yield from _iterate_fields(inner, root, where)


def _choose_param_type(schema: Mapping[str, Any]) -> "click.ParamType[Any]":
    choices = read_choices(schema, ("enum", "const", "oneOf", "anyOf"))
    if choices:
        return _ChoiceParam(dict.fromkeys(choices.values))
    match schema.get("type"):
        case "string":
            return _TextParam(schema.get("format"))
        case "boolean":
            return click.BOOL
        case "integer" | "number" as kind:
            return _NumberParam(schema, whole=kind == "integer")
        case kind:
            return _JsonParam(or_text=kind is None or "string" in get_types(schema))


class _TextParam(click.ParamType[str]):
    """A string, of the `format` of a schema, such as "date"."""

    def __init__(self, form: Any = None) -> None:
        self.name = form if isinstance(form, str) and form.isprintable() else "text"


class _ChoiceParam(click.Choice[Any]):
    """One of some values, each typed as in JSON, but strings without quotes."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        del ctx
        return escape_control_characters(choice) if isinstance(choice, str) else _format_value(choice)


class _NumberParam(click.ParamType[float]):
    """A number, or an integer if it is `whole`, within the limits of a schema."""

    def __init__(self, schema: Mapping[str, Any], *, whole: bool) -> None:
        self.name = "integer" if whole else "number"
        self._whole = whole
        bounds = (schema.get(key) for key in ("minimum", "maximum"))
        self._minimum, self._maximum = (bound if is_number(bound) else None for bound in bounds)

    @property
    def range(self) -> str:
        if self._minimum is not None and self._maximum is not None:
            return f"{self._minimum} to {self._maximum}"
        if self._minimum is not None:
            return f"at least {self._minimum}"
        return "" if self._maximum is None else f"at most {self._maximum}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = int(value)
        except ValueError:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if self._whole or not math.isfinite(number):
                self.fail(f"{value!r} is no {self.name}", param, ctx)
        least, most = self._minimum, self._maximum
        if (least is not None and number < least) or (most is not None and number > most):
            self.fail(f"{value} is out of range: {self.range}", param, ctx)
        return number


class _JsonParam(click.ParamType[Any]):
    """A piece of JSON; with `or_text`, a word that is not JSON is a string."""

    name = "json"

    def __init__(self, *, or_text: bool = False) -> None:
        self._or_text = or_text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            if self._or_text:
                return value
            self.fail(f"this is no JSON: {error}", param, ctx)


# --------------------------------------------------------------------- one tool or prompt as a command


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
            holder[last] = each.schema["default"]
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
    name = f"--{field.name}"
    if field.is_flag:
        typed = " / ".join([name, *option.secondary_opts[:1]])
    elif isinstance(field.kind, click.Choice):
        typed = f"{name} [{'|'.join(map(_format_value, field.kind.choices))}]"
    else:
        typed = f"{name} {field.kind.name.upper()}"
    default = field.schema.get("default")
    required = "required" if len(field.path) == 1 else f"required in {'.'.join(field.path[:-1])}"
    facts = [
        required if field.required else "",
        "may be repeated" if field.many else "",
        field.kind.range if isinstance(field.kind, _NumberParam) else "",
        "or its members, below" if field.group else "",
        "" if default is None else f"default: {_format_value(default)}",
    ]
    extra = "; ".join(filter(None, facts))
    description = " ".join(field.description.split())
    return typed, "  ".join(filter(None, (description, f"[{extra}]" if extra else "")))


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    return escape_control_characters(text)


def _preserve_line_breaks(text: str) -> str:
    """A text of the server's as click wraps it: lines that it broke on purpose stay as they are."""
    kept = [part.strip("\n") for part in escape_control_characters(text).strip().split("\n\n")]
    return "\n\n".join(f"\b\n{part}" if "\n" in part else part for part in kept)


# --------------------------------------------------------------------- commands about one tool or prompt

COMPLETION_TIMEOUT: Final = 3.0  # seconds that somebody who has pressed Tab waits, before they type on
MAX_SUGGESTED_NAMES: Final = 30  # how many names an error tells: a server may have hundreds
_REST_KEY: Final = "toolpost.rest"


def _create_item_options() -> list[click.Option]:
    """The options that may stand before the name and behind it."""
    args_help = "All arguments as one JSON object; @FILE reads it from a file, - from stdin."
    save_help = "Folder for pictures, sounds and files; by default this one."
    return [
        click.Option(["--args"], metavar="JSON", help=args_help),
        click.Option(["--save"], metavar="DIR", help=save_help),
    ]


class NamedItemCommand(TargetCommand):
    """A command whose words, after TARGET and the name of a tool or a prompt, belong to what is named."""

    def __init__(
        self, *args: Any, kind: Literal["tool", "prompt"], params: list[click.Parameter], **settings: Any
    ) -> None:
        self.kind = kind
        name = click.Argument(["name"], metavar=kind.upper(), required=False, shell_complete=_complete_name)
        super().__init__(*args, params=[name, *_create_item_options(), *params], **settings)

    def take_own_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words up to the name."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        values = {opt for option in options if not option.is_flag for opt in option.opts}
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

    async def fetch(self, client: "Client") -> Sequence[Tool | Prompt]:
        """All that may be named."""
        return await client.list_tools() if self.kind == "tool" else await client.list_prompts()

    def create_schema_command(self, item: Tool | Prompt, target: TargetSpec) -> SchemaCommand:
        """The options of one of them."""
        json = click.Option(["--json"], is_flag=True, help="Print the result as one JSON document.")
        return SchemaCommand(
            self.name or "",
            item.name,
            target,
            fields=extract_fields(item.input_schema if isinstance(item, Tool) else _build_schema(item)),
            own=[*_create_item_options(), json],
            elsewhere={opt for param in self.params if isinstance(param, click.Option) for opt in param.opts},
            description=item.description or item.title,
        )

    def fetch_candidates(self, ctx: click.Context) -> Sequence[Any]:
        """All that may be named, or nothing if that takes too long or fails."""
        try:
            reach = build_connector(ctx)
            reach.timeout = COMPLETION_TIMEOUT

            async def fetch_in_time() -> Sequence[Any]:
                async with asyncio.timeout(COMPLETION_TIMEOUT), reach.create_client(auth=None) as client:
                    return await self.fetch(client)

            return asyncio.run(fetch_in_time())
        except Exception:  # noqa: BLE001 - whatever it is, somebody is in the middle of a word
            return ()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What may follow: our own options before the name, its own behind it."""
        name, rest = ctx.params.get("name"), ctx.meta.get(_REST_KEY)
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


async def read_item(
    client: "Client",
    reach: TargetConnector,
    prompter: "TerminalPrompter",
    name: str | None,
    args: str | None,
) -> tuple[str, ParsedArguments]:
    """Find the item of this name, and read its arguments from the words behind it."""
    ctx = click.get_current_context()
    command = cast("NamedItemCommand", ctx.command)
    item = _find_item(await command.fetch(client), name, command.kind, reach)
    form = command.create_schema_command(item, reach.target)
    typed = await prompter.threads.run_in_thread(
        lambda: prompter.read_arguments(form, ctx.meta[_REST_KEY], args)
    )
    reach.output.json = reach.output.json or bool(typed.options.get("json"))
    return item.name, typed


def _build_schema(prompt: Prompt) -> Mapping[str, Any]:
    """The JSON Schema of the arguments of a prompt: all of them are texts."""
    arguments = prompt.arguments or ()
    texts = {each.name: {"type": "string", "description": each.description} for each in arguments}
    return {"properties": texts, "required": [each.name for each in arguments if each.required]}


def _complete_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names that begin so, by asking the server."""
    assert isinstance(ctx.command, NamedItemCommand), "no other command takes names"
    return [
        CompletionItem(each.name, help=first_line(each.description) or None)
        for each in ctx.command.fetch_candidates(ctx)
        if each.name.startswith(incomplete)
    ]


def _find_item(items: Sequence[Any], name: str | None, what: str, reach: TargetConnector) -> Any:
    names = [each.name for each in items]
    if name in names:
        return items[names.index(name)]
    problem = f"name a {what}" if name is None else f"{reach.target.label} has no {what} {name!r}"
    close = sorted(names, key=lambda each: -SequenceMatcher(None, each.lower(), (name or "").lower()).ratio())
    shown = (close if name else names)[:MAX_SUGGESTED_NAMES] + ["…"] * (len(names) > MAX_SUGGESTED_NAMES)
    raise usage_error(problem, f"there are: {', '.join(shown)}" if names else f"the server has no {what}s")
