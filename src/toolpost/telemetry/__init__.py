"""Spans and metrics of servers and clients, for OpenTelemetry and Prometheus. Loaded only where on."""
