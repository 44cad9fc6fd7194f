"""How a command ends: the exit codes, and errors in the words of a person.

Owns the table of codes and how an error looks on stderr, as text or, with `--json`, as a JSON document. Why
something went wrong is told by whoever raised it.
"""

import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from toolpost.errors import MCPError

OK: Final = 0
FAILED: Final = 1
"""The server or the tool answered with an error, or a check failed."""
USAGE: Final = 2
"""The words on the command line make no sense; click's own code for it."""
UNREACHABLE: Final = 3
"""The target could not be started or reached, was lost, or did not answer in time."""
UNAUTHORIZED: Final = 4
"""The server wants a login, and there was none, or it was refused."""
INTERRUPTED: Final = 130
"""Ctrl-C."""
CLOSED_PIPE: Final = 141
"""Nobody reads our output any more, as after `| head`."""


_API_HINT_WORDS: Final = ("auth=", "headers=")
"""What a hint for programs says that authorization is given by: here it is an option."""


class CommandError(click.ClickException):
    """The end of a command that could not do what it was asked."""

    def __init__(
        self,
        message: str,
        code: int = FAILED,
        *,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = code  # pyright: ignore[reportAttributeAccessIssue] - click reads it from the object
        self.hint = hint
        self.details = dict(details or {})

    def show(self, file: IO[Any] | None = None) -> None:
        """Write it as text, by default to stderr."""
        from toolpost.cli.output import escape_control_characters, is_plain  # noqa: PLC0415 - `page` is loaded by who prints

        stream: IO[Any] = sys.stderr if file is None else file
        word = "Error:" if is_plain(stream) else click.style("Error:", fg="red", bold=True)
        click.echo(f"{word} {escape_control_characters(self.message)}", file=stream, color=True)
        if self.hint:
            click.echo(f"Hint: {escape_control_characters(self.hint)}", file=stream)


def show_error(error: click.ClickException, *, as_json: bool) -> None:
    """Write an error to stderr."""
    if not as_json:
        error.show()
        return
    told: dict[str, Any] = {"message": error.format_message(), "exit": error.exit_code}
    if isinstance(error, CommandError):
        told |= ({"hint": error.hint} if error.hint else {}) | error.details
    sys.stderr.write(json.dumps({"error": told}, indent=2, default=str) + os.linesep)


@contextmanager
def translate_errors(target: str | None = None) -> Generator[None]:
    """Turns what toolpost raises inside into a `CommandError`: what happened, where, what to do."""
    from toolpost.errors import MCPError  # noqa: PLC0415 - whoever needs it has loaded it

    try:
        yield
    except MCPError as error:
        raise _to_command_error(error, target) from error


def _to_command_error(error: "MCPError", target: str | None) -> CommandError:
    from toolpost import errors  # noqa: PLC0415 - as above

    codes: dict[type[Exception], int] = {
        errors.AuthError: UNAUTHORIZED,
        errors.TransportError: UNREACHABLE,
        errors.MCPError: FAILED,
    }
    code = next(code for kind, code in codes.items() if isinstance(error, kind))
    details: dict[str, Any] = {"kind": type(error).__name__}
    message = error.message
    if isinstance(error, errors.RPCError):
        details |= {"code": error.code} | ({} if error.data is None else {"data": error.data})
        message = f"{message} ({error.kind}, {error.code})"
    if error.peer:
        details["peer"] = error.peer
    where = error.peer or target
    if where and not message.startswith(where):
        message = f"{where}: {message}"
    message = "\n".join([message, *getattr(error, "__notes__", ())])
    said = error.hint if error.hint and not any(word in error.hint for word in _API_HINT_WORDS) else None
    return CommandError(message, code, hint=said or _suggest_hint(error, target), details=details)


def _suggest_hint(error: "MCPError", target: str | None) -> str | None:
    """What to do about an error that does not say so itself, or says it to programs."""
    from toolpost import errors  # noqa: PLC0415 - as above

    if isinstance(error, errors.RequestTimeout):
        return "--timeout SECONDS waits longer"
    if isinstance(error, errors.AuthError) or error.hint:
        return "--header 'Authorization: Bearer …' sends a token; a login by browser needs a terminal"
    doctor = errors.ConnectFailed | errors.ChannelClosed | errors.RemoteProtocolError
    if target is not None and isinstance(error, doctor):
        return "`toolpost doctor` with the same target looks for the reason"
    return None
