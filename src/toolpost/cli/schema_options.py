"""Options built from the JSON Schema of a tool or prompt: `call weather.py forecast --city Oslo`.

Strings, numbers, choices, lists and the members of objects have options; anything else is JSON. The server
makes the final decision about a value. `SchemaCommand` parses the words after the name and shows their
help; `NamedItemCommand` is the command before it, which ends at the name.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias, cast

import click
import msgspec
from click.shell_completion import CompletionItem

from toolpost.cli.errors import usage_error
from toolpost.cli.output import escape_control_characters, first_line
from toolpost.cli.target import TargetCommand, TargetConnector, TargetSpec, build_connector
from toolpost.json_schema import (
    as_list,
    as_object,
    get_member,
    get_types,
    is_number,
    read_choices,
    resolve_schema,
)
from toolpost.types.prompts import Prompt
from toolpost.types.tools import Tool

if TYPE_CHECKING:
    from toolpost.cli.terminal import TerminalPrompter
    from toolpost.client.client import Client

MAX_FIELDS: Final = 200  # fields of one tool that get an option; the others need `--args`
MAX_DEPTH: Final = 4  # nested objects whose members get options
_OPTION_NAME: Final = re.compile(r"[\w$][\w.$@:-]*")  # fields with other names need `--args`


@dataclass(frozen=True)
class SchemaField:
    """One argument as an option: `kind` converts each word, to one item of a list if `many`.

    `path` are its keys in the arguments. A member of an object is required only if the object is present. A
    `group` is an object whose members are fields too.
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
        """The name on the command line."""
        return ".".join(self.path)

    @property
    def is_flag(self) -> bool:
        """Whether the option takes no value."""
        return self.kind is click.BOOL and not self.many


def extract_fields(schema: Mapping[str, Any]) -> list[SchemaField]:
    """Return the fields of a schema in order. The members of an object follow it."""
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
        return _ChoiceParam(dict.fromkeys(choices))
    match schema.get("type"):
        case "string":
            form = schema.get("format")
            return _SchemaParam(form if isinstance(form, str) and form.isprintable() else "text")
        case "boolean":
            return click.BOOL
        case "integer" | "number" as kind:
            return _NumberParam(kind, schema)
        case kind:
            return _JsonParam(or_text=kind is None or "string" in get_types(schema))


class _ChoiceParam(click.Choice[Any]):
    """An enum. Values are written as in JSON, but strings without quotes."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        del ctx
        return escape_control_characters(choice) if isinstance(choice, str) else _format_value(choice)


class _SchemaParam(click.ParamType[Any]):
    """A string; `range` describes the values that a subclass accepts."""

    range = ""

    def __init__(self, name: str) -> None:
        self.name = name


class _NumberParam(_SchemaParam):
    """A number or an integer, within the limits of a schema."""

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        super().__init__(name)
        least, most = (schema.get(key) for key in ("minimum", "maximum"))
        self._least = least if is_number(least) else -math.inf
        self._most = most if is_number(most) else math.inf
        if is_number(least) and is_number(most):
            self.range = f"{least} to {most}"
        elif is_number(least) or is_number(most):
            self.range = f"at least {least}" if is_number(least) else f"at most {most}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = int(value)
        except ValueError:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if self.name == "integer" or not math.isfinite(number):
                self.fail(f"{value!r} is not a valid {self.name}", param, ctx)
        if not self._least <= number <= self._most:
            self.fail(f"{value} is out of range: {self.range}", param, ctx)
        return number


class _JsonParam(_SchemaParam):
    """JSON; with `or_text`, anything else is a string."""

    def __init__(self, *, or_text: bool) -> None:
        super().__init__("json")
        self._or_text = or_text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            if self._or_text:
                return value
            self.fail(f"invalid JSON: {error}", param, ctx)


# --------------------------------------------------------------------- one tool or prompt as a command


ParsedArguments: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""The arguments of a tool or prompt, and toolpost's own options."""


