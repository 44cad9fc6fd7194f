"""What belongs to whom within a server: notices, what was chosen for a session, and the room for sessions."""

from hosted import run
from toolpost.stores.memory import MemoryStore
from toolpost.transports.http_kept import Kept
from toolpost.transports.http_load import Load
from toolpost.transports.http_session import Post, Session
from toolpost.types.base import Raw


def test_a_session_is_busy_before_its_call_has_begun():
    async def main() -> None:
        store = MemoryStore()
        session = Session("s", "", store, Kept(store.logs), Load())
        assert not session.busy
        session.deliver(Post(Raw(b"{}"), "1", (1, 2), {}))
        assert session.busy
        await session.receive()
        assert session.busy
        for each in (1, 2):
            await session.drop(each)
        assert not session.busy

    run(main)
