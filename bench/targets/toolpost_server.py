"""The toolpost server for calls with and without a socket, as docs/server.md and docs/auth.md recommend."""

import asyncio
import logging
from typing import Any

import wire

from toolpost import Auth, Context, Server, Telemetry
from toolpost.server.middleware import AccessLog, Call, Concurrency, Next, RateLimit, Timeout

__all__ = ["make_server"]

LARGE = ("The quick brown fox jumps over the lazy dog.\n" * 25000)[: 1 << 20]
ISSUER = "https://login.example.com"


async def pass_on(call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
    """Middleware that does nothing."""
    return await next(call)


async def verify(token: str) -> str | None:
    """Return the subject of a token."""
    return "ann" if token == wire.TOKEN else None


def verify_in_thread(token: str) -> str | None:
    """Return the subject of a token, in a function that may block."""
    return "ann" if token == wire.TOKEN else None


def accept_signed(url: str) -> Auth:
    """Accept signed tokens, and print one."""
    from toolpost import Jwt  # noqa: PLC0415 - needs packages that the others do without
    from toolpost.testing import AuthorizationServer  # noqa: PLC0415 - as above

    login = AuthorizationServer(ISSUER)
    print(login.token(url, subject="ann"), flush=True)
    return Auth(login.issuer, resource=url, verifier=Jwt(login.issuer, http=login))


def record(*, spans: bool) -> Telemetry:
    """Record with an SDK whose exporters drop everything."""
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - the others do without
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415 - as above
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    class DroppingExporter(SpanExporter):
        """Exports nothing."""

        def export(self, _spans: Any) -> SpanExportResult:
            """Drop spans."""
            return SpanExportResult.SUCCESS

    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(DroppingExporter()))
    meters = MeterProvider(shutdown_on_exit=False)
    return Telemetry(spans=spans, tracer_provider=tracers, meter_provider=meters)


SWITCHES: dict[str, Any] = {
    "": lambda _url: {},
    "middleware": lambda _url: {"middleware": [pass_on]},
    "access log": lambda _url: {"observers": [AccessLog(level=logging.ERROR)]},  # so that lines are written
    "telemetry, off": lambda _url: {"telemetry": False},
    "metrics": lambda _url: {},  # an option of `run`
    "metrics, OpenTelemetry": lambda _url: {"telemetry": record(spans=False)},
    "spans and metrics": lambda _url: {"telemetry": record(spans=True)},
    "rate limit": lambda _url: {"middleware": [RateLimit(1_000_000)]},
    "concurrency limit": lambda _url: {"middleware": [Concurrency(1000)]},
    "timeout": lambda _url: {"middleware": [Timeout(60)]},
    "token": lambda url: {"auth": Auth(ISSUER, resource=url, verifier=verify)},
    "token, in a thread": lambda url: {"auth": Auth(ISSUER, resource=url, verifier=verify_in_thread)},
    "token, signed": lambda url: {"auth": accept_signed(url)},
}
"""Option → function of the server's URL that returns the keyword arguments, as a user would write them."""


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def wait(a: int, b: int, ctx: Context) -> int:  # noqa: ARG001 - so that there is one
    """Add two numbers, after one turn of the event loop."""
    await asyncio.sleep(0)
    return a + b


async def one(a: int, b: int, ctx: Context) -> int:
    """Add two numbers, and report progress once before."""
    await ctx.progress(1, 2)
    return a + b


async def ten(a: int, b: int, ctx: Context) -> int:
    """Add two numbers, and report progress ten times before."""
    for number in range(1, 11):
        await ctx.progress(number, 10)
    return a + b


async def large() -> str:
    """Return 1 MiB of text."""
    return LARGE


TOOLS = (add, wait, one, ten)


def make_server(url: str, switch: str = "", tools: int = 0) -> Server:
    """Create a server at a URL, with one option and this number of tools; 0 for the minimum."""
    server = Server("bench", version="1", **SWITCHES[switch](url))
    for function in TOOLS[: tools or len(TOOLS)]:
        server.tool(function)
    for number in range(len(TOOLS), tools):
        server.tool(name=f"tool_{number}")(add)
    server.resource("bench://large")(large)
    return server
