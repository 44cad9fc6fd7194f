"""How a server says no to credentials: the status, and the challenge that tells a client what to do.

Owns the words of `WWW-Authenticate` that go out (RFC 6750 §3, RFC 9449 §7.1, RFC 9728 §5.1). The peer is told
what kind of thing is wrong and never which check failed; `why` is for the log, and never holds a credential.
"""

from collections.abc import Iterable
from time import monotonic
from typing import Final

__all__ = ["AccessDenied", "LogThrottle", "encode_challenge"]

LOG_INTERVAL: Final = 60.0
"""Seconds for which a reason is not told again: whoever sends bad tokens must not fill the log."""

MAX_LOGGED_REASONS: Final = 16
"""Reasons that are told in that time: there are not many more, unless a verifier makes them up."""

_QUOTE_ESCAPES: Final = str.maketrans({'"': r"\"", "\\": r"\\"})


class AccessDenied(Exception):
    """A request goes no further.

    Args:
        status: of HTTP.
        message: for the peer.
        headers: to answer with.
        why: for the log, if anything is worth logging.
    """

    def __init__(
        self, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = (), why: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)
        self.why = why


class LogThrottle:
    """Why requests were refused of late, so that each reason is told once in a while.

    A reason is what stands before the first colon; what follows is about the one request.
    """

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}

    def should_log(self, why: str) -> bool:
        """Whether this one was not told of late."""
        now, reason = monotonic(), why.partition(":")[0]
        if now < self._quiet_until.get(reason, now):
            return False
        self._quiet_until = {each: until for each, until in self._quiet_until.items() if now < until}
        if len(self._quiet_until) >= MAX_LOGGED_REASONS:
            return False
        self._quiet_until[reason] = now + LOG_INTERVAL
        return True


def encode_challenge(scheme: str, **parameters: str | None) -> tuple[bytes, bytes]:
    """The header that challenges a client; parameters that are None or empty are left out."""
    told = ", ".join(
        f'{name}="{value.translate(_QUOTE_ESCAPES)}"' for name, value in parameters.items() if value
    )
    return b"www-authenticate", f"{scheme} {told}".rstrip().encode("latin-1", "replace")
