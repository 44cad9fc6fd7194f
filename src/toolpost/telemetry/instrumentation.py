"""Records the requests and sessions of one server or one client with OpenTelemetry.

Makes spans and histograms as `conventions` says, and passes the trace context on in `_meta`. A server calls
`observe_request` as an observer; requests of our own go through `send_request`. Exporting is left to the SDK.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from opentelemetry import context as otel_context
from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InboundRequest, OutboundRequest
from toolpost.protocol.forward import is_error_result
from toolpost.protocol.jsonrpc import InvalidJSONValue
from toolpost.protocol.revisions import Revision
from toolpost.telemetry.conventions import (
    ARGUMENTS,
    BUCKETS,
    CALLER_FAULTS,
    CANCELLED_FAILURE,
    ERROR,
    EXECUTE_TOOL,
    KNOWN_METHODS,
    METHOD,
    METRIC_ATTRIBUTES,
    OPERATION,
    OPERATION_DURATION,
    OTHER,
    PROMPT,
    REQUEST_ID,
    RESOURCE,
    RESULT,
    REVISION,
    ROUND,
    SESSION_ATTRIBUTES,
    SESSION_DURATION,
    TOOL,
    VARIABLE,
    Failure,
    find_received_failure,
    find_sent_failure,
    find_target,
)
from toolpost.telemetry.options import Telemetry
from toolpost.types.base import JSON, InputRequiredResult, Raw, Result
from toolpost.version import __version__

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.runtime.dispatch import Outcome

Network = Mapping[str, str | int]
"""How the two sides are connected, by the names of the conventions."""

MAX_ROUNDS: Final = 1000
"""Requests that wait for the client's input, whose next round is linked to the one before."""

MAX_CONTENT: Final = 4096
"""Characters of arguments, and of a result, that a span has."""

_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/dev"
_OBSERVED: Final[set[int]] = set()
"""The identities of requests that are being observed: a server may pass a request on to another one here."""


class _Operation:
    """One request, from its start to its end. `attributes` are those of its span so far."""

    def __init__(
        self,
        owner: "Instrumentation",
        kind: SpanKind,
        attributes: dict[str, Any],
        parent: Any,
        links: list[Link],
    ) -> None:
        self._owner = owner
        self._kind = kind
        self.attributes = attributes
        self._started = perf_counter()
        self.span: Span = trace.INVALID_SPAN
        self._token: Any = None
        if owner.tracer is not None:
            name = attributes[METHOD]
            target = attributes.get(TOOL) or attributes.get(PROMPT)
            name = f"{name} {target}" if target else name
            self.span = owner.tracer.start_span(name, parent, kind, attributes, links)
            self._token = otel_context.attach(trace.set_span_in_context(self.span, parent))

    def end(self, failure: Failure | None, result: Any = None) -> None:
        """End the span, and record the duration."""
        seconds, owner, span = perf_counter() - self._started, self._owner, self.span
        ending = {} if failure is None else failure.attributes
        if self._token is not None:
            if span.is_recording():
                if ending:
                    span.set_attributes(ending)
                if failure is not None and failure.kind is not None:
                    span.set_status(Status(StatusCode.ERROR, failure.message))
                owner.add_result(span, self.attributes, result)
            owner.remember_round(result, self)
        if owner.histograms is not None:
            found = {name: each for name, each in self.attributes.items() if name in METRIC_ATTRIBUTES}
            if self._kind is SpanKind.CLIENT and failure is not None and failure.code in CALLER_FAULTS:
                found.pop(TOOL, None)  # models make up names
            owner.histograms[self._kind].record(
                seconds, found | ending
            )  # while its span is current: exemplars
        if self._token is not None:
            otel_context.detach(self._token)
            span.end()


