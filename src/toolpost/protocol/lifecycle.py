"""The handshake of a session: its states, the events between them, and the messages allowed in each.

    server   new ─ initialize received → opening ─ answered → greeted ─ initialized received → ready
    client   new ─ initialize sent ────→ opening ─ answered → ready
    either   opening ─ initialize refused → new;   any state ─ closed → closed

The stateless era has none. `connection` owns the events and their other effects.
"""

from typing import Final, Literal, TypeAlias

from toolpost.errors import ChannelClosed, InvalidRequest, LocalProtocolError
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.methods import CLIENT, EARLY_REQUESTS, INITIALIZE, SERVER, Role
from toolpost.types.base import Struct

LifecycleState: TypeAlias = Literal["new", "opening", "greeted", "ready", "closed"]
LifecycleEvent: TypeAlias = Literal["initialize", "answered", "refused", "initialized"]

_TRANSITIONS: Final[dict[tuple[Role, LifecycleState, LifecycleEvent], LifecycleState]] = {
    (SERVER, "new", INITIALIZE): "opening",
    (SERVER, "opening", "answered"): "greeted",
    (SERVER, "opening", "refused"): "new",
    (SERVER, "greeted", "initialized"): "ready",
    (CLIENT, "new", INITIALIZE): "opening",
    (CLIENT, "opening", "answered"): "ready",
    (CLIENT, "opening", "refused"): "new",
}

_NEXT_STEP_HINTS: Final[dict[tuple[Role, LifecycleState], str]] = {
    (SERVER, "new"): "the client has not sent initialize",
    (SERVER, "opening"): "respond to initialize: reply(id, local_peer.introduce(revision))",
    (SERVER, "greeted"): "the client has not sent notifications/initialized",
    (CLIENT, "new"): "send the request from ERAS[revision.era].open(connection)",
    (CLIENT, "opening"): "the server has not responded to initialize",
}


class Lifecycle(Struct, gc=False):
    """The state of the handshake of a session."""

    role: Role
    state: LifecycleState = "new"

    def move(self, event: LifecycleEvent) -> bool:
        """Move to the next state; return False, and change nothing, if the event is not for this one."""
        target = _TRANSITIONS.get((self.role, self.state, event))
        if target is None:
            return False
        self.state = target
        return True

    def check_incoming(self, method: str) -> None:
        """Raise InvalidRequest if the peer must not send this request now."""
        if self.state in {"greeted", "ready"} and (method != INITIALIZE or self.role == SERVER):
            return  # over HTTP, a request can overtake `initialized`; a proxy initializes for each client
        why = self._explain_refusal(method)
        if why:
            raise InvalidRequest(f"Invalid request: {why}")

    def check_outgoing(self, method: str) -> None:
        """Raise ChannelClosed or LocalProtocolError if we must not send this now."""
        if self.state == "closed":
            raise ChannelClosed("the connection is closed", sent=False)
        why = self._explain_refusal(method)
        if why:
            raise LocalProtocolError(why, hint=_NEXT_STEP_HINTS.get((self.role, self.state)))

    def _explain_refusal(self, method: str) -> str | None:
        if self.state == "closed":
            return "the connection is closed"
        if self.state == "ready":
            return "the session is already initialized" if method == INITIALIZE else None
        if method == INITIALIZE:
            return None if self.state == "new" else "the session is already being initialized"
        if method in EARLY_REQUESTS:
            return None
        return f"{shorten(method)} is not allowed before the session is initialized"
