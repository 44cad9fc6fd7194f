"""Callbacks that ask the user on the terminal: `on_elicitation=prompting.terminal`.

Text of a server is escaped, so that the terminal does not interpret it. `client.form_validation` validates
answers.
"""

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final, Literal, TextIO, TypeAlias, cast
from urllib.parse import SplitResult

from toolpost.client.callbacks import ASKING_SERVER
from toolpost.client.form_validation import find_field_error, parse_choices
from toolpost.errors import LocalProtocolError
from toolpost.json_schema import as_list, get_properties
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.urls import is_loopback_host, split_http_url
from toolpost.types.base import JSON
from toolpost.types.client_requests import ElicitParams, ElicitResult

__all__ = ["requesting_server", "terminal"]

_TERMINAL_LOCK: Final = threading.Lock()  # one prompt at a time

_HELP: Final = "Press Enter for the default or to skip a field. !decline declines, !cancel or Ctrl-D cancels."
_QUOTE_PREFIX: Final = "  | "

MAX_MESSAGE_LENGTH: Final = 4000  # characters: a longer message would push the prompt off the screen
MAX_LABEL_LENGTH: Final = 60  # characters of a field or a choice: it has to fit on one row

_RefusalAction: TypeAlias = Literal["decline", "cancel"]
_REFUSAL_COMMANDS: Final[dict[str, _RefusalAction]] = {"!decline": "decline", "!cancel": "cancel"}
_YES_NO_WORDS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_JSON_READER: Final = JSONReader(cast("type[JSON]", Any))


def requesting_server() -> str | None:
    """Return the server that a callback answers: its address or command, and the name that it gives itself.

    None outside of callbacks. The name that a server gives itself proves nothing.
    """
    return ASKING_SERVER.get()


def terminal(params: ElicitParams) -> ElicitResult:
    """Ask the user on the terminal and return the answer; a callback for `on_elicitation`.

    A form is asked field by field, shown for review, and sent when the user agrees. A URL is shown, and
    opened in the user's browser when they agree. For URLs the client has to declare the capability:
    `capabilities=ClientCapabilities(elicitation=ElicitationCapability(form={}, url={}))`.

    Concurrent prompts take turns. A prompt that the server cancels stays on the screen until the user presses
    Enter: a read from a terminal cannot be interrupted.

    Raises:
        LocalProtocolError: there is no terminal.
    """
    with _TERMINAL_LOCK, _open_screen() as screen:
        try:
            if params.mode == "url":
                return _ask_to_open_url(screen, params)
            return ElicitResult(action="accept", content=_ask_form(screen, params))
        except _PromptRefused as left:
            screen.print_line(f"Answer: {left.action}.")
            return ElicitResult(action=left.action)


# --------------------------------------------------------------------- the terminal


class _PromptRefused(Exception):
    """The user declined or cancelled."""

    def __init__(self, action: _RefusalAction) -> None:
        super().__init__(action)
        self.action: _RefusalAction = action


@contextlib.contextmanager
def _open_screen() -> Generator["_Screen"]:
    """Open the terminal. Raises `LocalProtocolError` if there is none."""
    with contextlib.ExitStack() as stack:
        try:
            reads: TextIO = stack.enter_context(open("/dev/tty", encoding="utf-8", errors="replace"))  # noqa: PTH123 - no path
        except OSError:
            if not _is_tty(sys.stdin):
                problem = "the server asks for user input, but there is no terminal"
                hint = "run this in a terminal, or pass another on_elicitation"
                raise LocalProtocolError(problem, hint=hint) from None
            reads = sys.stdin
        writes = sys.stderr
        if not _is_tty(writes) and reads is not sys.stdin:  # not into a log file
            writes = stack.enter_context(open("/dev/tty", "w", encoding="utf-8", errors="replace"))  # noqa: PTH123 - no path
        yield _Screen(reads, writes)


