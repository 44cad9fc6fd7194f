"""Exit codes, and errors on stderr: as text or, with `--json`, as a JSON document.

Translates the exceptions of `toolpost.errors` into errors of the command line.
"""

import json
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

import click

from toolpost import errors
from toolpost.cli.output import escape_control_characters, is_plain
from toolpost.errors import MCPError

OK: Final = 0
FAILED: Final = 1  # the server or the tool answered with an error, or a check failed
USAGE: Final = 2  # invalid command line; click uses the same code
UNREACHABLE: Final = 3  # the target could not be started or reached, was lost, or did not answer in time
UNAUTHORIZED: Final = 4  # the server requires a login, and there was none, or it was refused
INTERRUPTED: Final = 130  # Ctrl-C
CLOSED_PIPE: Final = 141  # the reader of our output closed the pipe, such as `| head`
_API_HINT_WORDS: Final = ("auth=", "headers=")  # they mark hints about Python code


class CommandError(click.ClickException):
    """Ends a command with a message, an exit code and a hint."""

    def __init__(
        self, message: str, exit_code: int = FAILED, *, hint: str | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # pyright: ignore[reportAttributeAccessIssue] - click reads it from the object
        self.hint = hint
        self.details = details  # for `--json`

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the error as text, by default to stderr."""
        stream: IO[Any] = sys.stderr if file is None else file
        word = "Error:" if is_plain(stream) else click.style("Error:", fg="red", bold=True)
        click.echo(f"{word} {escape_control_characters(self.message)}", file=stream, color=True)
        if self.hint:
            click.echo(f"Hint: {escape_control_characters(self.hint)}", file=stream)


def usage_error(message: str, hint: str | None = None, **details: Any) -> CommandError:
    """Return an error in the command line."""
    return CommandError(message, USAGE, hint=hint, **details)


def describe_exit(code: int) -> str:
    """Describe how a process ended: with an exit code, or by a signal if the code is negative."""
    if code >= 0:
        return f"with exit code {code}"
    with suppress(ValueError):
        return f"by {signal.Signals(-code).name}"
    return f"by signal {-code}"


def show_error(error: click.ClickException, *, as_json: bool) -> None:
    """Write an error to stderr."""
    if not as_json:
        error.show()
        return
    document: dict[str, Any] = {"message": error.format_message(), "exit": error.exit_code}
    if isinstance(error, CommandError):
        document |= ({"hint": error.hint} if error.hint else {}) | error.details
    sys.stderr.write(json.dumps({"error": document}, indent=2, default=str) + os.linesep)


@contextmanager
def translate_errors(target: str | None = None) -> Generator[None]:
    """Turn an `MCPError` into a `CommandError`: the cause, the target, and a hint."""
    try:
        yield
    except MCPError as error:
        unreachable = UNREACHABLE if isinstance(error, errors.TransportError) else FAILED
        code = UNAUTHORIZED if isinstance(error, errors.AuthError) else unreachable
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
        raise CommandError(message, code, hint=_choose_hint(error, target), **details) from error


def _choose_hint(error: MCPError, target: str | None) -> str | None:
    """Return the hint of an error, or a replacement for a hint about Python code."""
    if error.hint and not any(word in error.hint for word in _API_HINT_WORDS):
        return error.hint
    if isinstance(error, errors.RequestTimeout):
        return "use --timeout SECONDS to wait longer"
    if isinstance(error, errors.AuthError) or error.hint:
        return "use --header 'Authorization: Bearer …' to send a token; a browser login requires a terminal"
    doctor = errors.ConnectFailed | errors.ChannelClosed | errors.RemoteProtocolError
    if target is not None and isinstance(error, doctor):
        return "run `toolpost doctor` with the same target to find the cause"
    return None
