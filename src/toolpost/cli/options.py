"""The options of one tool or prompt, made from its fields, and the arguments that come of what was typed.

Owns the second half of a line such as `call weather.py forecast --city Oslo`: what is typed there, its help,
and what is missing. Asks nobody anything.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TextIO, cast

import click
import msgspec

from toolpost.cli.exits import USAGE, CommandError
from toolpost.cli.fields import NumberParam, SchemaField
from toolpost.cli.page import escape_control_characters
from toolpost.cli.target import TargetSpec

__all__ = ["ParsedArguments", "SchemaCommand", "find_missing", "parse_arguments", "set_argument"]


class ParsedArguments(NamedTuple):
    """What was typed after the name of a tool or a prompt.

    Args:
        arguments: what it is to be called with.
        options: the options of ours among it, by name.
    """

    arguments: dict[str, Any]
    options: dict[str, Any]


class SchemaCommand(click.Command):
    """A tool or a prompt, as a command of its own: its fields are options.

    Args:
        verb: the command that it is for, such as "call".
        name: what it is called.
        target: the server that has it.
        fields: what it wants to know.
        own: options of ours that may stand here as well, unless a field is called so.
        elsewhere: options of ours that stand before the name.
        description: what it does, in the server's words.
    """

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
        """The context in which these words have been read.

        Raises:
            click.UsageError: they cannot be meant.
            click.exceptions.Exit: help was wanted, and has been shown.
        """
        try:
            return self.make_context(self._usage_prefix, list(words))
        except click.NoSuchOption as error:
            if error.option_name in self._earlier_options:
                said = f"{self.name} has no {error.option_name}; our own options stand before its name"
                raise click.UsageError(said, error.ctx) from None
            raise

    def collect_arguments(self, ctx: click.Context, args: str | None = None) -> ParsedArguments:
        """What was typed. What `--args` says, here or before the name, is taken first.

        Raises:
            CommandError: what it says is no JSON object.
        """
        own = {option.name or "": ctx.params[option.name or ""] for option in self._own_options}
        whole = own.get("args") or args
        arguments = {} if whole is None else parse_arguments(whole)
        for each, option in zip(self.fields, self._options, strict=True):
            value = ctx.params.get(option.name or "")
            if value is not None and value != ():
                set_argument(arguments, each, list(value) if each.many else value)
        return ParsedArguments(arguments, {name: value for name, value in own.items() if value})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Tell the parameters apart from our own options."""
        parameters = [_build_help_record(*both) for both in zip(self.fields, self._options, strict=True)]
        if parameters:
            with formatter.section("Parameters"):
                formatter.write_dl(parameters)
        ours = [*self._own_options, *([option] if (option := self.get_help_option(ctx)) else [])]
        records = [record for option in ours if (record := option.get_help_record(ctx))]
        with formatter.section("Options"):
            formatter.write_dl(records)


def set_argument(arguments: dict[str, Any], field: SchemaField, value: Any) -> None:
    """Set the value of a field, in the objects that it stands in."""
    inner = arguments
    for step in field.path[:-1]:
        if not isinstance(inner.get(step), dict):
            inner[step] = {}
        inner = cast("dict[str, Any]", inner[step])
    inner[field.path[-1]] = value


def find_missing(fields: Sequence[SchemaField], arguments: dict[str, Any]) -> list[SchemaField]:
    """The fields that have to be there and are not, after what has a default has been set to it.

    A member of an object is missing if the object is there, or has to be; then it stands for the object.
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
    """The arguments that `--args` gives: JSON, `@` and a file of it, or `-` for stdin.

    Raises:
        CommandError: it is no JSON object.
    """
    try:
        source = "-" if text == "-" else text[1:] if text.startswith("@") else None
        if source is not None:
            with cast("TextIO", click.open_file(source, encoding="utf-8")) as file:
                text = file.read()
        return msgspec.json.decode(text, type=dict[str, Any])
    except OSError as error:
        raise CommandError(f"--args: {text[1:]} cannot be read: {error.strerror}", USAGE) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CommandError(
            f"--args: this is no JSON object: {error}",
            USAGE,
            hint="""such as '{"city": "Oslo"}', @arguments.json, or - for stdin""",
        ) from error


# --------------------------------------------------------------------- one option


def _build_option(number: int, field: SchemaField, taken: set[str]) -> click.Option:
    """The option for a field, called as in the schema, or with hyphens; what it is called is taken then."""
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
    facts = [
        _describe_requirement(field),
        "may be repeated" if field.many else "",
        field.kind.range if isinstance(field.kind, NumberParam) else "",
        "or its members, below" if field.group else "",
        "" if field.default is None else f"default: {_format_value(field.default)}",
    ]
    extra = "; ".join(filter(None, facts))
    told = (" ".join(field.description.split()), f"[{extra}]" if extra else "")
    return typed, "  ".join(filter(None, told))


def _describe_requirement(field: SchemaField) -> str:
    if not field.required:
        return ""
    return "required" if len(field.path) == 1 else f"required in {'.'.join(field.path[:-1])}"


def _format_value(value: Any) -> str:
    return escape_control_characters(
        value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    )


def _preserve_line_breaks(text: str) -> str:
    """A text of the server's as click wraps it: lines that it broke on purpose stay as they are."""
    kept = [part.strip("\n") for part in escape_control_characters(text).strip().split("\n\n")]
    return "\n\n".join(f"\b\n{part}" if "\n" in part else part for part in kept)
