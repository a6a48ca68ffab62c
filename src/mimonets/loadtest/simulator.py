"""A server without a server: the same batcher and policy, with events in place of a clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from mimonets.serving.batcher import Batcher
from mimonets.serving.errors import RefusedError
from mimonets.serving.jobs import Job
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.operating_points import ServedPoint, ServiceTime
from mimonets.serving.policy import Policy

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of every request, in order of arrival."""

    arrival: Array  # seconds
    latency: Array  # seconds; nan where there was no answer
    accuracy: Array  # chance that the answer is right; 0 where there was none
    active: Array  # members of the group it ran in; 0 where it did not run
    refused: Array  # True: 429 at once
    slo: float

    def summary(self) -> dict[str, float]:
        """Give the headline numbers: shares of all that was offered, and latencies in seconds."""
        in_time = self.latency <= self.slo  # nan compares as False
        answered = np.isfinite(self.latency)
        latencies = self.latency[answered] if answered.any() else np.array([np.nan])
        return {
            "offered": len(self.arrival),
            "right_in_time": float(np.sum(self.accuracy * in_time) / len(self.arrival)),
            "in_time": float(in_time.mean()),
            "accuracy": float(self.accuracy[answered].mean()) if answered.any() else float("nan"),
            "p50": float(np.percentile(latencies, 50)),
            "p99": float(np.percentile(latencies, 99)),
            "refused": float(self.refused.mean()),
            "late": float((~in_time & ~self.refused).mean()),
            "active": float(self.active[answered].mean()) if answered.any() else float("nan"),
        }

    def timeline(self, width: float) -> dict[str, list[float]]:
        """Give the same by time of arrival, in bins of ``width`` seconds."""
        bins = (self.arrival // width).astype(int)
        rows: dict[str, list[float]] = {
            name: [] for name in ("seconds", "rate", "right_in_time", "p99", "active")
        }
        for number in range(int(bins.max()) + 1):
            chosen = bins == number
            if not chosen.any():
                continue
            found = {name: values[chosen] for name, values in vars(self).items() if name != "slo"}
            part = Outcome(**found, slo=self.slo).summary()
            rows["seconds"].append(number * width)
            rows["rate"].append(float(chosen.sum()) / width)
            for name in ("right_in_time", "p99", "active"):
                rows[name].append(part[name])
        return rows


def simulate(
    policy: Policy,
    arrivals: Sequence[float] | Array,
    slo: float,
    *,
    rng: np.random.Generator,
    noise: float = 0.03,
    overhead: float = 0.0,
    truth: Sequence[ServedPoint] | None = None,
) -> Outcome:
    """Let requests of one input each arrive, and serve them by a policy.

    Args:
        policy: decides; its service-time model is also the truth, up to the noise.
        arrivals: sorted seconds.
        slo: seconds that each request may take.
        rng: draws the noise.
        noise: spread of the logarithm of every job's time.
        overhead: seconds that a request spends outside the queue and the engine.
        truth: points that say how accurate a group of some size is; the policy's own by default.
    """
    arrivals = np.asarray(arrivals, dtype=float)
    batcher, queue = Batcher(), ModelQueue("model", policy)
    batcher.queues.append(queue)
    count = len(arrivals)
    latency, accuracy = np.full(count, np.nan), np.zeros(count)
    active, refused = np.zeros(count, dtype=int), np.zeros(count, dtype=bool)
    known = list(truth or policy.points)
    running: Job | None = None
    ends, upcoming = inf, 0

    def start(now: float) -> None:
        nonlocal running, ends
        running, _ = batcher.next_job(now)
        ends = inf
        if running is not None:
            ends = now + running.predicted() * float(np.exp(rng.normal(0.0, noise)))

    while upcoming < count or running is not None:
        arrives = arrivals[upcoming] if upcoming < count else inf
        if arrives <= ends:
            deadline = arrives + slo - overhead
            request = InferenceRequest(queue, upcoming, 1, arrives, deadline)  # its number as input
            upcoming += 1
            try:
                batcher.offer(request, arrives)
            except RefusedError:
                refused[request.inputs] = True
                continue
            if running is None:
                start(arrives)
            continue
        assert running is not None
        outputs = {id(queued): (None, 1.0) for queued in running.inputs}
        now = ends
        for request in batcher.finish(running, outputs, now):
            (answer,) = request.answers
            assert answer is not None
            number = request.inputs
            latency[number] = now - request.arrival + overhead
            active[number] = answer.group_size
            accuracy[number] = _accuracy_of(answer.point, answer.group_size, known)
        start(now)
    return Outcome(arrivals, latency, accuracy, active, refused, slo)


def superposed_points(
    accuracies: Mapping[int, float], time: ServiceTime
) -> tuple[ServedPoint, ...]:
    """Make the points of a network with streams from {active streams: accuracy}."""
    return tuple(
        ServedPoint(
            number=active,
            name=f"{active} active",
            inputs_per_pass=active,
            accuracy=accuracy,
            time=time,
        )
        for active, accuracy in accuracies.items()
    )


def _accuracy_of(point: ServedPoint, size: int, known: Sequence[ServedPoint]) -> float:
    """Find the accuracy of a group: that of the smallest point that holds it."""
    if point.inputs_per_pass == 1:
        return point.accuracy or 0.0
    fits = [other for other in known if other.inputs_per_pass >= size]
    return min(fits, key=lambda other: other.inputs_per_pass).accuracy or 0.0
