"""What a caller hands in, looked at before anything is sent, so that an error names the argument.

Owns the checks that a type checker would make, for those who run none. Knows nothing of what is done with a
value afterwards.

PART patience: How long a client waits, and who hears of it in the meantime.

Owns the numbers that a user gives and what they come to for one request. Waits for nothing itself.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from toolpost.client.connection.incoming import CallbackThreads
from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.status import StateCallback
from toolpost.errors import LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.types.base import JSON, UNSET, Raw, Unset
from toolpost.types.notifications import LogParams, ProgressParams
from toolpost.types.prompts import Prompt, PromptReference, Reference, ResourceReference
from toolpost.types.resources import ResourceTemplate


def check_seconds(what: str, value: Any) -> None:
    """Return if a value can be a time-out: None, or a number of seconds that has a future.

    Raises:
        TypeError: it is no number.
        ValueError: it is not more than 0.
    """
    if value is None:
        return
    if not isinstance(value, int | float):
        raise TypeError(f"{what}: a number of seconds or None, not {value!r}")
    if not value > 0:
        raise ValueError(f"{what}: more than 0 seconds, not {value!r}")


def check_mapping(what: str, value: Any) -> dict[str, Any]:
    """A mapping from names to values as a dict; empty for None.

    Raises:
        TypeError: it is no mapping, or a key of it is no name.
    """
    if value is None:
        return {}
    # Nearly all are plain dicts; to ask the abstract class takes four times as long.
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(
            f'{what}: a mapping of names to values, such as {{"name": value}}, not a {type(value).__name__}'
        )
    plain: dict[Any, Any] = {**value}
    for key in plain:
        if not isinstance(key, str):
            raise TypeError(f"{what}: names are strings, not {key!r}")
    return plain


def encode_arguments(tool: str, arguments: Any) -> Raw:
    """The arguments of a tool as JSON.

    Raises:
        TypeError: they are no mapping.
        LocalProtocolError: one of them cannot be written as JSON.
    """
    plain: Any = arguments
    if type(arguments) is not dict:  # as nearly all are, and need no copy
        plain = check_mapping("arguments", arguments)
    for key in plain:
        if type(key) is not str:
            plain = check_mapping("arguments", plain)  # which says what is wrong with it
            break
    try:
        return Raw(jsonrpc.encode(plain))
    except LocalProtocolError as error:
        guilty = ", ".join(repr(key) for key, value in plain.items() if not _is_encodable({key: value}))
        raise LocalProtocolError(f"tool {tool!r}, argument {guilty}: {error.message}") from error


def _is_encodable(value: JSON) -> bool:
    try:
        jsonrpc.encode(value)
    except LocalProtocolError:
        return False
    return True


def make_reference(ref: JSON) -> Reference:
    """What a completion belongs to, from what a person may write.

    Raises:
        TypeError: it is neither a prompt nor a template.
        ValueError: a string may be the name of the one or the URI of the other.
    """
    if isinstance(ref, PromptReference | ResourceReference):
        return ref
    if isinstance(ref, Prompt):
        return PromptReference(name=ref.name)
    if isinstance(ref, ResourceTemplate):
        return ResourceReference(uri=ref.uri_template)
    if not isinstance(ref, str):
        raise TypeError(
            f"ref: a prompt, a resource template, a reference or a string, not a {type(ref).__name__}"
        )
    if "{" in ref or "://" in ref:
        return ResourceReference(uri=ref)
    if ":" in ref:
        raise ValueError(
            f"ref: {ref!r} may be a prompt or a template: "
            f"give PromptReference(name={ref!r}) or ResourceReference(uri={ref!r})"
        )
    return PromptReference(name=ref)


# --------------------------------------------------------------------- patience

DEFAULT_MAX_TIMEOUT: Final = 300.0
"""How long a request with progress may take, unless the user says something else: five minutes of work."""

ProgressCallback: TypeAlias = Callable[[ProgressParams], object]
LogCallback: TypeAlias = Callable[[LogParams], object]
NotificationCallback: TypeAlias = Callable[[str, Any], object]
"""Is given the method and the params: typed where the method is one of the protocol, else a dict."""


class EventCallbacks(NamedTuple):
    """Who hears what the server says without being asked."""

    log: LogCallback | None = None
    progress: ProgressCallback | None = None
    notification: NotificationCallback | None = None
    state: StateCallback | None = None


class ClientTimeouts(NamedTuple):
    """How many seconds to wait: for an answer, one with progress, a connection, a probe, a sign of life."""

    timeout: float | None
    max_timeout: float | Unset | None
    connect_timeout: float | None
    probe_timeout: float
    heartbeat: float | None = None

    def check(self) -> None:
        """Return if all of them are numbers of seconds.

        Raises:
            TypeError: one is no number.
            ValueError: one is not more than 0.
        """
        for what, seconds in self._asdict().items():
            check_seconds(what, None if seconds is UNSET else seconds)

    @property
    def effective_probe_timeout(self) -> float:
        """How long a probe may take: it must leave time for the handshake."""
        wait = self.connect_timeout
        return self.probe_timeout if wait is None else min(self.probe_timeout, wait / 2)

    def make_limits(
        self,
        timeout: float | None,
        progress: ProgressCallback | None,
        crew: CallbackThreads,
        *,
        extendable: bool,
    ) -> CallLimits:
        """What a caller's time-out and progress callback come to."""
        check_seconds("timeout", timeout)
        wait = self.timeout if timeout is None else timeout
        cap = self.max_timeout
        if cap is UNSET:
            cap = DEFAULT_MAX_TIMEOUT  # None waits for ever, unless the user has set a cap
        elif wait is None:
            wait = cap
        if wait is not None and cap is not None:
            cap = max(wait, cap)
        return CallLimits(
            timeout=None if wait == inf else wait,
            cap=cap,
            progress=None if progress is None else partial(crew.run, progress),
            extendable=extendable,
        )
