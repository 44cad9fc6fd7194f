"""An SDK of OpenTelemetry whose spans and metrics stay in memory."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolpost import Telemetry

__all__ = ["Recorded"]


class Recorded:
    """What was recorded so far, and the providers that record it."""

    def __init__(self) -> None:
        self.exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def telemetry(self, **options: Any) -> Telemetry:
        """Return the option of a server or a client that records here."""
        return Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self, method: str = "", kind: str = "") -> list[Any]:
        """Return the ended spans, of a method and a kind if they are given."""
        return [
            span
            for span in self.exporter.get_finished_spans()
            if method in {"", str((span.attributes or {}).get("mcp.method.name"))}
            and kind in {"", span.kind.name}
        ]

    def points(self, metric: str) -> list[Any]:
        """Return the data points of a metric."""
        data = self._reader.get_metrics_data()
        found = [] if data is None else data.resource_metrics
        scopes = [scope for resource in found for scope in resource.scope_metrics]
        metrics = [each for scope in scopes for each in scope.metrics if each.name == metric]
        return [point for each in metrics for point in each.data.data_points]
