"""Which session makes room for another: told by its owner, and by when it was used."""

import pytest

from toolpost.server.http.capacity import PRINCIPAL_SHARE, SessionLimit, TooManySessions


class Held:
    """A session, as far as room is concerned."""

    def __init__(self, name: str, owner: str = "", *, busy: bool = False) -> None:
        self.id = name
        self.owner = owner
        self.is_busy = busy


def filled(most: int, *sessions: Held) -> SessionLimit:
    room = SessionLimit(most)
    for session in sessions:
        room.add(session)
    return room


def test_as_long_as_there_is_room_nobody_makes_any():
    room = filled(2, Held("a"))
    assert room.find_session_to_evict("") is None
    assert room.find_session_to_evict("ann") is None


@pytest.mark.parametrize("owner", ["", "ann"])
def test_the_one_that_was_used_last_goes_last(owner):
    first, second = Held("1", owner), Held("2", owner)
    room = filled(2, first, second)
    assert room.find_session_to_evict(owner) == "1"
    room.use(first)
    assert room.find_session_to_evict(owner) == "2"
    room.remove(second)
    room.add(Held("3", owner))
    assert room.find_session_to_evict(owner) == "1"


def test_a_share_is_a_part_of_all_and_never_nothing():
    ten = [Held(str(n), "ann") for n in range(3)]
    assert filled(2 * PRINCIPAL_SHARE + 1, *ten[:2]).find_session_to_evict("ann") is None
    assert filled(2 * PRINCIPAL_SHARE + 1, *ten).find_session_to_evict("ann") == "0"
    assert filled(1).find_session_to_evict("ann") is None


@pytest.mark.parametrize(
    ("held", "owner", "goes"),
    [
        # Who has any makes room for themselves, though others were idle for longer.
        ([("1", "bob", False), ("2", "ann", False), ("3", "", False)], "ann", "2"),
        ([("1", "bob", False), ("2", "ann", False), ("3", "", False)], "", "3"),
        # Who has none gets the room of whoever was idle for longest.
        ([("1", "bob", True), ("2", "carl", False), ("3", "", False)], "ann", "2"),
        ([("1", "bob", True), ("2", "carl", False), ("3", "ann", True)], "", "2"),
    ],
)
def test_who_makes_room_when_all_is_full(held, owner, goes):
    room = filled(3, *(Held(name, whose, busy=busy) for name, whose, busy in held))
    assert room.find_session_to_evict(owner) == goes


@pytest.mark.parametrize(
    ("most", "held", "owner", "own"),
    [
        (8, [("1", "bob", False), ("2", "ann", True), ("3", "ann", True)], "ann", True),
        (3, [("1", "bob", True), ("2", "carl", True), ("3", "", True)], "ann", False),
        (1, [("1", "bob", True)], "", False),
        (3, [("1", "bob", True), ("2", "", True), ("3", "", True)], "", False),
    ],
)
def test_a_call_is_cut_off_for_nobody_else(most, held, owner, own):
    room = filled(most, *(Held(name, whose, busy=busy) for name, whose, busy in held))
    with pytest.raises(TooManySessions) as crowded:
        room.find_session_to_evict(owner)
    assert crowded.value.own is own


def test_nothing_stays_of_those_who_have_gone():
    session = Held("1", "ann")
    room = filled(1, session)
    room.remove(session)
    assert (room._all, room._owned) == ({}, {})
