"""Spans of OpenTelemetry: what a request waited for, and which pass answered it. Off by default.

A request is a span ``infer MODEL`` with a ``decode``, and a ``queue`` and a ``pass`` for each job
that ran some of its inputs. They are made when it has ended, from times that
the server knows anyway. A ``traceparent`` that the client sent makes them part of its trace.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace

from mimonets.serving.model_queue import InferenceRequest


class Tracing:
    """Makes the spans of a server with a provider of tracers."""

    def __init__(self, provider: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._provider, self._clock = provider, clock
        self._tracer = provider.get_tracer("mimonets.serving")

    @contextmanager
    def request(self, headers: Mapping[bytes, bytes]) -> Iterator[Any]:
        """Be the span of a request; what happens inside belongs to it."""
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        with self._tracer.start_as_current_span(
            "request",
            context=propagate.extract(named),
            kind=trace.SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    def end(self, span: Any, model: str, status: int) -> None:
        """Say what became of a request."""
        span.update_name(f"infer {model}".strip())
        span.set_attributes({"mimonets.model": model, "http.response.status_code": status})
        if status >= 500:
            span.set_status(trace.StatusCode.ERROR)

    def answered(self, request: InferenceRequest, begun: float, submitted: float) -> None:
        """Make the spans of an answered request, within the current one."""
        # Clocks of traces count from 1970, ours from anywhere.
        origin = time.time_ns() - int(1e9 * self._clock())

        def make(name: str, start: float, end: float, **attributes: Any) -> None:
            span = self._tracer.start_span(name, start_time=origin + int(1e9 * start))
            span.set_attributes({f"mimonets.{key}": value for key, value in attributes.items()})
            span.end(origin + int(1e9 * end))

        make("decode", begun, submitted, inputs=request.count)
        jobs: dict[tuple[float, float, int], list[Any]] = {}
        for answer in request.answers:
            if answer is not None:
                job = (answer.queued, answer.computed, answer.point.number)
                jobs.setdefault(job, []).append(answer)
        for (queued, computed, _), answers in jobs.items():
            started = submitted + queued
            make("queue", submitted, started, inputs=len(answers))
            make(
                "pass",
                started,
                started + computed,
                inputs=len(answers),
                group_size=max(answer.group_size for answer in answers),
                operating_point=answers[0].point.name,
                active_streams=answers[0].point.inputs_per_pass,
                cascaded=any(answer.cascaded for answer in answers),
            )

    def stop(self) -> None:
        """Send what waits to be sent."""
        self._provider.shutdown()


def export_to(url: str) -> Any:
    """Make a provider that sends spans by OTLP over HTTP, such as to http://localhost:4318."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "mimonets"}))
    exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
