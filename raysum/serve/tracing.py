"""Spans of requests for OpenTelemetry. The collector is in the usual environment variables (OTEL_EXPORTER_OTLP_...)."""

from typing import Any

from raysum.runtime.extras import needs


def tracing_libraries() -> tuple[Any, Any]:
    """Return OpenTelemetry's modules of span processors and of the exporter. Raises UserError if they are missing."""
    names = ("opentelemetry.sdk.trace.export", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
    export, otlp = (needs(name, "--trace") for name in names)
    return export, otlp


def exporter() -> list[Any]:
    """Return the span processors of a process of the service. Ray Serve calls it by its name."""
    export, otlp = tracing_libraries()
    return [export.BatchSpanProcessor(otlp.OTLPSpanExporter())]
