"""The ways to call an ASGI application without a socket: request, era and options of the server.

A table that the bench and the programs in `targets` share. Imports no other package, because programs in the
environments of other libraries import it.
"""

from typing import Final, NamedTuple

__all__ = ["WAYS", "Way"]


class Way(NamedTuple):
    """One way.

    Args:
        title: its description.
        request: its name in `wire.ASKS`.
        era: stateless, or session.
        mode: the response format of a server with an option for it: json, or sse.
        switch: the option of the server: none, "token" or "middleware".
        ordinary: whether each request has its own headers and progress token, as those of clients have.
    """

    title: str
    request: str
    era: str
    mode: str = "json"
    switch: str = ""
    ordinary: bool = True

    @property
    def stateless(self) -> bool:
        """Whether it is in the stateless era."""
        return self.era == "stateless"


def _ways(era: str) -> dict[str, Way]:
    """Return the ways of one era, except for the tool without a context."""
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