class Instrumentation:
    """Records what one server or one client does, as its options say."""

    def __init__(self, options: Telemetry, role: str) -> None:
        self._options = options
        self.tracer = self.histograms = None
        if options.spans:
            self.tracer = trace.get_tracer("toolpost", __version__, options.tracer_provider, _SCHEMA_URL)
        if options.metrics:
            meter = metrics.get_meter("toolpost", __version__, options.meter_provider, _SCHEMA_URL)

            def make(name: str, about: str) -> metrics.Histogram:
                return meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=BUCKETS)

            self.histograms = {
                SpanKind.CLIENT: make(OPERATION_DURATION.format("client"), "Duration of sent MCP requests"),
                SpanKind.SERVER: make(
                    OPERATION_DURATION.format("server"), "Duration of received MCP requests"
                ),
            }
            self._sessions = make(SESSION_DURATION.format(role), "Duration of MCP sessions")
        self._rounds: OrderedDict[str, tuple[SpanContext, int]] = OrderedDict()
        self._fields = [f'"{name}"'.encode() for name in propagate.get_global_textmap().fields]

    # ----------------------------------------------------------------- requests that we receive

    def observe_request(self, ctx: "Context") -> "Callable[[Outcome], object] | None":
        """Observe a request of a client: the observer of a server."""
        incoming, server = ctx.incoming, ctx.server
        assert incoming is not None, "only requests are observed"
        if id(incoming) in _OBSERVED:
            return None
        is_known = incoming.row.name in KNOWN_METHODS or incoming.row.name in server.routes
        finish = self._begin_received(
            incoming, ctx.client_connection.network, server.has_entry, is_known=is_known
        )
        if finish is None:
            return None
        _OBSERVED.add(id(incoming))

        def end(outcome: "Outcome") -> None:
            _OBSERVED.discard(id(incoming))
            finish(outcome.result, outcome.error, outcome.is_error)

        return end

    async def serve_request(
        self,
        serve: Callable[[InboundRequest], Awaitable[Result | Raw]],
        network: Network,
        incoming: InboundRequest,
    ) -> Result | Raw:
        """Serve a request of a server, on a client."""
        finish = self._begin_received(incoming, network, _has_any, is_known=True)
        result, error = None, None
        try:
            result = await serve(incoming)
        except asyncio.CancelledError:
            raise
        except BaseException as raised:
            error = raised
            raise
        else:
            return result
        finally:
            if finish is not None:
                finish(result, error, False)

    def _begin_received(
        self,
        incoming: InboundRequest,
        network: Network,
        has_entry: Callable[[str, str], bool],
        *,
        is_known: bool,
    ) -> Callable[[Any, BaseException | None, bool], None] | None:
        method, params, revision = incoming.row.name, incoming.params, incoming.peer.revision
        if not self._is_recorded(method):
            return None
        attributes = self._describe(method if is_known else OTHER, params, revision, network, has_entry)
        attributes[REQUEST_ID] = str(incoming.id)
        parent, links = otel_context.get_current(), list[Link]()
        if self.tracer is not None:
            ambient = trace.get_current_span(parent).get_span_context()
            parent = self._extract(incoming, parent)
            sender = trace.get_current_span(parent).get_span_context()
            if ambient.is_valid and sender.span_id != ambient.span_id:
                links.append(Link(ambient))
            self._link_round(params, attributes, links)
        operation = _Operation(self, SpanKind.SERVER, attributes, parent, links)
        target = find_target(method, params)
        if target is not None and target[0] not in attributes:
            operation.span.set_attribute(*target)  # an unknown tool: clients choose its name

        def finish(result: Any, error: BaseException | None, is_error: bool) -> None:
            operation.end(find_received_failure(error, revision, is_error=is_error), result)

        return finish

    def _extract(self, incoming: InboundRequest, current: Any) -> Any:
        """Return the context that the sender has put into `_meta`, on top of the current one."""
        raw = incoming.raw
        if not raw or not any(field in bytes(raw) for field in self._fields):
            return current
        try:
            carrier = {name: each for name, each in incoming.meta.items() if isinstance(each, str)}
        except InvalidJSONValue:
            return current
        return propagate.extract(carrier, current)

    # ----------------------------------------------------------------- requests that we send

    async def send_request(
        self,
        method: str,
        params: Any,
        meta: Mapping[str, JSON] | None,
        facts: tuple[Revision, Network],
        *,
        build: Callable[[Mapping[str, JSON] | None], OutboundRequest],
        run: Callable[[OutboundRequest], Coroutine[Any, Any, Result]],
    ) -> Result:
        """Build and run a request of our own. `facts` are the revision and how we are connected."""
        if not self._is_recorded(method):
            return await run(build(meta))
        known = method if method in KNOWN_METHODS else OTHER
        attributes, links = self._describe(known, params, *facts, _has_any), list[Link]()
        self._link_round(params, attributes, links)
        operation = _Operation(self, SpanKind.CLIENT, attributes, None, links)
        result: Any = None
        failure: Failure | None = None
        try:
            outgoing = build(self._inject(params, meta))
            operation.span.set_attribute(REQUEST_ID, str(outgoing.id))
            result = await run(outgoing)
            is_error = getattr(result, "is_error", None) is True
            raw = getattr(result, "raw", None)  # of a forwarded request
            failure = find_sent_failure(None, is_error=is_error or bool(raw and is_error_result(raw)))
        except asyncio.CancelledError:
            failure = CANCELLED_FAILURE
            raise
        except BaseException as error:
            failure = find_sent_failure(error, is_error=False)
            raise
        else:
            return result
        finally:
            operation.end(failure, result)

    def _inject(self, params: Any, meta: Mapping[str, JSON] | None) -> Mapping[str, JSON] | None:
        """Return the `_meta` with the trace context, which replaces a forwarded one; a caller's own stays."""
        if self.tracer is None:
            return meta
        carrier: dict[str, Any] = {}
        propagate.inject(carrier)
        if not carrier:
            return meta
        own: Any = cast("Any", params).get("_meta") if isinstance(params, Mapping) else None
        if isinstance(own, Mapping):
            carrier |= {
                name: each for name, each in cast("Mapping[str, Any]", own).items() if name in carrier
            }
        return carrier | dict(meta or {})

    # ----------------------------------------------------------------- sessions

    def record_session(
        self, seconds: float, revision: Revision, network: Network, error: str | None = None
    ) -> None:
        """Record how long a session has lasted, and the error that ended it, if any."""
        if self.histograms is None or revision.stateless:
            return
        facts = {**network, REVISION: revision.date}
        attributes = {name: facts[name] for name in SESSION_ATTRIBUTES if name in facts}
        self._sessions.record(seconds, attributes if error is None else attributes | {ERROR: error})

    # ----------------------------------------------------------------- attributes

    def _is_recorded(self, method: str) -> bool:
        return self._options.only is None or method in self._options.only

    def _describe(
        self,
        method: str,
        params: Any,
        revision: Revision,
        network: Network,
        has_entry: Callable[[str, str], bool],
    ) -> dict[str, Any]:
        attributes: dict[str, Any] = {METHOD: method, REVISION: revision.date, **network}
        target = find_target(method, params)
        if target is not None and (target[0] == RESOURCE or has_entry(method, target[1])):
            attributes[target[0]] = target[1]
        if target is not None and target[0] == TOOL:
            attributes[OPERATION] = EXECUTE_TOOL
        if self._options.arguments and target is not None:
            arguments: Any = getattr(params, "arguments", None)
            if target[0] == TOOL and isinstance(arguments, Raw):
                attributes[ARGUMENTS] = _shorten_masked(bytes(arguments))
            elif target[0] == PROMPT and isinstance(arguments, dict):
                masked = cast("dict[str, Any]", _mask(cast("Any", arguments)))
                attributes |= {f"{VARIABLE}{name}": str(each)[:MAX_CONTENT] for name, each in masked.items()}
        return attributes

    def add_result(self, span: Span, attributes: Mapping[str, Any], result: Any) -> None:
        """Add the result of a tool to its span, if that is wanted."""
        if self._options.results and OPERATION in attributes and isinstance(result, Result):
            span.set_attribute(RESULT, _shorten_masked(jsonrpc.encode(result)))

    # ----------------------------------------------------------------- rounds of input

    def _link_round(self, params: Any, attributes: dict[str, Any], links: list[Link]) -> None:
        """Link a request that brings the client's input to the round that asked for it."""
        state = getattr(params, "request_state", None)
        if state is not None and state in self._rounds:
            before, number = self._rounds.pop(state)
            links.append(Link(before))
            attributes[ROUND] = number + 1

    def remember_round(self, result: Any, operation: _Operation) -> None:
        """Remember a request that has ended with questions."""
        if isinstance(result, InputRequiredResult) and result.request_state is not None:
            number = operation.attributes.get(ROUND, 1)
            self._rounds[result.request_state] = operation.span.get_span_context(), number
            if len(self._rounds) > MAX_ROUNDS:
                self._rounds.popitem(last=False)


def _has_any(_method: str, _name: str) -> bool:
    return True


def _mask(value: Any) -> Any:
    from toolpost.testing.masking import Mask  # noqa: PLC0415 - only where content is recorded

    return Mask()(value)


def _shorten_masked(encoded: bytes) -> str:
    return jsonrpc.encode(_mask(msgspec.json.decode(encoded))).decode()[:MAX_CONTENT]


def start_instrumentation(option: Any, role: str) -> Instrumentation:
    """Return the instrumentation of a server or a client for its option, which is not off."""
    return Instrumentation(option if isinstance(option, Telemetry) else Telemetry(), role)
