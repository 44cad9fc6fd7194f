"""Asks the user on the terminal what a server wants to know: `on_elicitation=prompting.terminal`.

Owns how a question is displayed, answered, changed, declined and cancelled. Text of a server is escaped
before a terminal could interpret it. Validation is left to `client.form_validation`.
"""

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final, Literal, TextIO, TypeAlias, cast
from urllib.parse import urlsplit

from toolpost.client.callbacks import ASKING_SERVER
from toolpost.client.form_validation import find_field_error, parse_choices, parse_fields
from toolpost.errors import LocalProtocolError
from toolpost.json_schema import Choices, as_list
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.types.base import JSON
from toolpost.types.client_requests import ElicitParams, ElicitResult

__all__ = ["requesting_server", "terminal"]

_TERMINAL_LOCK: Final = threading.Lock()  # there is one keyboard: whoever asks next waits

_HELP: Final = (
    "An empty line takes the default or leaves a field out. !decline says no, !cancel or Ctrl-D stops."
)
_QUOTE_PREFIX: Final = "  | "

MAX_MESSAGE_LENGTH: Final = 4000  # characters that are shown: more would push what matters off the screen
MAX_LABEL_LENGTH: Final = 60  # characters of a field or a choice that are shown: a row of ours stays one row

_RefusalAction: TypeAlias = Literal["decline", "cancel"]
_REFUSAL_COMMANDS: Final[dict[str, _RefusalAction]] = {"!decline": "decline", "!cancel": "cancel"}
_YES_NO_WORDS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_WEB_SCHEMES: Final = frozenset({"http", "https"})
_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_JSON_READER: Final = JSONReader(cast("type[JSON]", Any))


def requesting_server() -> str | None:
    """Which server a callback is being asked by: its address or command, and what it calls itself.

    None where no callback is running. What a server calls itself proves nothing.
    """
    return ASKING_SERVER.get()


def terminal(params: ElicitParams) -> ElicitResult:
    """What the user answers on the terminal; a callback for `on_elicitation`.

    A form is asked field by field, shown once more, and sent when the user says so. A URL is shown, and
    opened in the user's browser when they say so. For URLs the client has to declare that it takes them:
    `capabilities=ClientCapabilities(elicitation=ElicitationCapability(form={}, url={}))`.

    Those who ask at once take turns. A question that the server takes back stays on the screen until the user
    presses Enter: nothing can end a read from a terminal.

    Raises:
        LocalProtocolError: there is no terminal.
    """
    with _TERMINAL_LOCK, _open_tty() as (reads, writes):
        screen = _Screen(reads, writes)
        try:
            if params.mode == "url":
                return _ask_to_open_url(screen, params)
            return ElicitResult(action="accept", content=_ask_form(screen, params))
        except _PromptRefused as left:
            screen.print_line(f"The answer is: {left.action}.")
            return ElicitResult(action=left.action)


# --------------------------------------------------------------------- the terminal


class _PromptRefused(Exception):
    """The user declined or cancelled."""

    def __init__(self, action: _RefusalAction) -> None:
        super().__init__(action)
        self.action: _RefusalAction = action


@contextlib.contextmanager
def _open_tty() -> Generator[tuple[TextIO, TextIO], None, None]:
    """Open the streams to read from and to write to. Raises `LocalProtocolError` without a terminal."""
    with contextlib.ExitStack() as stack:
        try:
            reads: TextIO = stack.enter_context(open("/dev/tty", encoding="utf-8", errors="replace"))  # noqa: PTH123 - no path
        except OSError:
            if not _is_tty(sys.stdin):
                problem = "the server has a question for the user, and there is no terminal to ask it on"
                hint = "run this in a terminal, or give another on_elicitation"
                raise LocalProtocolError(problem, hint=hint) from None
            reads = sys.stdin
        writes = sys.stderr
        if not _is_tty(writes) and reads is not sys.stdin:  # a log is no place for a question
            writes = stack.enter_context(open("/dev/tty", "w", encoding="utf-8", errors="replace"))  # noqa: PTH123 - no path
        yield reads, writes


