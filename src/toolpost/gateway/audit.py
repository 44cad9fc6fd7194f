"""`Audit`: middleware that records every call in a file, one JSON object per line.

One task writes the lines of a bounded queue. The file is opened for each batch, so it may be rotated at any
time. Arguments are recorded as a digest, or whole with secrets masked.
"""

import asyncio
import logging
import os
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from toolpost.errors import InternalError, MCPError, RPCError
from toolpost.protocol import jsonrpc
from toolpost.protocol.forward import ForwardedResult
from toolpost.protocol.jsonrpc import MEMBERS_READER, InvalidJSONValue
from toolpost.protocol.methods import PROMPTS_GET, RESOURCES_READ, TOOLS_CALL
from toolpost.server.context import Context
from toolpost.server.middleware import Call, Next
from toolpost.types.base import UNSET, InputRequiredResult, Raw
from toolpost.types.tools import CallToolResult

MAX_WAITING: Final = 10_000
"""Lines that wait to be written, with those of the calls that run."""

MAX_ARGUMENTS: Final = 16 * 1024
"""Bytes of recorded arguments; longer ones are recorded as their digest."""

RETRY_DELAY: Final = 1.0
"""Seconds before lines that must not be lost are written again."""

_METHODS: Final = frozenset({TOOLS_CALL, RESOURCES_READ, PROMPTS_GET})
_SECRET_NAME: Final = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|api_?key|authorization|credential|cookie", re.IGNORECASE
)
_SECRET_VALUE: Final = re.compile(
    r"(?i)\bbearer\s+\S+|\beyJ[\w-]+\.[\w-]+\.[\w-]*|\bsk-[\w-]{8,}|\bgh[a-z]_\w{16,}"
)
_MASK: Final = "***"
_TRUE: Final = Raw(b"true")

logger: Final = logging.getLogger("toolpost.gateway")


