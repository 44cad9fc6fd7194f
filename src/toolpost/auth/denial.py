"""How a server says no to credentials: the status, and the challenge that tells a client what to do.

Owns the words of `WWW-Authenticate` that go out (RFC 6750 §3, RFC 9449 §7.1, RFC 9728 §5.1). The peer is told
what kind of thing is wrong and never which check failed; `why` is for the log, and never holds a credential.
"""

from collections.abc import Iterable
from typing import Final

__all__ = ["Denial", "challenge"]

_QUOTED: Final = str.maketrans({'"': r"\"", "\\": r"\\"})


class Denial(Exception):
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


def challenge(scheme: str, **parameters: str | None) -> tuple[bytes, bytes]:
    """The header that challenges a client; parameters that are None or empty are left out."""
    told = ", ".join(f'{name}="{value.translate(_QUOTED)}"' for name, value in parameters.items() if value)
    return b"www-authenticate", f"{scheme} {told}".rstrip().encode("latin-1", "replace")