def _is_tty(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it was closed
        return False


class _Screen:
    """Lines to and from the user. `ask` and `confirm` raise `_PromptRefused`."""

    def __init__(self, reads: TextIO, writes: TextIO) -> None:
        self._reads = reads
        self._writes = writes
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
        self._bold = ("", "") if plain else ("\x1b[1m", "\x1b[0m")

    def print_line(self, text: str = "") -> None:
        """Print one line of our own; text of others in it has to be escaped."""
        print(text, file=self._writes, flush=True)

    def quote(self, text: str) -> None:
        """Print text of the server, so that it cannot be taken for ours."""
        # A row that the terminal broke by itself would begin as one of ours.
        width = max(shutil.get_terminal_size().columns - len(_QUOTE_PREFIX), 16) // 2  # of two columns each
        shown = text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:MAX_MESSAGE_LENGTH]}…"
        for line in map(_escape_unprintable, shown.splitlines() or [""]):
            for start in range(0, len(line) or 1, width):
                self.print_line(f"{_QUOTE_PREFIX}{line[start : start + width]}")

    def format_bold(self, text: str) -> str:
        """Return a text in bold, escaped."""
        return f"{self._bold[0]}{_escape_unprintable(text)}{self._bold[1]}"

    def ask(self, prompt: str) -> str:
        """Return what the user types."""
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
        """Return what the user types after the question was shown, unless it is no (ELIC-37)."""
        with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
            import termios  # noqa: PLC0415 - not everywhere

            termios.tcflush(self._reads.fileno(), termios.TCIFLUSH)  # discards what was typed before
        typed = self.ask(prompt).lower()
        if typed in {"n", "no"}:
            raise _PromptRefused("decline")
        return typed


def _shorten(text: str) -> str:
    """Shorten and escape text of the server that stands in a line of ours."""
    return _escape_unprintable(text if len(text) <= MAX_LABEL_LENGTH else f"{text[:MAX_LABEL_LENGTH]}…")


def _escape_unprintable(text: str) -> str:
    """Escape everything that a terminal would interpret or a reader would not see."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def _print_introduction(screen: _Screen, params: ElicitParams, wish: str) -> None:
    screen.print_line()
    screen.print_line(f"{screen.format_bold(requesting_server() or 'A server')} {wish}:")
    screen.quote(params.message)


# --------------------------------------------------------------------- forms


def _ask_form(screen: _Screen, params: ElicitParams) -> dict[str, JSON]:
    """Ask for the fields of a form until the user sends it (ELIC-5)."""
    schema = params.requested_schema or {}
    fields = parse_fields(schema)
    needed = frozenset(map(str, as_list(schema.get("required"))))
    _print_introduction(screen, params, "asks")
    screen.print_line(_HELP)
    content: dict[str, JSON] = {}
    for name, field in fields.items():
        _ask_field(screen, content, name, field, required=name in needed)
    while True:
        screen.print_line()
        screen.print_line("Your answer:" if fields else "There is nothing to fill in.")
        for number, (name, field) in enumerate(fields.items(), 1):
            shown = _format_value(field, content[name]) if name in content else "(left out)"
            screen.print_line(f"  {number}. {_format_label(name, field)}: {shown}")
        change = ", a number to change it" if fields else ""
        typed = screen.confirm(f"Send it? [y = yes, n = decline{change}]")
        if _YES_NO_WORDS.get(typed):
            return content
        number = _parse_row_number(typed, len(fields))
        if number is not None:
            name = list(fields)[number]
            _ask_field(screen, content, name, fields[name], required=name in needed)


def _ask_field(
    screen: _Screen, content: dict[str, JSON], name: str, field: Mapping[str, JSON], *, required: bool
) -> None:
    """Ask for one field until the value is valid."""
    screen.print_line()
    screen.print_line(f"{_format_label(name, field)}{'' if required else ' (may be left out)'}")
    if isinstance(field.get("description"), str):
        screen.quote(field["description"])
    choices = _read_choices(field)
    for number, title in enumerate(choices.titles if choices else (), 1):
        screen.print_line(f"  {number}) {_shorten(title)}")
    if "default" in field and find_field_error(field, field["default"]):
        field = {key: value for key, value in field.items() if key != "default"}
    default = f" [{_format_value(field, field['default'])}]" if "default" in field else ""
    while True:
        typed = screen.ask(f"{_describe_input(field, choices)}{default}>")
        if not typed:
            content.pop(name, None)
            if "default" in field:
                content[name] = field["default"]
            if name in content or not required:
                return
            screen.print_line("  This one is needed.")
            continue
        value = _parse_input(field, choices, typed)
        problem = find_field_error(field, value)
        if problem is None:
            content[name] = value
            return
        expected = "is y or n" if field.get("type") == "boolean" else _escape_unprintable(problem)
        screen.print_line(f"  It {expected}.")


def _format_label(name: str, field: Mapping[str, JSON]) -> str:
    title: JSON = field.get("title")
    return _shorten(title if isinstance(title, str) and title else name)


def _read_choices(field: Mapping[str, JSON]) -> Choices | None:
    items: JSON = field.get("items") if field.get("type") == "array" else None
    return parse_choices(cast("dict[str, JSON]", items) if isinstance(items, dict) else field)


def _describe_input(field: Mapping[str, JSON], choices: Choices | None) -> str:
    """Return what to type, in a word or two."""
    if choices is not None:
        return "numbers, with commas between; 0 for none" if field.get("type") == "array" else "number"
    words = {"boolean": "y or n", "integer": "integer", "number": "number", "string": "text", "array": "list"}
    kind: JSON = field.get("type")
    form: JSON = field.get("format")
    return _escape_unprintable(form) if isinstance(form, str) else words.get(str(kind), "text or JSON")


def _format_value(field: Mapping[str, JSON], value: JSON) -> str:
    """Format a value for the user."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    choices = _read_choices(field)
    titles = dict(zip(choices.values, choices.titles, strict=True)) if choices else {}
    many = cast("list[JSON]", value) if isinstance(value, list) else [value]
    words = (titles.get(one, one) if isinstance(one, str) else jsonrpc.encode(one).decode() for one in many)
    return ", ".join(map(_escape_unprintable, words))


