"""The handshake as a table: every role in every state, with every event and every method."""

from itertools import product
from typing import get_args

import pytest

from toolpost.errors import ChannelClosed, InvalidRequest, LocalProtocolError
from toolpost.protocol.lifecycle import Lifecycle, LifecycleEvent, LifecycleState
from toolpost.protocol.methods import CLIENT, ROWS, SERVER

ROLES = (CLIENT, SERVER)
STATES: tuple[LifecycleState, ...] = get_args(LifecycleState)
EVENTS: tuple[LifecycleEvent, ...] = get_args(LifecycleEvent)
REQUESTS = [row.name for row in ROWS if row.result is not None]

# role, state, event → state; everything else changes nothing
MOVES = {
    ("client", "new", "initialize"): "opening",
    ("client", "opening", "answered"): "ready",
    ("client", "opening", "refused"): "new",
    ("server", "new", "initialize"): "opening",
    ("server", "opening", "answered"): "greeted",
    ("server", "opening", "refused"): "new",
    ("server", "greeted", "initialized"): "ready",
}

# state, method → whether it may be asked; the same for what we ask and what we are asked
ASKED = {
    (state, method): (state == "ready" and method != "initialize")
    or (state in {"new", "opening", "greeted"} and method == "ping")
    or (state == "new" and method == "initialize")
    for state in STATES
    for method in REQUESTS
}


def test_a_session_begins_new():
    assert Lifecycle(CLIENT).state == "new"


@pytest.mark.parametrize(("role", "state", "event"), list(product(ROLES, STATES, EVENTS)))
def test_an_event_moves_on_or_changes_nothing(role, state, event):
    lifecycle = Lifecycle(role, state)
    target = MOVES.get((role, state, event))
    assert lifecycle.move(event) is (target is not None)
    assert lifecycle.state == (target or state)


@pytest.mark.requirement("LIFE-1", "LIFE-5", "LIFE-6")
@pytest.mark.parametrize(("role", "state", "method"), list(product(ROLES, STATES, REQUESTS)))
def test_nothing_but_ping_is_asked_before_the_handshake_is_complete(role, state, method):
    lifecycle = Lifecycle(role, state)
    again = role == SERVER and state in {"greeted", "ready"} and method == "initialize"
    if ASKED[state, method] or (state == "greeted" and method != "initialize") or again:
        lifecycle.check_incoming(method)  # the client may send requests, and we may not yet
    else:
        with pytest.raises(InvalidRequest):
            lifecycle.check_incoming(method)
    if ASKED[state, method]:
        lifecycle.check_outgoing(method)
        return
    with pytest.raises(ChannelClosed if state == "closed" else LocalProtocolError):
        lifecycle.check_outgoing(method)


@pytest.mark.parametrize(
    ("state", "method", "why"),
    [
        ("new", "tools/list", "tools/list is not allowed before the session is initialized"),
        ("opening", "tools/list", "tools/list is not allowed before the session is initialized"),
        ("opening", "initialize", "the session is already being initialized"),
    ],
)
def test_a_refusal_says_why(state: LifecycleState, method, why):
    lifecycle = Lifecycle(SERVER, state)
    with pytest.raises(InvalidRequest) as refused:
        lifecycle.check_incoming(method)
    assert refused.value.message == f"Invalid request: {why}"
    with pytest.raises(LocalProtocolError) as forbidden:
        lifecycle.check_outgoing(method)
    assert forbidden.value.message == why


def test_a_request_on_a_closed_connection_was_not_sent():
    with pytest.raises(ChannelClosed) as closed:
        Lifecycle(CLIENT, "closed").check_outgoing("ping")
    assert closed.value.sent is False
    assert closed.value.retry_safe is True


@pytest.mark.parametrize("method", ["ping", "initialize", "tools/list"])
def test_a_refusal_of_a_closed_connection_does_not_ask_to_wait(method):
    with pytest.raises(InvalidRequest, match="closed"):
        Lifecycle(SERVER, "closed").check_incoming(method)
