"""Optional methods of a channel, one Protocol each; a client uses those that a channel has.

Owns their names and meaning. Knows no transport.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

from toolpost.errors import AuthError, TransportError
from toolpost.protocol.events import OutboundRequest
from toolpost.protocol.framing import OversizedLine
from toolpost.protocol.jsonrpc import JSONRPCMessage
from toolpost.types.base import RequestId

HeaderParameterLookup: TypeAlias = Callable[[str], Mapping[str, tuple[str, ...]] | None]
"""Tells the parameters of a tool that are mirrored in headers: header → path. None if the tool is unknown."""


@runtime_checkable
class SupportsRequests(Protocol):
    """A channel that takes requests as records, without waiting: it need not parse what was just encoded."""

    def send_request(self, outgoing: OutboundRequest, /) -> bool:
        """Take a request; False if that needs waiting, and `send` has to do it."""
        ...


@runtime_checkable
class SupportsMessageCallback(Protocol):
    """A channel that tells each message as it arrives, so that no task has to be woken to come for it.

    What arrived before somebody listens, and why it ends, is still to be had from `receive`.
    """

    def on_message(self, tell: Callable[[bytes | JSONRPCMessage], object], /) -> None:
        """Have each message told from now on: its bytes, or what they were read as."""
        ...


@runtime_checkable
class SupportsOversizeCallback(Protocol):
    """A channel that drops messages over a limit, and tells whoever wants to know."""

    def on_oversized(self, tell: Callable[[OversizedLine], object], /) -> None:
        """Have each message told that was dropped."""
        ...


@runtime_checkable
class SupportsLostCallback(Protocol):
    """A channel that can lose one request and keep the others; it tells which, and why."""

    def on_request_lost(self, tell: Callable[[RequestId, TransportError | AuthError], object], /) -> None:
        """Have each request told whose answer cannot come any more."""
        ...


@runtime_checkable
class SupportsLoginCallback(Protocol):
    """A channel whose requests may have to wait for a person who logs in; it tells when they do."""

    def on_login_pending(self, tell: Callable[[bool], object], /) -> None:
        """Have it told when requests begin to wait, and when none does any more."""
        ...


@runtime_checkable
class SupportsParameterHeaders(Protocol):
    """A channel that repeats some arguments of tools in headers, if it is told which."""

    find_header_parameters: HeaderParameterLookup


@runtime_checkable
class SupportsStderrHint(Protocol):
    """A channel whose server says more than goes over it, and maybe nobody hears that."""

    @property
    def stderr_hint(self) -> str | None:
        """Where to find it; None if somebody hears it."""
        ...


@runtime_checkable
class SupportsEarlyExitHint(Protocol):
    """A channel that may know what to do about an end that came too early."""

    @property
    def early_exit_hint(self) -> str | None:
        """A hint for people; None if there is none."""
        ...


@runtime_checkable
class SupportsProcessStatus(Protocol):
    """A channel to a process, which may have told on its stderr what it is busy with."""

    @property
    def returncode(self) -> int | None:
        """How it has ended; None while it runs."""
        ...

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of its stderr."""
        ...
