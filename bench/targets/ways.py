"""The ways to ask an ASGI application without a socket: what is called, in which era, and of which server.

A table that the bench and the programs in `targets` share. Stands alone, because programs in the environments
of others import it.
"""

from typing import Final, NamedTuple

__all__ = ["WAYS", "Way"]


class Way(NamedTuple):
    """One way.

    Args:
        title: what it is, for a reader.
        asked: the request, by its name in `wire.ASKS`.
        era: stateless, or session.
        mode: how a server that has to be told answers: json, or sse.
        switch: what the server has switched on: nothing, "token" or "middleware".
        ordinary: whether each request has headers and a progress token of its own, as those of clients have.
    """

    title: str
    asked: str
    era: str
    mode: str = "json"
    switch: str = ""
    ordinary: bool = True

    @property
    def stateless(self) -> bool:
        """Whether it is of the stateless era."""
        return self.era == "stateless"


def _ways(era: str) -> dict[str, Way]:
    """The ways that both eras have, but for the tool without a context."""
    awaits = f"{era}, tool with context that awaits once"
    return {
        f"{era}-context": Way(awaits, "wait", era),
        f"{era}-token": Way(f"{awaits}, bearer token", "wait", era, switch="token"),
        f"{era}-middleware": Way(f"{awaits}, one middleware", "wait", era, switch="middleware"),
        f"{era}-progress-1": Way(
            f"{era}, one progress notification, then the result (SSE)", "one", era, "sse"
        ),
        f"{era}-progress-10": Way(f"{era}, ten progress notifications (SSE)", "ten", era, "sse"),
    }


_CONSTANT: Final = "stateless, tool without context, constant headers"
WAYS: Final = {
    "stateless-constant": Way(_CONSTANT, "add", "stateless", ordinary=False),
    "stateless": Way("stateless, tool without context", "add", "stateless"),
    **_ways("stateless"),
    "session": Way("session, tool without context", "add", "session"),
    **_ways("session"),
}
