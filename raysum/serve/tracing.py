"""Spans of requests for OpenTelemetry. The collector is in the usual environment variables (OTEL_EXPORTER_OTLP_...)."""

from typing import Any

from raysum.runtime.extras import needs

_WHAT = "--trace"


def check_tracing() -> None:
    """Raises UserError if the libraries are missing."""
    needs("opentelemetry.sdk.trace", _WHAT)
    needs("opentelemetry.exporter.otlp.proto.http.trace_exporter", _WHAT)


def exporter() -> list[Any]:
    """Return the span processors of a process of the service. Ray Serve calls it by its name."""
    export = needs("opentelemetry.sdk.trace.export", _WHAT)
    otlp = needs("opentelemetry.exporter.otlp.proto.http.trace_exporter", _WHAT)
    return [export.BatchSpanProcessor(otlp.OTLPSpanExporter())]
