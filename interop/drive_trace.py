"""One trace over our client, our server that forwards, and a server of a peer.

The peer has no SDK, so a tool of it runs in the context that it has received, which is that of the span of
our request. The tool returns it.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, Final

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cases import Outcome
from environments import HERE, python_of
from toolpost import Client, Context, ForwardedResult, Handler, Stdio, Telemetry

__all__ = ["PROGRAMS", "trace_through"]

PROGRAMS: Final = {"mcp-2.3.0": "traced_mcp2.py", "fastmcp-4.1.0": "traced_fastmcp.py"}
PATIENCE: Final = 60.0
CHAIN: Final = ["CLIENT", "SERVER", "CLIENT"]


class _Gateway(Handler):
    """Forwards everything."""

    def __init__(self, upstream: Client, telemetry: Telemetry) -> None:
        super().__init__("gateway", telemetry=telemetry)
        self._upstream = upstream

    def capabilities(self) -> Any:
        """Return those of the peer."""
        return self._upstream.capabilities

    async def forward_request(self, method: str, params: bytes, ctx: Context) -> ForwardedResult:  # noqa: ARG002 - the hook
        """Forward a request to the peer."""
        return await self._upstream.forward(method, params)


async def trace_through(peer: str, revision: str | None) -> AsyncIterator[Outcome]:
    """Call a tool of a peer's server through a server of ours, and compare the spans."""
    exporter, tracers = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer_provider=tracers, metrics=False, only=["tools/call"])
    program = Stdio(
        str(python_of(peer)), ["-W", "ignore", str(HERE / "peers" / PROGRAMS[peer])], stderr="discard"
    )
    try:
        async with (
            asyncio.timeout(PATIENCE),
            Client(program, telemetry=telemetry, revision=revision) as upstream,
            Client(_Gateway(upstream, telemetry), telemetry=telemetry) as client,
        ):
            found = (await client.call_tool("where")).text
        why = _compare(found, exporter)
    except Exception as error:  # noqa: BLE001 - any exception is the outcome
        why = f"{type(error).__name__}: {error}"
    shown = revision or "unpinned"
    yield Outcome(peer, "our client", "stdio", shown, "one trace through our server to theirs", why)


def _compare(found: str, exporter: InMemorySpanExporter) -> str:
    """Return what is wrong with the chain of spans; the innermost ends first."""
    spans = list(reversed(exporter.get_finished_spans()))
    kinds = [span.kind.name for span in spans]
    if kinds != CHAIN:
        return f"the spans are {kinds}"
    for outer, inner in pairwise(spans):
        if inner.parent is None or outer.context is None or inner.parent.span_id != outer.context.span_id:
            return f"the parent of {inner.name} is not {outer.name}"
    last = spans[-1].context
    assert last is not None, "it was started"
    expected = f"{last.trace_id:032x} {last.span_id:016x}"
    return "" if found == expected else f"their tool runs in {found}, not in {expected}"
