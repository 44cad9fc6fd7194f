"""Exit codes, and how an error looks on stderr: as text or, with `--json`, as a JSON document.

Translates the exceptions of `toolpost.errors` into what a user of the command line needs to know.
"""

import json
import os
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

import click

from toolpost import errors
from toolpost.cli.output import escape_control_characters, is_plain
from toolpost.errors import MCPError

OK: Final = 0
FAILED: Final = 1  # the server or the tool answered with an error, or a check failed
USAGE: Final = 2  # the words on the command line make no sense; click's own code for it
UNREACHABLE: Final = 3  # the target could not be started or reached, was lost, or did not answer in time
UNAUTHORIZED: Final = 4  # the server wants a login, and there was none, or it was refused
INTERRUPTED: Final = 130  # Ctrl-C
CLOSED_PIPE: Final = 141  # nobody reads our output any more, as after `| head`


_API_HINT_WORDS: Final = ("auth=", "headers=")  # words of hints about Python code, instead of options


class CommandError(click.ClickException):
    """Ends a command with a message, an exit code and a hint what to do."""

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
        self.details = dict(details or {})  # for `--json`

    def show(self, file: IO[Any] | None = None) -> None:
        """Write it as text, by default to stderr."""
        stream: IO[Any] = sys.stderr if file is None else file
        word = "Error:" if is_plain(stream) else click.style("Error:", fg="red", bold=True)
        click.echo(f"{word} {escape_control_characters(self.message)}", file=stream, color=True)
        if self.hint:
            click.echo(f"Hint: {escape_control_characters(self.hint)}", file=stream)


def usage_error(
    message: str, hint: str | None = None, *, details: Mapping[str, Any] | None = None
) -> CommandError:
    """An error in what was typed."""
    return CommandError(message, USAGE, hint=hint, details=details)


def describe_exit(code: int) -> str:
    """How a process has ended: with an exit code, or, if that is negative, by a signal."""
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
    """Turn an `MCPError` into a `CommandError`: what happened, where (`target`), what to do."""
    try:
        yield
    except MCPError as error:
        raise _to_command_error(error, target) from error


def _to_command_error(error: MCPError, target: str | None) -> CommandError:
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
    hint = error.hint if error.hint and not any(word in error.hint for word in _API_HINT_WORDS) else None
    return CommandError(message, code, hint=hint or _suggest_hint(error, target), details=details)


def _suggest_hint(error: MCPError, target: str | None) -> str | None:
    """A hint for an error that has none, or one about Python code."""
    if isinstance(error, errors.RequestTimeout):
        return "--timeout SECONDS waits longer"
    if isinstance(error, errors.AuthError) or error.hint:
        return "--header 'Authorization: Bearer …' sends a token; a login by browser needs a terminal"
    doctor = errors.ConnectFailed | errors.ChannelClosed | errors.RemoteProtocolError
    if target is not None and isinstance(error, doctor):
        return "`toolpost doctor` with the same target looks for the reason"
    return None