class SchemaCommand(click.Command):
    """A tool or a prompt as a command with its fields as options."""

    def __init__(
        self, verb: str, item: Tool | Prompt, target: TargetSpec, earlier_options: Collection[str] = ()
    ) -> None:
        fields = extract_fields(item.input_schema if isinstance(item, Tool) else _build_schema(item))
        exact = {each.name: each for each in reversed(fields)}  # names may collide: a.b, and b in a
        self.fields = [each for each in fields if exact[each.name] is each]
        taken = {f"--{name}" for name in exact}
        self._options = [_build_option(number, each, taken) for number, each in enumerate(self.fields)]
        json = click.Option(["--json"], is_flag=True, help="Print the result as one JSON document.")
        own = [*_create_item_options(), json]
        self._own_options = [each for each in own if taken.isdisjoint(each.opts)]
        self._earlier_options = earlier_options
        super().__init__(
            item.name,
            params=[*self._options, *self._own_options],
            help=_preserve_line_breaks(item.description or item.title or ""),
            add_help_option="--help" not in taken,
            context_settings={"help_option_names": ["--help"]},
        )
        commanded = target.kind == "command"
        self._usage_prefix = " ".join(["toolpost", verb, *([] if commanded else [target.label]), item.name])
        self._usage_suffix = ["--", "COMMAND..."] if commanded else []

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the pieces of the usage line."""
        del ctx
        return [*(["[PARAMETERS]"] if self.fields else []), "[OPTIONS]", *self._usage_suffix]

    def parse_words(self, words: Sequence[str]) -> click.Context:
        """Parse these words and return their context."""
        try:
            return self.make_context(self._usage_prefix, list(words))
        except click.NoSuchOption as error:
            if error.option_name in self._earlier_options:
                text = f"{self.name} has no {error.option_name}; options of toolpost go before its name"
                raise click.UsageError(text, error.ctx) from None
            names = [name.lstrip("-") for option in self.params for name in option.opts]
            close = get_close_matches(error.option_name.lstrip("-"), names)
            shown = [f"--{name}" for name in close] or [each.opts[0] for each in self._options]
            hint = f"did you mean {' or '.join(shown)}?" if shown else f"{self.name} has no parameters"
            raise click.UsageError(f"no such option {error.option_name!r}; {hint}", error.ctx) from None

    def collect_arguments(self, ctx: click.Context, args: str | None = None) -> ParsedArguments:
        """Collect the arguments. Options override members of `--args`."""
        own = {option.name or "": ctx.params[option.name or ""] for option in self._own_options}
        whole = own.get("args") or args
        arguments = {} if whole is None else parse_arguments(whole)
        for each, option in zip(self.fields, self._options, strict=True):
            value = ctx.params.get(option.name or "")
            if value is not None and value != ():
                set_argument(arguments, each, list(value) if each.many else value)
        return arguments, {name: value for name, value in own.items() if value}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the parameters and our own options in separate sections."""
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
    """Set missing fields to their defaults, and return the required ones that have none.

    A member of an object is missing if the object is present or required; it then replaces the object.
    """
    missing: dict[tuple[str, ...], SchemaField] = {}
    for each in fields:
        *above, last = each.path
        holder = get_member(arguments, *above)
        is_present = isinstance(holder, dict)
        if not each.required or (is_present and last in holder):
            continue
        if is_present and "default" in each.schema:
            holder[last] = each.schema["default"]
        elif is_present or tuple(above) in missing:
            missing[each.path] = each
    replaced = {path[:-1] for path in missing}
    return [each for path, each in missing.items() if path not in replaced]


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse the value of `--args`: JSON, `@` and a file of it, or `-` for stdin."""
    try:
        source = "-" if text == "-" else text[1:] if text.startswith("@") else None
        if source is not None:
            with cast("TextIO", click.open_file(source, encoding="utf-8")) as file:
                text = file.read()
        return msgspec.json.decode(text, type=dict[str, Any])
    except OSError as error:
        raise usage_error(f"--args: could not read {text[1:]}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        hint = """use '{"city": "Oslo"}', @arguments.json, or - for stdin"""
        raise usage_error(f"--args: not a JSON object: {error}", hint) from error


def _build_option(number: int, field: SchemaField, taken: set[str]) -> click.Option:
    """Build the option for a field, named as in the schema or with hyphens. Adds its names to `taken`."""
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
        "repeatable" if field.many else "",
        field.kind.range if isinstance(field.kind, _SchemaParam) else "",
        "or pass its members, below" if field.group else "",
        "" if default is None else f"default: {_format_value(default)}",
    ]
    extra = "; ".join(filter(None, facts))
    description = " ".join(field.description.split())
    return typed, "  ".join(filter(None, (description, f"[{extra}]" if extra else "")))


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    return escape_control_characters(text)


def _preserve_line_breaks(text: str) -> str:
    """Mark the paragraphs with line breaks, so that click does not wrap them."""
    kept = [part.strip("\n") for part in escape_control_characters(text).strip().split("\n\n")]
    return "\n\n".join(f"\b\n{part}" if "\n" in part else part for part in kept)


# --------------------------------------------------------------------- commands about one tool or prompt

COMPLETION_TIMEOUT: Final = 3.0  # seconds to connect, and to list: a user is waiting after Tab
MAX_SUGGESTED_NAMES: Final = 30  # names to list in an error: a server may have hundreds
_REST_KEY: Final = "toolpost.rest"


def _create_item_options() -> list[click.Option]:
    """Create the options that are allowed before and after the name."""
    args_help = "All arguments as one JSON object; @FILE reads a file, - reads stdin."
    save_help = "Folder for images, audio and files (default: current folder)."
    return [
        click.Option(["--args"], metavar="JSON", help=args_help),
        click.Option(["--save"], metavar="DIR", help=save_help),
    ]


class NamedItemCommand(TargetCommand):
    """A command that passes the words after TARGET and a name on to that tool or prompt."""

    def __init__(
        self, *args: Any, kind: Literal["tool", "prompt"], params: list[click.Parameter], **settings: Any
    ) -> None:
        self.kind = kind
        name = click.Argument(["name"], metavar=kind.upper(), required=False, shell_complete=_complete_name)
        super().__init__(*args, params=[name, *_create_item_options(), *params], **settings)

    def take_own_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the words up to the name; keep the rest."""
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
        """Return the pieces of the usage line."""
        return [*super().collect_usage_pieces(ctx), "[PARAMETERS]"]

    async def fetch(self, client: "Client") -> Sequence[Tool | Prompt]:
        """Fetch the tools or prompts of the server."""
        return await client.list_tools() if self.kind == "tool" else await client.list_prompts()

    def create_schema_command(self, item: Tool | Prompt, target: TargetSpec) -> SchemaCommand:
        """Create the command for one tool or prompt."""
        options = {opt for param in self.params if isinstance(param, click.Option) for opt in param.opts}
        return SchemaCommand(self.name or "", item, target, options)

    def fetch_candidates(self, ctx: click.Context) -> Sequence[Any]:
        """Return the tools or prompts, or nothing after an error: errors must not disturb a shell."""
        with suppress(Exception):
            target = build_connector(ctx)
            target.timeout = COMPLETION_TIMEOUT
            return target.run(self.fetch, auth=None)
        return ()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete our own options before the name, those of the tool or prompt after it."""
        name, rest = ctx.params.get("name"), ctx.meta.get(_REST_KEY)
        if name is None:
            return super().shell_complete(ctx, incomplete)
        item = next((each for each in self.fetch_candidates(ctx) if each.name == name), None)
        if item is None:
            return []
        form = self.create_schema_command(item, build_connector(ctx).spec)
        inner = form.make_context(name, [], resilient_parsing=True)
        for option in form.params:
            if rest and rest[-1] in option.opts and isinstance(option, click.Option) and not option.is_flag:
                return option.shell_complete(inner, incomplete)
        return form.shell_complete(inner, incomplete)


async def read_item(
    client: "Client", prompter: "TerminalPrompter", name: str | None, args: str | None
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Find the item with this name. Returns its name, its arguments, and our options after the name."""
    ctx, target = click.get_current_context(), prompter.target
    command = cast("NamedItemCommand", ctx.command)
    item = _find_item(await command.fetch(client), name, command.kind, target)
    form = command.create_schema_command(item, target.spec)
    arguments, options = await prompter.threads.run_in_thread(
        lambda: prompter.read_arguments(form, ctx.meta[_REST_KEY], args)
    )
    target.output.json = target.output.json or bool(options.get("json"))
    return item.name, arguments, options


