"""A server without a server: the same batcher and policy, with events in place of a clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from mimonets.serving.batcher import Batcher, RefusedError, Work
from mimonets.serving.model_queue import ModelQueue, Ticket
from mimonets.serving.modes import Mode
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
            part = Outcome(
                arrival=self.arrival[chosen],
                latency=self.latency[chosen],
                accuracy=self.accuracy[chosen],
                active=self.active[chosen],
                refused=self.refused[chosen],
                slo=self.slo,
            ).summary()
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
    truth: Sequence[Mode] | None = None,
) -> Outcome:
    """Let requests of one input each arrive, and serve them by a policy.

    Args:
        policy: decides; its service-time model is also the truth, up to the noise.
        arrivals: sorted seconds.
        slo: seconds that each request may take.
        rng: draws the noise.
        noise: spread of the logarithm of every job's time.
        overhead: seconds that a request spends outside the queue and the engine.
        truth: modes that say how accurate a group of some size is; the policy's own by default.
    """
    arrivals = np.asarray(arrivals, dtype=float)
    batcher, lane = Batcher(), ModelQueue("model", policy)
    batcher.lanes.append(lane)
    count = len(arrivals)
    latency, accuracy = np.full(count, np.nan), np.zeros(count)
    active, refused = np.zeros(count, dtype=int), np.zeros(count, dtype=bool)
    known = list(truth or policy.modes)
    running: Work | None = None
    ends, upcoming = inf, 0

    def start(now: float) -> None:
        nonlocal running, ends
        running, _ = batcher.next_work(now)
        ends = inf
        if running is not None:
            ends = now + running.job.predicted() * float(np.exp(rng.normal(0.0, noise)))

    while upcoming < count or running is not None:
        arrives = arrivals[upcoming] if upcoming < count else inf
        if arrives <= ends:
            ticket = Ticket(None, 1, arrives, arrives + slo - overhead, future=upcoming)
            upcoming += 1
            try:
                batcher.offer(lane, ticket, arrives)
            except RefusedError:
                refused[ticket.future] = True
                continue
            if running is None:
                start(arrives)
            continue
        assert running is not None
        outputs = {id(item): (None, 1.0) for item in running.job.items}
        now = ends
        for ticket in batcher.finish(running, outputs, now):
            (answer,) = ticket.answers
            assert answer is not None
            latency[ticket.future] = now - ticket.arrival + overhead
            active[ticket.future] = answer.group_size
            mode = policy.modes[answer.mode]
            accuracy[ticket.future] = _accuracy_of(mode, answer.group_size, known)
        start(now)
    return Outcome(arrivals, latency, accuracy, active, refused, slo)


def _accuracy_of(mode: Mode, size: int, known: Sequence[Mode]) -> float:
    """Find the accuracy of a group: that of the smallest mode that holds it."""
    if mode.active_streams == 1:
        return mode.accuracy or 0.0
    fits = [point for point in known if point.active_streams >= size]
    return min(fits, key=lambda point: point.active_streams).accuracy or 0.0
