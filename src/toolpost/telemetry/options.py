"""`Telemetry`: what is recorded with OpenTelemetry, and where it goes.

Loads nothing of OpenTelemetry.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias


class Telemetry:
    """What a server or a client records with OpenTelemetry.

    Args:
        spans: whether to record spans, and to pass the trace context on in `_meta`.
        metrics: whether to record histograms of durations.
        arguments: whether spans have the arguments of tools and prompts, with masked secrets.
        results: whether spans have the results of tools, with masked secrets.
        only: the methods to record, such as ["tools/call"]; by default all.
        tracer_provider: the provider for spans; by default the global one.
        meter_provider: the provider for metrics; by default the global one.

    Examples:
        >>> server = Server("shop", telemetry=Telemetry(arguments=True, only=["tools/call"]))
    """

    def __init__(
        self,
        *,
        spans: bool = True,
        metrics: bool = True,
        arguments: bool = False,
        results: bool = False,
        only: Iterable[str] | None = None,
        tracer_provider: Any = None,
        meter_provider: Any = None,
    ) -> None:
        self.spans, self.metrics = spans, metrics
        self.arguments, self.results = arguments, results
        self.only = None if only is None else frozenset([only] if isinstance(only, str) else only)
        self.tracer_provider, self.meter_provider = tracer_provider, meter_provider


TelemetryOption: TypeAlias = Telemetry | bool | Literal["auto"]
"""`"auto"` records if the program has set a provider of OpenTelemetry."""