class Audit:
    """Middleware that records calls, reads and prompts in a file. Put it first.

    Args:
        path: the file, which only its owner may read.
        arguments: record arguments whole, with secrets masked, instead of a digest.
        required: refuse calls that cannot be recorded, instead of counting lost lines.

    Examples:
        >>> audit = Audit("calls.jsonl")
        >>> server = Server("shop", middleware=[audit], lifespan=audit.lifespan)
    """

    def __init__(
        self, path: "str | os.PathLike[str]", *, arguments: bool = False, required: bool = False
    ) -> None:
        self.path = Path(path).expanduser()
        self.lost = 0
        """Lines that could not be recorded."""
        self._records_arguments = arguments
        self._is_required = required
        self._lines = deque[bytes]()
        self._notes: dict[int, dict[str, Any]] = {}  # of running calls, by the identity of the context
        self._is_failing = False
        self._wakened = asyncio.Event()

    def __repr__(self) -> str:
        return f"Audit({str(self.path)!r})"

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call and record it."""
        if not call.incoming or call.is_notification or call.method not in _METHODS:
            return await next(call)
        if self._is_required and (self._is_failing or len(self._lines) + len(self._notes) >= MAX_WAITING):
            raise InternalError("The call was refused: it cannot be recorded at the moment")
        began, wall = time.perf_counter(), datetime.now(UTC)
        line = self._describe(call)
        notes = self._notes[id(call.context)] = {}
        outcome: dict[str, Any] = {"outcome": "cancelled"}
        try:
            result = await next(call)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            outcome = _describe_error(error)
            raise
        else:
            outcome = _describe_result(result)
            return result
        finally:
            del self._notes[id(call.context)]
            took = round((time.perf_counter() - began) * 1000, 3)
            self._add(
                {"time": wall.isoformat(timespec="milliseconds"), **line, **notes, **outcome, "ms": took}
            )

    def note(self, context: Context, **facts: Any) -> None:
        """Add facts to the line of a running call, such as the rule that allowed it."""
        notes = self._notes.get(id(context))
        if notes is not None:
            notes.update(facts)

    def _describe(self, call: Call) -> dict[str, Any]:
        context, params = call.context, call.params
        principal, info = context.principal, context.client.info
        about = params.uri if call.method == RESOURCES_READ else params.name
        line: dict[str, Any] = {
            "id": context.related,
            "method": call.method,
            "name": about,
            "principal": None if principal is None else str(principal),
            "client": (principal and principal.client) or (info and info.name),
            "revision": context.revision,
        }
        arguments: Any = getattr(params, "arguments", None)
        if arguments not in (None, UNSET):
            data = bytes(arguments) if isinstance(arguments, Raw) else jsonrpc.encode(arguments)
            line |= self._describe_arguments(data)
        trace = context.request.meta.get("traceparent")
        if isinstance(trace, str) and trace.count("-") >= 3:
            line["trace"] = trace.split("-")[1]
        return line

    def _describe_arguments(self, data: bytes) -> dict[str, Any]:
        try:
            value: Any = msgspec.json.decode(data)
        except msgspec.DecodeError:
            return {"digest": sha256(data).hexdigest()[:32]}
        if self._records_arguments and len(data) <= MAX_ARGUMENTS:
            return {"arguments": mask_secrets(value)}
        return {"digest": sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]}

    # ----------------------------------------------------------------- writing

    def _add(self, line: Mapping[str, Any]) -> None:
        if not self._is_required and len(self._lines) >= MAX_WAITING:
            self.lost += 1
            return
        self._lines.append(
            jsonrpc.encode({name: value for name, value in line.items() if value is not None}) + b"\n"
        )
        self._wakened.set()

    @asynccontextmanager
    async def lifespan(self, _server: object = None) -> AsyncGenerator[None]:
        """Write while a server serves, and the rest at its end."""
        writing = asyncio.get_running_loop().create_task(self._write_lines())
        try:
            yield
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            await self._write_batch()
            if self._lines or self.lost:
                logger.error("%d lines of the audit log are lost", self.lost + len(self._lines))

    async def _write_lines(self) -> None:
        while True:
            await self._wakened.wait()
            self._wakened.clear()
            if not await self._write_batch() and self._is_required:
                await asyncio.sleep(RETRY_DELAY)
                self._wakened.set()

    async def _write_batch(self) -> bool:
        """Write the lines that wait. Return whether that worked."""
        batch = b"".join(self._lines)
        count = len(self._lines)
        if not batch:
            return True
        writing = asyncio.ensure_future(asyncio.to_thread(self._append, batch))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # not half a line, and none twice
            if writing.exception() is None:
                self._drop(count)
            raise
        except OSError as error:
            if not self._is_failing:
                logger.error("the audit log %s cannot be written: %s", self.path, error.strerror)  # noqa: TRY400 - the cause is in the text
            self._is_failing = True
            if not self._is_required:
                self.lost += count
                self._drop(count)
            return False
        self._drop(count)
        if self._is_failing:
            self._is_failing = False
            logger.warning("the audit log %s is written again", self.path)
        return True

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._lines.popleft()

    def _append(self, data: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(data)


def mask_secrets(value: Any, name: str = "") -> Any:
    """Return JSON without values that are secrets, by their names or by their looks."""
    if _SECRET_NAME.search(name) and value is not None and not isinstance(value, bool):
        return _MASK
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: mask_secrets(each, key) for key, each in members.items()}
    if isinstance(value, list):
        return [mask_secrets(each) for each in cast("list[Any]", value)]
    return _SECRET_VALUE.sub(_MASK, value) if isinstance(value, str) else value


def _describe_result(result: Any) -> dict[str, Any]:
    if isinstance(result, ForwardedResult):
        told: dict[str, Any] = {"upstream_revision": result.revision}
        if result.result_type != "complete":
            return {**told, "outcome": result.result_type}
        with suppress(InvalidJSONValue):
            if MEMBERS_READER(Raw(result.raw)).get("isError") == _TRUE:
                return {**told, "outcome": "tool_error"}
        return {**told, "outcome": "ok"}
    if isinstance(result, InputRequiredResult):
        return {"outcome": "input_required"}
    failed = isinstance(result, CallToolResult) and result.is_error is True
    return {"outcome": "tool_error" if failed else "ok"}


def _describe_error(error: BaseException) -> dict[str, Any]:
    """Return the class of an error. Its text may repeat arguments, so it is not recorded."""
    told: dict[str, Any] = {"outcome": "error", "error": type(error).__name__}
    if isinstance(error, RPCError):
        told |= {"error": error.kind, "code": error.code}
    elif not isinstance(error, MCPError):
        told["error"] = "exception"
    return told