def _is_tty(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


class _Screen:
    """Lines to and from the user. `ask` and `confirm` raise `_PromptRefused`."""

    def __init__(self, reads: TextIO, writes: TextIO) -> None:
        self._reads = reads
        self._writes = writes
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
        self._bold = ("", "") if plain else ("\x1b[1m", "\x1b[0m")

    def print_line(self, text: str = "") -> None:
        """Print one line; text of the server in it must be escaped."""
        print(text, file=self._writes, flush=True)

    def quote(self, text: str) -> None:
        """Print text of the server, with a prefix on each row."""
        # The terminal must not break rows: the rest would have no prefix. Characters may be two columns wide.
        width = max(shutil.get_terminal_size().columns - len(_QUOTE_PREFIX), 16) // 2
        shown = text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:MAX_MESSAGE_LENGTH]}…"
        for line in map(_escape_unprintable, shown.splitlines() or [""]):
            for start in range(0, len(line) or 1, width):
                self.print_line(f"{_QUOTE_PREFIX}{line[start : start + width]}")

    def format_bold(self, text: str) -> str:
        """Return a text in bold, escaped."""
        return f"{self._bold[0]}{_escape_unprintable(text)}{self._bold[1]}"

    def ask(self, prompt: str) -> str:
        """Return the line that the user types."""
        print(prompt, end=" ", file=self._writes, flush=True)
        line = self._reads.readline()
        if not line:
            self.print_line()
            raise _PromptRefused("cancel")
        typed = line.strip()
        if typed in _REFUSAL_COMMANDS:
            raise _PromptRefused(_REFUSAL_COMMANDS[typed])
        return typed

    def confirm(self, prompt: str) -> str:
        """Return the line that the user types after the prompt, unless it is a no (ELIC-37)."""
        with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
            import termios  # noqa: PLC0415 - not on every platform

            termios.tcflush(self._reads.fileno(), termios.TCIFLUSH)  # discards earlier input
        typed = self.ask(prompt).lower()
        if typed in {"n", "no"}:
            raise _PromptRefused("decline")
        return typed


def _shorten(text: str) -> str:
    """Shorten and escape text of the server for a line of ours."""
    return _escape_unprintable(text if len(text) <= MAX_LABEL_LENGTH else f"{text[:MAX_LABEL_LENGTH]}…")


