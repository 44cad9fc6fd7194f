"""The options of a client with their defaults, and the checks of arguments.

Errors name the argument. `session`, `retry` and `callbacks` implement the options.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.status import StateCallback
from toolpost.errors import LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.threads import ThreadPool
from toolpost.types.base import JSON, UNSET, Raw, Unset
from toolpost.types.notifications import LogParams, ProgressParams
from toolpost.types.prompts import Prompt, PromptReference, Reference, ResourceReference
from toolpost.types.resources import ResourceTemplate


def check_seconds(name: str, value: Any) -> None:
    """Check that a value is None or a positive number of seconds."""
    if value is None:
        return
    if not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {value!r}")
    if not value > 0:
        raise ValueError(f"{name} must be more than 0 seconds, not {value!r}")


def check_mapping(name: str, value: Any) -> dict[str, Any]:
    """Return a mapping of names to values as a dict, empty for None. Raises `TypeError` for anything else."""
    if value is None:
        return {}
    # Nearly all are plain dicts, and the abstract class is slow to ask.
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f'{name} must be a mapping, such as {{"name": value}}, not {type(value).__name__}')
    plain: dict[Any, Any] = {**value}
    for key in plain:
        if not isinstance(key, str):
            raise TypeError(f"{name}: names must be strings, not {key!r}")
    return plain


def check_texts(name: str, value: Any) -> dict[str, str]:
    """Return a mapping of names to strings as a dict. Raises `TypeError` that names the first other value."""
    plain = check_mapping(name, value)
    for key, text in plain.items():
        if not isinstance(text, str):
            raise TypeError(f"{name}[{key!r}] must be a string, not {type(text).__name__}")
    return plain


def encode_arguments(tool: str, arguments: Any) -> Raw:
    """Encode the arguments of a tool as JSON. Raises `LocalProtocolError` naming the one that cannot be."""
    plain: Any = arguments
    if type(arguments) is not dict:  # as nearly all are, and need no copy
        plain = check_mapping("arguments", arguments)
    for key in plain:
        if type(key) is not str:
            plain = check_mapping("arguments", plain)  # raises an error that names the key
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
    """Return the reference that a completion belongs to. An ambiguous string is a `ValueError`."""
    if isinstance(ref, PromptReference | ResourceReference):
        return ref
    if isinstance(ref, Prompt):
        return PromptReference(name=ref.name)
    if isinstance(ref, ResourceTemplate):
        return ResourceReference(uri=ref.uri_template)
    if not isinstance(ref, str):
        raise TypeError(
            f"ref must be a prompt, a resource template, a reference or a string, not {type(ref).__name__}"
        )
    if "{" in ref or "://" in ref:
        return ResourceReference(uri=ref)
    if ":" in ref:
        raise ValueError(
            f"ref {ref!r} may be a prompt or a template: "
            f"pass PromptReference(name={ref!r}) or ResourceReference(uri={ref!r})"
        )
    return PromptReference(name=ref)


# --------------------------------------------------------------------- options

DEFAULT_MAX_TIMEOUT: Final = 300.0  # seconds for a request with progress in all, without `max_timeout`

ProgressCallback: TypeAlias = Callable[[ProgressParams], object]
LogCallback: TypeAlias = Callable[[LogParams], object]
NotificationCallback: TypeAlias = Callable[[str, Any], object]
"""Receives the method and the params: typed where the method is one of the protocol, else a dict."""


class EventCallbacks(NamedTuple):
    """Callbacks for unsolicited messages of the server, and for the state of the connection."""

    log: LogCallback | None = None
    progress: ProgressCallback | None = None
    notification: NotificationCallback | None = None
    state: StateCallback | None = None


@dataclass(frozen=True)
class ClientOptions:
    """The tunable options of a client. All times are in seconds."""

    timeout: float | None = 60.0  # for an answer; progress restarts it; None waits without limit
    max_timeout: float | Unset | None = UNSET  # in all; `DEFAULT_MAX_TIMEOUT` if unset, None for no limit
    connect_timeout: float | None = 30.0  # for opening a connection, negotiation included
    probe_timeout: float = 5.0  # for the answer to the first request, which old servers may not send
    heartbeat: float | None = None  # between two pings; None sends none
    retries: int = 2  # how often a request that was lost is sent again
    strict: bool = False  # whether an item of a list that cannot be decoded is an error, not left out
    cache: bool = True  # whether to cache lists and resources as long as a stateless server allows

    def __post_init__(self) -> None:
        for name in ("timeout", "max_timeout", "connect_timeout", "probe_timeout", "heartbeat"):
            seconds = getattr(self, name)
            check_seconds(name, None if seconds is UNSET else seconds)
        if not isinstance(self.retries, int) or self.retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - users err
            raise ValueError(f"retries must be 0 or more, not {self.retries!r}")

    @property
    def effective_probe_timeout(self) -> float:
        """The timeout of the probe, shortened where that is needed to leave time for the handshake."""
        wait = self.connect_timeout
        return self.probe_timeout if wait is None else min(self.probe_timeout, wait / 2)

    def make_limits(
        self,
        timeout: float | None,
        progress: ProgressCallback | None,
        threads: ThreadPool,
        *,
        extendable: bool,
    ) -> CallLimits:
        """Return the limits of a request with this timeout and progress callback."""
        check_seconds("timeout", timeout)
        wait = self.timeout if timeout is None else timeout
        cap = self.max_timeout
        if cap is UNSET:
            cap = DEFAULT_MAX_TIMEOUT  # a timeout of None is not capped by this
        elif timeout is None and cap is not None:
            wait = cap if wait is None else min(wait, cap)
        if wait is not None and cap is not None:  # only the timeout of one call exceeds a cap of the user
            cap = max(wait, cap)
        return CallLimits(
            timeout=None if wait == inf else wait,
            cap=cap,
            progress=None if progress is None else partial(threads.call_function, progress),
            extendable=extendable,
        )
