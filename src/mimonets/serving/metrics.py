"""Numbers for Prometheus, and a window of the last seconds for the page."""

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from math import inf
from statistics import fmean, median
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mimonets.serving.jobs import Job
from mimonets.serving.model_queue import InferenceRequest
from mimonets.serving.operating_points import ServedPoint

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """All counters of one server, in a registry of its own."""

    def __init__(self, queued: Callable[[], int], clock: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        self.source: Any = self.registry  # or what collects the numbers of all replicas
        self._clock = clock
        self._labelled: dict[tuple[Any, tuple[object, ...]], Any] = {}
        # (when, seconds, active streams) of answers
        self.recent: deque[tuple[float, float, int]] = deque(maxlen=20_000)
        self._offered: deque[float] = deque(maxlen=50_000)
        self._window_at, self._window = -inf, dict[str, float]()

        def make(kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **more: Any) -> Any:
            return kind(f"mimonets_{name}", text, labels, registry=self.registry, **more)

        model = ("model",)
        self.requests = make(Counter, "requests", "Requests by status", ("model", "status"))
        self.inputs = make(Counter, "inputs", "Inputs that were answered", ("model", "mode"))
        self.latency = make(
            Histogram,
            "latency_seconds",
            "Start of a request to its answer",
            ("model", "mode"),
            buckets=SECONDS,
        )
        self.compute = make(
            Histogram, "compute_seconds", "Time of a job", ("model", "mode"), buckets=SECONDS
        )
        self.active = make(
            Histogram, "active_streams", "Inputs of a pass", model, buckets=(1, 2, 4, 8, 16, 32)
        )
        self.shed = make(Counter, "shed", "Requests refused for overload, 429", model)
        self.late = make(Counter, "late", "Requests whose deadline passed, 504", model)
        self.cancelled = make(Counter, "cancelled", "Requests whose client left", model)
        self.cascaded = make(Counter, "cascaded", "Inputs that ran again in slow mode", model)
        self.safety = make(Gauge, "safety_factor", "99th percentile of observed/predicted", model)
        self.correction = make(Gauge, "correction", "Mean of observed/predicted time", model)
        make(Gauge, "queued_inputs", "Inputs that wait").set_function(queued)

    def job(self, job: Job, seconds: float) -> None:
        """Count a job; called on the inference thread."""
        name, policy = job.queue.name, job.queue.policy
        self._of(self.compute, name, _label(job.point)).observe(seconds)
        for group in job.groups:
            self._of(self.active, name).observe(len(group.inputs))
        self._of(self.safety, name).set(policy.safety)
        self._of(self.correction, name).set(policy.correction)
        if job.fast_answers:
            self._of(self.cascaded, name).inc(len(job.fast_answers))

    def offered(self, now: float) -> None:
        """Count a request that came, whatever becomes of it."""
        self._offered.append(now)

    def ended(self, name: str, status: int) -> None:
        """Count what became of a request."""
        self._of(self.requests, name, status).inc()
        if status == 429:
            self._of(self.shed, name).inc()
        elif status == 504:
            self._of(self.late, name).inc()

    def answered(self, request: InferenceRequest) -> None:
        """Count an answered request."""
        name, seconds = request.queue.name, self._clock() - request.arrival
        points = [answer.point for answer in request.answers if answer]
        fastest = min(points, key=lambda point: point.cost)
        self._of(self.latency, name, _label(fastest)).observe(seconds)
        for point in points:
            self._of(self.inputs, name, _label(point)).inc()
        most_active = max(point.inputs_per_pass for point in points)
        self.recent.append((request.arrival + seconds, seconds, most_active))

    def _of(self, metric: Any, *labels: object) -> Any:
        """Give a metric with labels, found once: looking them up takes as long as counting."""
        found = self._labelled.get((metric, labels))
        if found is None:
            found = self._labelled[metric, labels] = metric.labels(*labels)
        return found

    def text(self) -> bytes:
        """Give everything in Prometheus' text format."""
        return generate_latest(self.source)

    def window(self, seconds: float = 2.0) -> dict[str, float]:
        """Summarise the last seconds for the page; all pages of a tenth of a second share it."""
        now = self._clock()
        if now < self._window_at + 0.1:
            return self._window
        since = now - seconds
        recent = list(takewhile(lambda entry: entry[0] >= since, reversed(self.recent)))
        offered = sum(1 for _ in takewhile(lambda when: when >= since, reversed(self._offered)))
        found = {"offered": offered / seconds, "throughput": len(recent) / seconds}
        if recent:
            latencies = sorted(entry[1] for entry in recent)
            found["p50_ms"] = 1000 * median(latencies)
            found["p99_ms"] = 1000 * latencies[99 * len(latencies) // 100]
            found["active_streams"] = fmean(entry[2] for entry in recent)
        self._window_at, self._window = now, found
        return found


def _label(point: ServedPoint) -> str:
    """Name a point in metrics: its active streams, or which network or resolution it is."""
    return point.name.removesuffix(" active")
