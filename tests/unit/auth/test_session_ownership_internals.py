"""What belongs to whom within a server: notices, what was chosen for a session, and the room for sessions."""

from hosted import run
from toolpost.server.http.capacity import FinishedStreams, RequestCounts
from toolpost.server.http.session import HttpSession, SessionPost
from toolpost.stores.memory import MemoryStore
from toolpost.types.base import Raw


def test_a_session_is_busy_before_its_call_has_begun():
    async def main() -> None:
        store = MemoryStore()
        session = HttpSession("s", "", store, FinishedStreams(store.logs), RequestCounts())
        assert not session.is_busy
        session.deliver(SessionPost(Raw(b"{}"), "1", (1, 2), {}))
        assert session.is_busy
        await session.receive()
        assert session.is_busy
        for each in (1, 2):
            await session.drop(each)
        assert not session.is_busy

    run(main)
