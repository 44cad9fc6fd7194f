"""Asks the user before a call: what is called, with which arguments.

A client of a session is asked within the call. A client without one gets the question as a result and calls
again; the approval is bound to the caller, to what is called and to its arguments, and is used once.
"""

import time
from hashlib import sha256
from math import ceil
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from toolpost import types
from toolpost.errors import CapabilityNotDeclared, InvalidParams, InvalidSeal, RPCError, UserRejected
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import find_missing_capability
from toolpost.protocol.forward import ForwardedResult
from toolpost.protocol.jsonrpc import MEMBERS_READER, InvalidJSONValue, JSONReader
from toolpost.protocol.methods import ELICITATION_CREATE
from toolpost.server.context import Context
from toolpost.server.context_request import decode_arguments
from toolpost.server.middleware import Call, Next
from toolpost.types.base import UNSET, InputRequest, InputRequiredResult, Raw

FORBIDDEN: Final = -31403
"""The code of a refusal by a policy: outside the reserved range (ERR-8)."""

LIFETIME: Final = 600.0
"""Seconds that the user has to answer, and for which an approved call may go on asking."""

MAX_SHOWN: Final = 2000
"""Characters of arguments that the question shows: more do not fit on a screen."""

_QUESTION: Final = "toolpost-approval"
_REMEMBERED: Final = "toolpost-approved"
_AUDIENCE: Final = "approval"
_RETRY_MEMBERS: Final = ("inputResponses", "requestState")
_RESULT_READER: Final = JSONReader(types.ElicitResult)
_TEXT_READER: Final = JSONReader(str)


class Approvals:
    """Serves calls that the user has approved."""

    async def serve(self, call: Call, next: Next, kind: str, name: str) -> Any:  # noqa: A002 - the usual name
        """Serve a call once the user has approved it. Raises UserRejected, or that the client cannot ask."""
        context = call.context
        remembered: list[str] = await context.state.get(_REMEMBERED, [])
        key = f"{kind} {name}"
        if key in remembered:
            return await next(call)
        incoming = context.incoming
        assert incoming is not None, "only requests are asked about"
        if incoming.row.can_require_input and incoming.peer.revision.stateless:
            return await self._serve_stateless(call, next, kind, name)
        try:
            answer = await context.ask(ELICITATION_CREATE, _make_question(call, kind, name), timeout=LIFETIME)
        except CapabilityNotDeclared as error:
            raise _make_unasked_error(kind, name) from error
        await _read_answer(context, answer, kind, name)
        return await next(call)

    async def _serve_stateless(self, call: Call, next: Next, kind: str, name: str) -> Any:  # noqa: A002 - as above
        context, params = call.context, call.params
        about, records = _digest_call(call, kind, name), context.server.store.records
        keys = await context.server.request_states.get_keys()
        state: str | None = params.request_state
        if state is None:
            question = _make_question(call, kind, name)
            incoming = context.incoming
            assert incoming is not None, "only requests are asked about"
            row = incoming.peer.revision.input_requests.get(ELICITATION_CREATE)
            if row is None or find_missing_capability(incoming.peer.capabilities, row, question):
                raise _make_unasked_error(kind, name)
            sealed = keys.seal(b"", audience=_AUDIENCE, binding=[about], expires=ceil(time.time() + LIFETIME))
            asked = InputRequest(ELICITATION_CREATE, Raw(jsonrpc.encode(question)))
            return InputRequiredResult(
                input_requests={_QUESTION: asked}, request_state=sealed, result_type="input_required"
            )
        try:
            keys.open(state, audience=_AUDIENCE, binding=[about], now=int(time.time()))
        except InvalidSeal:
            # The state of the call itself, which asks something after it was approved.
            if await records.get(_key_of(about, state)) is None:
                raise _make_state_error() from None
        else:
            given: dict[str, Raw] = params.input_responses or {}
            try:
                answer = _RESULT_READER(given.get(_QUESTION, Raw(b"null")))
            except InvalidJSONValue:
                raise _make_state_error() from None
            if not await records.swap(f"used/{_key_of(about, state)}", None, b"1", LIFETIME):
                raise _make_state_error()
            await _read_answer(context, answer, kind, name)
            call = _drop_answers(call)
        result = await next(call)
        if (state := _find_state(result)) is not None:
            await records.put(_key_of(about, state), b"1", LIFETIME)
        return result


