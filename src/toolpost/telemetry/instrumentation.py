"""Records the requests and sessions of one server or one client with OpenTelemetry.

Makes spans and histograms as `conventions` says, and passes the trace context on in `_meta`. A server calls
`observe_request` as an observer; requests of our own go through `send_request`. Exporting is left to the SDK.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InboundRequest, OutboundRequest
from toolpost.protocol.forward import is_error_result
from toolpost.protocol.jsonrpc import InvalidJSONValue
from toolpost.protocol.revisions import Revision
from toolpost.telemetry import conventions as names
from toolpost.telemetry.conventions import Failure, Network, find_target
from toolpost.telemetry.options import Telemetry
from toolpost.types.base import JSON, InputRequiredResult, Raw, Result
from toolpost.version import __version__

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.runtime.dispatch import Outcome

logger: Final = logging.getLogger("toolpost.telemetry")

MAX_ROUNDS: Final = 1000
"""Requests that wait for the client's input, whose next round is linked to the one before."""

MAX_CONTENT: Final = 4096
"""Characters of arguments, and of a result, that a span has."""


class _Operation:
    """One request, from its start to its end, with the attributes of its span."""

    def __init__(
        self,
        owner: "Instrumentation",
        kind: SpanKind,
        attributes: dict[str, Any],
        parent: Any,
        links: list[Link],
    ) -> None:
        self._owner, self._kind, self.attributes = owner, kind, attributes
        self._started = perf_counter()
        self.span, self._token = trace.INVALID_SPAN, None
        if owner.tracer is not None:
            target = attributes.get(names.TOOL) or attributes.get(names.PROMPT)
            name = f"{attributes[names.METHOD]} {target}" if target else attributes[names.METHOD]
            try:
                self.span = owner.tracer.start_span(name, parent, kind, attributes, links)
            except Exception:  # of a sampler or a processor: the request goes on
                logger.exception("telemetry failed")
            self._token = context.attach(trace.set_span_in_context(self.span, parent))

    def end(self, failure: Failure | None, result: Any = None) -> None:
        """End the span, and record the duration. The request goes on if that fails."""
        try:
            self._record(failure, result)
        except Exception:  # of a processor or an exporter
            logger.exception("telemetry failed")

    def _record(self, failure: Failure | None, result: Any) -> None:
        seconds, owner, span = perf_counter() - self._started, self._owner, self.span
        ending = {} if failure is None else failure.attributes
        if owner.histograms is not None:  # while the span is current, for exemplars
            found = {name: each for name, each in self.attributes.items() if name in names.METRIC_ATTRIBUTES}
            if self._kind is SpanKind.CLIENT and failure is not None and failure.code in names.CALLER_FAULTS:
                found.pop(names.TOOL, None)  # models make up names
            owner.histograms[self._kind].record(seconds, found | ending)
        if self._token is not None:
            if ending and span.is_recording():
                span.set_attributes(ending)
                if failure is not None and failure.kind is not None:
                    span.set_status(Status(StatusCode.ERROR, failure.message))
            owner.finish_span(self, result)
            context.detach(self._token)
            span.end()