def _escape_unprintable(text: str) -> str:
    """Escape characters that a terminal would interpret or a reader would not see."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def _print_introduction(screen: _Screen, params: ElicitParams, request: str) -> None:
    screen.print_line()
    screen.print_line(f"{screen.format_bold(requesting_server() or 'A server')} {request}:")
    screen.quote(params.message)


# --------------------------------------------------------------------- forms


def _ask_form(screen: _Screen, params: ElicitParams) -> dict[str, JSON]:
    """Ask for the fields of a form until the user sends it (ELIC-5)."""
    schema = params.requested_schema or {}
    fields = get_properties(schema)
    needed = frozenset(map(str, as_list(schema.get("required"))))
    _print_introduction(screen, params, "asks")
    screen.print_line(_HELP)
    content: dict[str, JSON] = {}
    unanswered = list(fields)
    while True:
        for name in unanswered:
            _ask_field(screen, content, name, fields[name], required=name in needed)
        screen.print_line()
        screen.print_line("Your answer:" if fields else "The form has no fields.")
        for number, (name, field) in enumerate(fields.items(), 1):
            shown = _format_value(field, content[name]) if name in content else "(skipped)"
            screen.print_line(f"  {number}. {_format_label(name, field)}: {shown}")
        change = ", a number to edit a field" if fields else ""
        typed = screen.confirm(f"Send it? [y = yes, n = decline{change}]")
        if _YES_NO_WORDS.get(typed):
            return content
        row = _parse_row_number(typed, len(fields))
        unanswered = [] if row is None else [list(fields)[row]]


def _ask_field(
    screen: _Screen, content: dict[str, JSON], name: str, field: Mapping[str, JSON], *, required: bool
) -> None:
    screen.print_line()
    screen.print_line(f"{_format_label(name, field)}{'' if required else ' (optional)'}")
    if isinstance(field.get("description"), str):
        screen.quote(field["description"])
    choices = parse_choices(field)
    for number, title in enumerate(choices.values(), 1):
        screen.print_line(f"  {number}) {_shorten(title)}")
    if "default" in field and find_field_error(field, field["default"]):
        field = {key: value for key, value in field.items() if key != "default"}
    default = f" [{_format_value(field, field['default'])}]" if "default" in field else ""
    while True:
        typed = screen.ask(f"{_describe_input(field, choices)}{default}>")
        if not typed and "default" not in field:
            if not required:
                content.pop(name, None)
                return
            screen.print_line("  This field is required.")
            continue
        value = _parse_input(field, choices, typed) if typed else field["default"]
        problem = find_field_error(field, value)
        if problem is None:
            content[name] = value
            return
        expected = "must be y or n" if field.get("type") == "boolean" else _escape_unprintable(problem)
        screen.print_line(f"  The value {expected}.")


def _format_label(name: str, field: Mapping[str, JSON]) -> str:
    title: JSON = field.get("title")
    return _shorten(title if isinstance(title, str) and title else name)


def _describe_input(field: Mapping[str, JSON], choices: Mapping[str, str]) -> str:
    if choices:
        return "numbers, separated by commas; 0 for none" if field.get("type") == "array" else "number"
    words = {"boolean": "y or n", "integer": "integer", "number": "number", "string": "text", "array": "list"}
    kind: JSON = field.get("type")
    form: JSON = field.get("format")
    return _escape_unprintable(form) if isinstance(form, str) else words.get(str(kind), "text or JSON")


def _format_value(field: Mapping[str, JSON], value: JSON) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    titles = parse_choices(field)
    many = cast("list[JSON]", value) if isinstance(value, list) else [value]
    words = (titles.get(one, one) if isinstance(one, str) else jsonrpc.encode(one).decode() for one in many)
    return ", ".join(map(_escape_unprintable, words))


def _parse_input(field: Mapping[str, JSON], choices: Mapping[str, str], typed: str) -> JSON:
    """Parse the input of the user. Invalid input stays a string, and fails validation."""
    kind: JSON = field.get("type")
    if kind == "array":
        parts = [part.strip() for part in typed.split(",")]
        return [] if parts == ["0"] else [_parse_choice(choices, part) for part in parts]
    if kind == "boolean":
        return _YES_NO_WORDS.get(typed.lower(), typed)
    if kind == "string":
        return _parse_choice(choices, typed)
    try:
        return _JSON_READER(typed.encode())
    except (InvalidJSONValue, UnicodeEncodeError):
        return typed


def _parse_choice(choices: Mapping[str, str], typed: str) -> str:
    row = _parse_row_number(typed, len(choices))
    if row is not None:
        return list(choices)[row]
    return next((value for value, title in choices.items() if title == typed), typed)


def _parse_row_number(typed: str, rows: int) -> int | None:
    """Return the index of the chosen row; None if it is not a row number."""
    number = int(typed) if typed.isdecimal() and len(typed) <= len(str(rows)) else 0
    return number - 1 if 0 < number <= rows else None


# --------------------------------------------------------------------- URLs


def _ask_to_open_url(screen: _Screen, params: ElicitParams) -> ElicitResult:
    """Show a URL and open it only if the user agrees (ELIC-37)."""
    url = params.url or ""
    _print_introduction(screen, params, "asks you to open a page")
    screen.print_line(f"Full address: {_escape_unprintable(url)}")
    parts = split_http_url(url)
    if parts is None or not url.isprintable() or any(char in url for char in "\\ "):
        # Browsers may read such an address in another way, and open another host.
        screen.print_line("This is not a web address. It was not opened.")
        raise _PromptRefused("decline")
    screen.print_line("The page is on this host:")
    screen.print_line(f"    {screen.format_bold(parts.hostname or '')}")
    for warning in _find_url_warnings(parts):
        screen.print_line(f"  Warning: {warning}.")
    screen.print_line("!decline declines, !cancel or Ctrl-D cancels.")
    while not _YES_NO_WORDS.get(screen.confirm("Open it in your browser? [y = yes, n = decline]")):
        pass
    import webbrowser  # noqa: PLC0415 - rarely needed

    if not webbrowser.open(url):
        screen.print_line("No browser found. Open the address yourself.")
    return ElicitResult(action="accept")


def _find_url_warnings(parts: SplitResult) -> Iterator[str]:
    """Yield warnings about a suspicious address (ELIC-39)."""
    host = parts.hostname or ""
    if not host.isascii() or any(label.startswith("xn--") for label in host.split(".")):
        yield f"the host name may imitate another one ({_encode_host(host)})"
    if "@" in parts.netloc:
        yield f"the part before the @ is not the host; the host is {_escape_unprintable(host)}"
    if parts.scheme == "http" and not is_loopback_host(host):
        yield "the connection is not encrypted"


def _encode_host(host: str) -> str:
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return _escape_unprintable(host)