def _make_question(call: Call, kind: str, name: str) -> types.ElicitParams:
    """Return the form that shows the user what is about to happen."""
    arguments: Any = getattr(call.params, "arguments", None)
    if isinstance(arguments, Raw):
        arguments = decode_arguments(arguments)
    shown = "" if arguments in (None, UNSET, {}) else f" with\n{_show(arguments)}"
    client = call.context.client.info
    by = "" if client is None else f" The request came from {_show_text(client.name)}."
    properties: dict[str, Any] = {}
    incoming = call.context.incoming
    if call.context.principal is not None or (incoming and not incoming.peer.revision.stateless):
        properties["remember"] = {
            "type": "boolean",
            "title": f"Do not ask again about this {kind} in this session",
            "default": False,
        }
    return types.ElicitParams(
        message=f"Allow the {kind} {_show_text(name)}{shown}?{by}",
        requested_schema={"type": "object", "properties": properties},
    )


def _show(value: Any) -> str:
    """Return JSON as text, without characters that could hide a part of it."""
    text = _show_text(msgspec.json.format(jsonrpc.encode(value), indent=2).decode())
    return (
        text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text) - MAX_SHOWN} more characters)"
    )


def _show_text(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else f"\\u{ord(each):04x}" for each in text)


async def _read_answer(context: Context, answer: Any, kind: str, name: str) -> None:
    """Raise unless the user agrees; remember it if they say so."""
    if not isinstance(answer, types.ElicitResult) or answer.action != "accept":
        raise UserRejected(f"The user did not allow the {kind} {name}")
    if (answer.content or {}).get("remember") is True:
        remembered: list[str] = await context.state.get(_REMEMBERED, [])
        await context.state.set(_REMEMBERED, [*remembered, f"{kind} {name}"])


def _make_unasked_error(kind: str, name: str) -> RPCError:
    return RPCError(
        f"The {kind} {name} needs the approval of the user, but this client cannot ask: "
        "it does not offer elicitation of forms",
        code=FORBIDDEN,
        kind="forbidden",
    )


def _make_state_error() -> InvalidParams:
    return InvalidParams("Invalid params: the requestState is not valid for this request")


def _digest_call(call: Call, kind: str, name: str) -> bytes:
    """Return a digest of who calls what, with which arguments."""
    arguments: Any = getattr(call.params, "arguments", None)
    if isinstance(arguments, Raw):
        arguments = decode_arguments(arguments)
    principal = call.context.principal
    parts = [principal and principal.key, kind, name, None if arguments is UNSET else arguments]
    return sha256(msgspec.json.encode(parts, order="sorted")).digest()


def _key_of(about: bytes, state: str) -> str:
    return f"approved/{sha256(about + state.encode()).hexdigest()}"


def _drop_answers(call: Call) -> Call:
    """Return the call as it was before the question, also for those who read its bytes."""
    incoming = call.context.incoming
    assert incoming is not None, "only requests are asked about"
    members = MEMBERS_READER(incoming.raw)
    plain = {name: value for name, value in members.items() if name not in _RETRY_MEMBERS}
    incoming.raw = Raw(jsonrpc.encode(plain))
    params = incoming.params = replace(call.params, request_state=None, input_responses=None)
    return replace(call, params=params)


def _find_state(result: Any) -> str | None:
    """Return the state of a result that asks for input."""
    if isinstance(result, InputRequiredResult):
        return result.request_state
    if isinstance(result, ForwardedResult) and result.result_type == "input_required":
        found = MEMBERS_READER(Raw(result.raw)).get("requestState")
        return None if found is None else _TEXT_READER(found)
    return None
