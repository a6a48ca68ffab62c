"""Other rules for the same operating points, with which the drain test is compared."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mimonets.serving.jobs import Job, QueuedInput
from mimonets.serving.operating_points import ServedPoint
from mimonets.serving.policy import Policy, PolicySettings


class SuperposeWhatWaits(Policy):
    """The point with the smallest group that holds all that waits, else the fastest."""

    def next_job(self, queue: Sequence[QueuedInput], now: float, elsewhere: float = 0.0) -> Job:
        """Choose by the length of the queue alone."""
        fits = (i for i, point in enumerate(self.points) if point.inputs_per_pass >= len(queue))
        return self.take(queue, next(fits, self.fastest), self.settings.passes)


class DeadlineFit(Policy):
    """The most accurate point that is in time now, if everything after it runs at the fastest.

    It uses up the whole time budget for accuracy, so it swings: slow until deadlines are near, then
    fast. Accuracy is concave in cost, so swinging loses against a steady middle.
    """

    def next_job(self, queue: Sequence[QueuedInput], now: float, elsewhere: float = 0.0) -> Job:
        """Choose by deadlines alone, and keep nothing for those who arrive meanwhile."""
        for index in range(self.fastest):
            job = self.take(queue, index, self.settings.passes)
            taken = set(map(id, job.inputs))
            rest = [queued for queued in queue if id(queued) not in taken]
            end = now + self.factor * job.predicted()
            if self._is_in_time(job, now) and (
                not rest or self.lateness([], rest, end, elsewhere=elsewhere) <= 0
            ):
                return job
        jobs = (self.take(queue, self.fastest, p) for p in range(self.settings.max_passes, 0, -1))
        in_time = (job for job in jobs if self._is_in_time(job, now))
        return next(in_time, self.take(queue, self.fastest, 1))


def contenders(
    points: Sequence[ServedPoint],
    settings: PolicySettings | None = None,
    switch: Sequence[ServedPoint] | None = None,
) -> dict[str, Policy]:
    """Make all rules for the same network; ``switch`` are a big and a small plain network."""
    rules: dict[str, Policy] = {
        f"fixed, {point.inputs_per_pass} active": Policy([point], settings) for point in points
    }
    rules["superpose what waits"] = SuperposeWhatWaits(points, settings)
    rules["deadline fit"] = DeadlineFit(points, settings)
    rules["drain test"] = Policy(points, settings)
    if switch:
        rules["big/small switch"] = Policy(switch, settings)
    return rules


def small_network(big: ServedPoint, cost: float, accuracy: float) -> ServedPoint:
    """Describe a plain network of some fraction of the cost, as what one would switch to."""
    time = replace(big.time, per_pass=big.time.per_pass * cost, per_input=big.time.per_input * cost)
    return ServedPoint(number=big.number + 1, name="small", time=time, accuracy=accuracy)


def fluid_bound(points: Sequence[ServedPoint], rate: float) -> tuple[float, float]:
    """Give the largest fraction served and the best accuracy at a rate, if inputs were a fluid.

    No queue, no randomness, full groups: every rule for these points stays below it. They are
    `useful_points`, so that no mixture is better than one of neighbours.

    >>> from mimonets.loadtest.simulator import superposed_points
    >>> from mimonets.serving.operating_points import ServiceTime
    >>> points = superposed_points({1: 0.99, 4: 0.95}, ServiceTime(per_pass=1.0))
    >>> [tuple(round(value, 4) for value in fluid_bound(points, rate)) for rate in (1, 1.6, 8)]
    [(1.0, 0.99), (1.0, 0.97), (0.5, 0.95)]
    """
    costs, accuracies = zip(*((p.cost, p.accuracy or 0.0) for p in reversed(points)), strict=True)
    budget = 1 / rate  # seconds per input
    return min(1.0, budget / costs[0]), float(np.interp(budget, costs, accuracies))