def _build_schema(prompt: Prompt) -> Mapping[str, Any]:
    """Build a JSON Schema for the arguments of a prompt: all of them are strings."""
    arguments = prompt.arguments or ()
    texts = {each.name: {"type": "string", "description": each.description} for each in arguments}
    return {"properties": texts, "required": [each.name for each in arguments if each.required]}


def _complete_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    assert isinstance(ctx.command, NamedItemCommand), "no other command takes names"
    return [
        CompletionItem(each.name, help=first_line(each.description) or None)
        for each in ctx.command.fetch_candidates(ctx)
        if each.name.startswith(incomplete)
    ]


def _find_item(items: Sequence[Any], name: str | None, kind: str, target: TargetConnector) -> Any:
    names = [each.name for each in items]
    if name in names:
        return items[names.index(name)]
    problem = f"missing {kind} name" if name is None else f"{target.spec.label} has no {kind} {name!r}"
    close = sorted(names, key=lambda each: -SequenceMatcher(None, each.lower(), (name or "").lower()).ratio())
    shown = (close if name else names)[:MAX_SUGGESTED_NAMES] + ["…"] * (len(names) > MAX_SUGGESTED_NAMES)
    raise usage_error(problem, f"available: {', '.join(shown)}" if names else f"the server has no {kind}s")