class Instrumentation:
    """Records what one server or one client does, as its options say."""

    def __init__(self, option: Telemetry | bool | str, role: str) -> None:
        self._options = options = option if isinstance(option, Telemetry) else Telemetry()
        self.tracer = self.histograms = None
        if options.spans:
            self.tracer = trace.get_tracer("toolpost", __version__, options.tracer_provider)
        if options.metrics:
            meter = metrics.get_meter("toolpost", __version__, options.meter_provider)

            def make(name: str, about: str) -> metrics.Histogram:
                return meter.create_histogram(
                    name, "s", about, explicit_bucket_boundaries_advisory=names.BUCKETS
                )

            self._sessions = make(names.SESSION_DURATION.format(role), "Duration of MCP sessions")
            self.histograms = {
                kind: make(names.OPERATION_DURATION.format(kind.name.lower()), "Duration of MCP requests")
                for kind in (SpanKind.CLIENT, SpanKind.SERVER)
            }
        self._rounds: OrderedDict[str, tuple[SpanContext, int]] = OrderedDict()
        self._fields = [f'"{name}"'.encode() for name in propagate.get_global_textmap().fields]

    # ----------------------------------------------------------------- requests that we receive

    def observe_request(self, ctx: "Context") -> "Callable[[Outcome], object] | None":
        """Observe a request of a client: the observer of a server."""
        incoming, server = ctx.incoming, ctx.server
        assert incoming is not None, "only requests are observed"
        if not self._is_recorded(incoming.row.name):
            return None
        attributes = self._describe(
            incoming.row.name,
            incoming.params,
            (incoming.peer.revision, ctx.client_connection.network),
            is_known=incoming.row.name in server.routes,
            has_entry=server.has_entry,
        )
        operation = self._begin_received(incoming, attributes)

        def end(outcome: "Outcome") -> None:
            failure = names.TOOL_FAILURE if outcome.is_error else None
            if outcome.error is not None:
                failure = names.find_received_failure(outcome.error, incoming.peer.revision)
            operation.end(failure, outcome.result)

        return end

    async def serve_request(
        self,
        serve: Callable[[InboundRequest], Awaitable[Result | Raw]],
        read_network: Callable[[], Network],
        incoming: InboundRequest,
    ) -> Result | Raw:
        """Serve a request of a server, on a client."""
        if not self._is_recorded(incoming.row.name):
            return await serve(incoming)
        facts = incoming.peer.revision, read_network()
        operation = self._begin_received(incoming, self._describe(incoming.row.name, incoming.params, facts))
        failure: Failure | None = None
        try:
            return await serve(incoming)
        except Exception as error:
            failure = names.find_received_failure(error, incoming.peer.revision)
            raise
        finally:
            operation.end(failure)

    def _begin_received(self, incoming: InboundRequest, attributes: dict[str, Any]) -> _Operation:
        """Begin an operation whose parent is in `_meta`; the current span is linked, or else the parent."""
        attributes["jsonrpc.request.id"] = str(incoming.id)
        links = self._link_round(incoming.params, attributes)
        parent = context.get_current()
        if self.tracer is not None:
            ambient = trace.get_current_span(parent).get_span_context()
            parent = self._extract(incoming, parent)
            sender = trace.get_current_span(parent).get_span_context()
            if ambient.is_valid and sender.span_id != ambient.span_id:
                links.append(Link(ambient))
        operation = _Operation(self, SpanKind.SERVER, attributes, parent, links)
        target = find_target(incoming.row.name, incoming.params)
        if target is not None and target[0] not in attributes:
            operation.span.set_attribute(*target)  # an unknown tool: clients choose its name
        return operation

    def _extract(self, incoming: InboundRequest, current: Any) -> Any:
        """Return the context that the sender has put into `_meta`, on top of the current one."""
        raw = bytes(incoming.raw or b"")
        if not any(field in raw for field in self._fields):
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
        build: Callable[..., OutboundRequest],
        run: Callable[[OutboundRequest], Coroutine[Any, Any, Result]],
    ) -> Result:
        """Build and run a request of our own. `facts` are the revision and how we are connected.

        `build` takes the `_meta`, with the trace context.
        """
        if not self._is_recorded(method):
            return await run(build(meta=meta or None))
        attributes = self._describe(method, params, facts)
        links = self._link_round(params, attributes)
        operation = _Operation(self, SpanKind.CLIENT, attributes, None, links)
        result: Any = None
        failure: Failure | None = None
        try:
            outgoing = build(meta=self._inject(params, meta) or None)
            operation.span.set_attribute("jsonrpc.request.id", str(outgoing.id))
            result = await run(outgoing)
            raw = getattr(result, "raw", None)  # of a forwarded request
            if getattr(result, "is_error", None) is True or (raw and is_error_result(raw)):
                failure = names.TOOL_FAILURE
        except asyncio.CancelledError:
            failure = names.CANCELLED_FAILURE
            raise
        except Exception as error:
            failure = names.find_sent_failure(error)
            raise
        else:
            return result
        finally:
            operation.end(failure, result)

    def _inject(self, params: Any, meta: Mapping[str, JSON] | None) -> Mapping[str, JSON] | None:
        """Return the `_meta` with the trace context, which replaces a forwarded one; a caller's own stays."""
        carrier: dict[str, Any] = {}
        if self.tracer is not None:
            propagate.inject(carrier)
        own: Any = cast("Any", params).get("_meta") if isinstance(params, Mapping) else None
        if isinstance(own, Mapping):
            carrier |= {name: cast("Any", own)[name] for name in carrier if name in own}
        return carrier | dict(meta or {}) if carrier else meta

    # ----------------------------------------------------------------- sessions

    def record_session(
        self, seconds: float, revision: Revision, network: Network, error: str | None = None
    ) -> None:
        """Record how long a session has lasted, and the error that ended it, if any."""
        if self.histograms is not None and not revision.stateless:
            facts = {**network, names.REVISION: revision.date}
            attributes = {name: each for name, each in facts.items() if name in names.SESSION_ATTRIBUTES}
            self._sessions.record(seconds, attributes | ({} if error is None else {names.ERROR: error}))

    # ----------------------------------------------------------------- attributes

    def _is_recorded(self, method: str) -> bool:
        return self._options.only is None or method in self._options.only

    def _describe(
        self,
        method: str,
        params: Any,
        facts: tuple[Revision, Network],
        *,
        is_known: bool = False,
        has_entry: Callable[[str, str], bool] = lambda _method, _name: True,
    ) -> dict[str, Any]:
        """Return the attributes of a request, with the names of known methods, tools and prompts only."""
        shown = method if is_known or method in names.KNOWN_METHODS else names.OTHER
        attributes: dict[str, Any] = {names.METHOD: shown, names.REVISION: facts[0].date, **facts[1]}
        kind, name = find_target(method, params) or ("", "")
        if kind == names.RESOURCE or (kind and has_entry(method, name)):
            attributes[kind] = name
        if kind == names.TOOL:
            attributes[names.OPERATION] = "execute_tool"
        arguments: Any = getattr(params, "arguments", None) if self._options.arguments else None
        if kind == names.TOOL and isinstance(arguments, Raw):
            attributes["gen_ai.tool.call.arguments"] = _encode_masked(msgspec.json.decode(arguments))
        elif kind == names.PROMPT and isinstance(arguments, dict):
            for variable, value in cast("dict[str, Any]", arguments).items():
                attributes[f"gen_ai.prompt.variable.{variable}"] = _encode_masked({variable: value})
        return attributes

    def _link_round(self, params: Any, attributes: dict[str, Any]) -> list[Link]:
        """Link a request that brings the client's input to the round that asked for it."""
        found = self._rounds.pop(getattr(params, "request_state", None) or "", None)
        if found is None:
            return []
        before, number = found
        attributes["toolpost.round"] = number + 1
        return [Link(before)]

    def finish_span(self, operation: _Operation, result: Any) -> None:
        """Record what follows from the result of a request."""
        if self._options.results and names.OPERATION in operation.attributes and isinstance(result, Result):
            content = _encode_masked(msgspec.json.decode(jsonrpc.encode(result)))
            operation.span.set_attribute("gen_ai.tool.call.result", content)
        if isinstance(result, InputRequiredResult) and result.request_state is not None:
            number = operation.attributes.get("toolpost.round", 1)
            self._rounds[result.request_state] = operation.span.get_span_context(), number
            if len(self._rounds) > MAX_ROUNDS:
                self._rounds.popitem(last=False)


def start_instrumentation(option: Telemetry | bool | str, role: str) -> Instrumentation | None:
    """Return the instrumentation of a server or a client; None for "auto" without a provider."""
    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    is_set = not all("Proxy" in (name := type(each).__name__) or "NoOp" in name for each in providers)
    return Instrumentation(option, role) if is_set or option != "auto" else None


def _encode_masked(value: Any) -> str:
    """Return a value as JSON, without secrets, cut to a reasonable length."""
    from toolpost.testing.masking import Mask  # noqa: PLC0415 - only where content is recorded

    return jsonrpc.encode(Mask()(value)).decode()[:MAX_CONTENT]
