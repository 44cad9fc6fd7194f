"""Optional features of a channel, one Protocol each; a client uses those that a channel has.

Knows no transport. What a callback gets is told as it happens; without the callback it is logged.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

from toolpost.errors import AuthError, TransportError
from toolpost.protocol.events import OutboundRequest
from toolpost.protocol.framing import OversizedLine
from toolpost.protocol.jsonrpc import JSONRPCMessage
from toolpost.types.base import RequestId

HeaderParameterLookup: TypeAlias = Callable[[str], Mapping[str, tuple[str, ...]] | None]
"""Returns the parameters of a tool that headers repeat, header → path; None if the tool is unknown."""


@runtime_checkable
class SupportsRequests(Protocol):
    """A channel that takes requests as records, so that it need not parse what was just encoded."""

    def send_request(self, outgoing: OutboundRequest, /) -> bool:
        """Take a request; False if that needs waiting, and `send` has to do it."""
        ...


@runtime_checkable
class SupportsMessageCallback(Protocol):
    """A channel that pushes messages, so that no task has to wake up for them; `receive` gives the end."""

    def on_message(self, tell: Callable[[bytes | JSONRPCMessage], object], /) -> None:
        """Pass each message to `tell` from now on: its bytes, or the decoded message."""


@runtime_checkable
class SupportsOversizeCallback(Protocol):
    """A channel that drops messages over a limit."""

    def on_oversized(self, tell: Callable[[OversizedLine], object], /) -> None:
        """Pass each dropped message to `tell`."""


@runtime_checkable
class SupportsLostCallback(Protocol):
    """A channel that can lose one request and keep the others."""

    def on_request_lost(self, tell: Callable[[RequestId, TransportError | AuthError], object], /) -> None:
        """Pass each request to `tell` whose answer cannot come any more."""


@runtime_checkable
class SupportsLoginCallback(Protocol):
    """A channel whose requests may have to wait for a user who logs in."""

    def on_login_pending(self, tell: Callable[[bool], object], /) -> None:
        """Call `tell` when requests begin to wait, and when none does any more."""


@runtime_checkable
class SupportsParameterHeaders(Protocol):
    """A channel that repeats some arguments of tools in headers."""

    find_header_parameters: HeaderParameterLookup


@runtime_checkable
class SupportsStderrHint(Protocol):
    """A channel to a process; the hint says where its stderr goes, None if the user sees it."""

    stderr_hint: str | None


@runtime_checkable
class SupportsEarlyExitHint(Protocol):
    """A channel that may have a hint for an end that came too early."""

    early_exit_hint: str | None


@runtime_checkable
class SupportsProcessStatus(Protocol):
    """A channel to a process: its exit code, None while it runs, and the last lines of its stderr."""

    returncode: int | None
    stderr_tail: tuple[str, ...]
