"""The body of a POST, read: a message, or why it is none.

Owns what a client is told whose body cannot be read. Knows no session and no server.
"""

from toolpost.errors import InvalidRequest, RemoteProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import JSONRPCMessage
from toolpost.transports.gate import HTTPRefusal

__all__ = ["read_body"]


def read_body(data: bytes) -> JSONRPCMessage | None:
    """The message in a body; None for a batch.

    Raises:
        _UnreadableBody: it is none.
    """
    if data[:1] != b"{" and jsonrpc.is_batch(data):
        return None
    try:
        return jsonrpc.decode(data)
    except RemoteProtocolError as error:
        raise _UnreadableBody(error) from error


class _UnreadableBody(HTTPRefusal):
    """A body that is no message; the answer has the id, if there was one."""

    def __init__(self, error: RemoteProtocolError) -> None:
        super().__init__(400, error.message)
        self._error = error

    @property
    def body(self) -> bytes:
        """The answer that it deserves."""
        error = self._error
        return jsonrpc.encode_error(
            None if error.reply else error.id, error.answer or InvalidRequest(error.message)
        )
