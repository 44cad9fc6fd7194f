"""A server of PyPI's `mcp` 2.x over stdio with one tool, which returns the trace context that it finds."""

from mcp.server.mcpserver import MCPServer
from opentelemetry import trace

server = MCPServer("traced", log_level="ERROR")


@server.tool()
def where() -> str:
    """Return the trace and the span in which the tool runs."""
    span = trace.get_current_span().get_span_context()
    return f"{span.trace_id:032x} {span.span_id:016x}"


server.run("stdio")
