"""A server of PyPI's `fastmcp` over stdio with one tool, which returns the trace context that it finds."""

from fastmcp import FastMCP
from opentelemetry import trace

server = FastMCP("traced")


@server.tool
def where() -> str:
    """Return the trace and the span in which the tool runs."""
    span = trace.get_current_span().get_span_context()
    return f"{span.trace_id:032x} {span.span_id:016x}"


server.run(show_banner=False)
