"""`Telemetry`: what is recorded, and where it goes. Imports nothing of OpenTelemetry."""

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

__all__ = ["Telemetry", "TelemetryOption"]


class Telemetry:
    """What a server or a client records with OpenTelemetry.

    Args:
        spans: whether to record spans, and to pass the trace context on in `_meta`.
        metrics: whether to record histograms of durations.
        arguments: whether spans have the arguments of tools and prompts. Secrets are masked where their
            names or forms are known.
        results: whether spans have the results of tools, masked in the same way.
        only: the methods to record, such as ["tools/call"]; by default all.
        tracer_provider: the provider of OpenTelemetry for spans; by default the global one.
        meter_provider: the provider for metrics; by default the global one.

    Raises:
        TypeError: `only` is a string.

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
        if isinstance(only, str):
            raise TypeError(f"only must be a list of methods, such as [{only!r}], not a string")
        self.spans = spans
        self.metrics = metrics
        self.arguments = arguments
        self.results = results
        self.only: Final = None if only is None else frozenset(only)
        self.tracer_provider = tracer_provider
        self.meter_provider = meter_provider


TelemetryOption: TypeAlias = Telemetry | bool | Literal["auto"]
"""`"auto"` is on if the program has loaded an SDK of OpenTelemetry."""
