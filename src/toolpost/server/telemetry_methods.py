"""`TelemetryMethods`: the telemetry of a server. Each part is loaded when it is first switched on.

What spans and metrics contain is left to `toolpost.telemetry`.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolpost.protocol import methods
from toolpost.server.runtime.dispatch import Observer

if TYPE_CHECKING:
    from toolpost.protocol.revisions import Revision
    from toolpost.telemetry.instrumentation import Instrumentation
    from toolpost.telemetry.options import TelemetryOption
    from toolpost.telemetry.prometheus import PrometheusMetrics


class TelemetryMethods:
    """The part of a `Handler` that reports its requests."""

    observers: tuple[Observer, ...]
    telemetry: "Instrumentation | None" = None
    """Records requests with OpenTelemetry, once it is on."""

    metrics: "PrometheusMetrics | None" = None
    """Counts requests for Prometheus, if an endpoint shows them."""

    is_per_client: bool = False
    """Whether it chooses a server for each client, which then counts."""

    _telemetry_option: "TelemetryOption"

    def start_telemetry(self) -> None:
        """Start telemetry, unless it waits for a provider. The first observer makes the span for others."""
        option = self._telemetry_option
        if option == "auto" and "opentelemetry.trace" not in sys.modules:
            return
        from toolpost.telemetry.instrumentation import start_instrumentation  # noqa: PLC0415 - optional

        self.telemetry = start_instrumentation(option, methods.SERVER)
        if self.telemetry is not None:
            self._telemetry_option = False
            self.observers = (self.telemetry.observe_request, *self.observers)

    def count_in(self, metrics: "PrometheusMetrics | None" = None) -> "PrometheusMetrics":
        """For transports: count requests for Prometheus from now on, maybe with those of another server."""
        if self.metrics is None:
            from toolpost.telemetry.prometheus import PrometheusMetrics  # noqa: PLC0415 - optional

            self.metrics = PrometheusMetrics() if metrics is None else metrics
            if not self.is_per_client:  # else the chosen server counts
                self.observers = (*self.observers, self.metrics.observe_request)
        return self.metrics

    def record_session(self, seconds: float, revision: "Revision", network: Mapping[str, str | int]) -> None:
        """For transports: record how long a session has lasted, where telemetry is on."""
        for recorder in (self.telemetry, self.metrics):
            if recorder is not None:
                recorder.record_session(seconds, revision, network)
