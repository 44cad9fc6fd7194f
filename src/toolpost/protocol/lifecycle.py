"""The handshake of the session era, as a table: which event leads where, what may be asked when.

    server   new ─ initialize received → opening ─ answered → greeted ─ initialized received → ready
    client   new ─ initialize sent ────→ opening ─ answered → ready
    either   opening ─ initialize refused → new;   any state ─ closed → closed

Knows no message but by name; the stateless era has no lifecycle and never comes here.
"""

from typing import Final, Literal, TypeAlias

from toolpost.errors import ChannelClosed, InvalidRequest, LocalProtocolError
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.methods import CLIENT, SERVER, Role

__all__ = ["Lifecycle", "LifecycleEvent", "LifecycleState"]

LifecycleState: TypeAlias = Literal["new", "opening", "greeted", "ready", "closed"]
LifecycleEvent: TypeAlias = Literal["initialize", "answered", "refused", "initialized"]

_TRANSITIONS: Final[dict[tuple[Role, LifecycleState, LifecycleEvent], LifecycleState]] = {
    (SERVER, "new", "initialize"): "opening",
    (SERVER, "opening", "answered"): "greeted",
    (SERVER, "opening", "refused"): "new",
    (SERVER, "greeted", "initialized"): "ready",
    (CLIENT, "new", "initialize"): "opening",
    (CLIENT, "opening", "answered"): "ready",
    (CLIENT, "opening", "refused"): "new",
}

# Before the handshake is complete nothing but ping may be asked (LIFE-5, LIFE-6).
_EARLY_REQUESTS: Final[dict[LifecycleState, frozenset[str]]] = {
    "new": frozenset({"initialize", "ping"}),
    "opening": frozenset({"ping"}),
    "greeted": frozenset({"ping"}),
}

_STATES_OPEN_TO_PEER: Final = frozenset({"greeted", "ready"})
"""Where a peer may ask anything. Who has the answer to its `initialize` may: over HTTP what it asks next can
overtake its `initialized`."""

_NEXT_STEP_HINTS: Final[dict[tuple[Role, LifecycleState], str]] = {
    (SERVER, "new"): "the client has not sent initialize",
    (SERVER, "opening"): "answer initialize: reply(id, party.introduce(revision))",
    (SERVER, "greeted"): "the client has not sent notifications/initialized",
    (CLIENT, "new"): "send what ERAS[revision.era].open(connection) returns",
    (CLIENT, "opening"): "the server has not answered initialize",
}


class Lifecycle:
    """Where a session stands."""

    __slots__ = ("role", "state")

    def __init__(self, role: Role, state: LifecycleState = "new") -> None:
        self.role: Role = role
        self.state: LifecycleState = state

    def move(self, event: LifecycleEvent) -> bool:
        """Go on to the next state; False, and no change, if the event means nothing in this one."""
        target = _TRANSITIONS.get((self.role, self.state, event))
        if target is None:
            return False
        self.state = target
        return True

    def check_incoming(self, method: str) -> None:
        """Accept that the peer asks this now.

        Raises:
            InvalidRequest: the peer may not.
        """
        if self.state in _STATES_OPEN_TO_PEER and method != "initialize":
            return
        why = self._explain_refusal(method)
        if why:
            raise InvalidRequest(f"Invalid request: {why}")

    def check_outgoing(self, method: str) -> None:
        """Accept that we ask this now.

        Raises:
            ChannelClosed: the conversation is over.
            LocalProtocolError: the handshake is not complete.
        """
        if self.state == "closed":
            raise ChannelClosed("the connection is closed", sent=False)
        why = self._explain_refusal(method)
        if why:
            raise LocalProtocolError(why, hint=_NEXT_STEP_HINTS.get((self.role, self.state)))

    def _explain_refusal(self, method: str) -> str | None:
        if self.state == "closed":
            return "the connection is closed"
        if self.state == "ready":
            return "the session is initialized already" if method == "initialize" else None
        if method in _EARLY_REQUESTS.get(self.state, ()):
            return None
        if method == "initialize":
            return "the session is being initialized already"
        return f"{shorten(method)} has to wait until the session is initialized"
