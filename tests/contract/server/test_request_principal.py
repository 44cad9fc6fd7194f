"""On whose behalf a request speaks is settled when it begins, and stays so when it has ended."""

from typing import Any

from toolpost import Context, Principal, Server


class Forgetful:
    """A conversation that knows a request's own principal only as long as the request waits."""

    def __init__(self) -> None:
        self.known = Principal("ann", scopes=frozenset({"read"}))
        self.connection: Any = Server("s").create_connection()

    def principal_of(self, _: Any) -> Principal:
        return self.known


def test_a_request_that_was_cancelled_has_no_more_scopes_than_before():
    speaker: Any = Forgetful()
    context = Context(Server("s"), speaker, "tools/call")
    speaker.known = Principal("ann", scopes=frozenset({"admin"}))  # of whoever has opened the session
    assert context.principal == Principal("ann", scopes=frozenset({"read"}))
