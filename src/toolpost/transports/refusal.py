"""What a response is, and what it means if it is no answer.

Owns the kinds of bodies and the words for a refusal. Sends nothing; knows nothing of sessions, eras or
messages.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from toolpost.errors import AuthorizationRequired, RequestFailed
from toolpost.protocol import headers as rules
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.transports.http_backend import Response
from toolpost.types.base import Struct

__all__ = [
    "EVENTS",
    "JSON",
    "Unauthorized",
    "build_refusal",
    "check_accepted",
    "is_event_stream",
    "is_json",
    "is_success",
    "open_event_stream",
    "status_phrase",
]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

MAX_QUOTE_LENGTH: Final = 300
"""How many characters of a refusal an error repeats."""

QUOTE_TIMEOUT: Final = 2.0
"""Seconds to wait for the text of a refusal: the status alone says enough."""

MAX_DISCARDED_BODY: Final = 64 * 1024
"""How much of a body that nobody wants is read, so that its connection can be used again."""

MAX_RETRY_AFTER_DIGITS: Final = 9
"""How many digits of a wait are read: thirty years are for ever."""

_RETRY_AFTER_STATUSES: Final = frozenset({429, 503})
"""Refusals that may say when to come again, and that nothing was done."""

_QUOTABLE_TYPES: Final = ("text/plain", JSON, "application/problem+json")
_STATUS_HINTS: Final = {
    401: 'it needs authorization: pass auth=OAuth(), auth="token" or headers={"Authorization": "Bearer …"}',
    403: 'it needs other authorization than it got: see auth=, or headers={"Authorization": "Bearer …"}',
    404: "is this the URL of an MCP endpoint?",
    405: "is this the URL of an MCP endpoint?",
}


class _ErrorMessage(Struct):
    message: str


class _ErrorReply(Struct):
    error: _ErrorMessage


_ERROR_REPLY: Final = JSONReader(_ErrorReply)


class Unauthorized(RequestFailed, AuthorizationRequired):
    """A 401 to whom sent no credentials by `auth=`. Tracebacks show the name that can be imported."""

    __module__ = AuthorizationRequired.__module__
    __qualname__ = AuthorizationRequired.__qualname__


Unauthorized.__name__ = AuthorizationRequired.__name__


def is_success(response: Response) -> bool:
    """Whether the status says that all is well."""
    return 200 <= response.status < 300


def is_event_stream(response: Response) -> bool:
    """Whether the response is an event stream."""
    kind = response.headers.get("content-type", "")
    return is_success(response) and (kind == EVENTS or kind.partition(";")[0].strip().lower() == EVENTS)


def is_json(response: Response) -> bool:
    """Whether the body is JSON."""
    kind = response.headers.get("content-type")
    return kind == JSON or rules.is_json(kind)


async def open_event_stream(response: Response) -> AsyncIterator[bytes]:
    """The body of a response that is an event stream.

    Raises:
        RequestFailed: it is none.
    """
    if not is_event_stream(response):
        raise await build_refusal(response, lacks="no event stream")
    return response.chunks()


async def check_accepted(response: Response) -> None:
    """Return if the server has taken a message that has no answer.

    Raises:
        RequestFailed: it has not.
    """
    if not is_success(response):
        raise await build_refusal(response)
    size = response.headers.get("content-length", "")
    if size.isdigit() and int(size) <= MAX_DISCARDED_BODY:
        # It has taken the message, whatever becomes of what it says besides.
        with contextlib.suppress(RequestFailed, TimeoutError):
            async with asyncio.timeout(QUOTE_TIMEOUT):
                await response.read(MAX_DISCARDED_BODY)


async def build_refusal(
    response: Response, body: bytes | None = None, *, lacks: str = "neither JSON nor an event stream"
) -> RequestFailed:
    """The error for a response that is no answer.

    Args:
        response: the response.
        body: its body, if it was read already.
        lacks: what one that says that all is well is not.
    """
    status, kind = response.status, response.headers.get("content-type")
    if is_success(response):
        what = "without a content type" if kind is None else f"of type {rules.quote_value(kind)}"
        return RequestFailed(
            f"the server answered with {status_phrase(status)} {what}, which is {lacks}",
            status=status,
            hint="is this the URL of an MCP endpoint?",
        )
    start = await _read_start(response) if body is None else body
    reason = _read_error_message(start)
    text = _to_single_line(start if reason is None else reason.encode())
    said = f": {text}" if text else ""
    hint = (
        None if reason and status == HTTPStatus.FORBIDDEN else _STATUS_HINTS.get(status)
    )  # it may be the Host
    kind = Unauthorized if status == HTTPStatus.UNAUTHORIZED else RequestFailed
    failure = kind(f"the server answered with {status_phrase(status)}{said}", status=status, hint=hint)
    if status in _RETRY_AFTER_STATUSES:
        failure.retry_after = _parse_retry_after(response.headers.get("retry-after", ""))
    return failure


def _parse_retry_after(text: str) -> float | None:
    """The seconds after which a server wants to be asked again: a number, or a date by its own clock."""
    if text.isascii() and text.isdigit():
        return float(text[:MAX_RETRY_AFTER_DIGITS])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None


def _read_error_message(body: bytes) -> str | None:
    """What an error says that is JSON-RPC."""
    try:
        return _ERROR_REPLY(body).error.message
    except InvalidJSONValue:
        return None


def status_phrase(status: int) -> str:
    """A status with its name."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


async def _read_start(response: Response) -> bytes:
    """The start of a text that is meant for people, or at least can be read by them."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    start = bytearray()
    if kind in _QUOTABLE_TYPES:
        try:
            async with asyncio.timeout(QUOTE_TIMEOUT):
                async for chunk in response.chunks():
                    start += chunk
                    if len(start) >= MAX_DISCARDED_BODY:
                        break
        except (RequestFailed, TimeoutError):
            pass  # what is there has to do
    return bytes(start)


def _to_single_line(start: bytes) -> str:
    text = " ".join(start[: 8 * MAX_QUOTE_LENGTH].decode("utf-8", "replace").split())
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= MAX_QUOTE_LENGTH else f"{text[: MAX_QUOTE_LENGTH - 1]}…"