def _parse_input(field: Mapping[str, JSON], choices: Choices | None, typed: str) -> JSON:
    """Parse what the user typed; text that cannot be parsed stays text, and fails validation."""
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


def _parse_choice(choices: Choices | None, typed: str) -> str:
    if choices is None:
        return typed
    number = _parse_row_number(typed, len(choices.values))
    if number is not None:
        return choices.values[number]
    return choices.values[choices.titles.index(typed)] if typed in choices.titles else typed


def _parse_row_number(typed: str, rows: int) -> int | None:
    """Return the index of the chosen row; None if it is not a row number."""
    number = int(typed) if typed.isdecimal() and len(typed) <= len(str(rows)) else 0
    return number - 1 if 0 < number <= rows else None


# --------------------------------------------------------------------- URLs


def _ask_to_open_url(screen: _Screen, params: ElicitParams) -> ElicitResult:
    """Show a URL and open it only if the user agrees (ELIC-37)."""
    url = params.url or ""
    _print_introduction(screen, params, "asks you to open a page")
    screen.print_line(f"The whole address: {_escape_unprintable(url)}")
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme, parts.hostname or ""
    except ValueError:
        scheme, host = "", ""
    if scheme not in _WEB_SCHEMES or not host or not url.isprintable() or any(char in url for char in "\\ "):
        # One that can be read in two ways leads elsewhere than we would say.
        screen.print_line("This is not the address of a web page, and is not opened.")
        raise _PromptRefused("decline")
    screen.print_line("It leads to:")
    screen.print_line(f"    {screen.format_bold(host)}")
    for warning in _find_url_warnings(url, scheme, host):
        screen.print_line(f"  Careful: {warning}.")
    screen.print_line("!decline says no, !cancel or Ctrl-D stops.")
    while not _YES_NO_WORDS.get(screen.confirm("Open it in your browser? [y = yes, n = decline]")):
        pass
    import webbrowser  # noqa: PLC0415 - few are ever sent somewhere

    if not webbrowser.open(url):
        screen.print_line("No browser was found: please open the address yourself.")
    return ElicitResult(action="accept")


def _find_url_warnings(url: str, scheme: str, host: str) -> Iterator[str]:
    """Yield what is suspicious about an address (ELIC-39)."""
    if not host.isascii() or any(label.startswith("xn--") for label in host.split(".")):
        yield f"the name may only look like the one that you know ({_encode_host(host)})"
    if "@" in urlsplit(url).netloc:
        yield f"what stands before the @ is not where it leads; {_escape_unprintable(host)} is"
    if scheme == "http" and host not in _LOCAL_HOSTS:
        yield "the connection is not encrypted"


def _encode_host(host: str) -> str:
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return _escape_unprintable(host)
