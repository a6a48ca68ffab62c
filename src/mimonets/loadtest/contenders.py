"""What else one could do with the same modes: the rules that the drain test is compared with."""

from collections.abc import Sequence
from dataclasses import replace

from mimonets.serving.jobs import Item, Job
from mimonets.serving.modes import Mode
from mimonets.serving.policy import Policy, PolicySettings


class SuperposeWhatWaits(Policy):
    """The smallest mode whose group holds all that waits, else the fastest."""

    def next_job(self, queue: Sequence[Item], now: float, elsewhere: float = 0.0) -> Job | None:
        """Choose by the length of the queue alone."""
        if not queue:
            return None
        fits = (gear for gear, mode in enumerate(self.modes) if mode.active_streams >= len(queue))
        return self.take(queue, next(fits, self.fastest), self.settings.passes)


class DeadlineFit(Policy):
    """The most accurate mode that is in time now, if everything after it runs in the fastest.

    It uses up the whole time budget for accuracy, so it swings: slow until deadlines are near, then
    fast. Accuracy is concave in cost, so swinging loses against a steady middle.
    """

    def next_job(self, queue: Sequence[Item], now: float, elsewhere: float = 0.0) -> Job | None:
        """Choose by deadlines alone, and keep nothing for those who arrive meanwhile."""
        if not queue:
            return None
        for gear in range(self.fastest):
            job = self.take(queue, gear, self.settings.passes)
            taken = set(map(id, job.items))
            rest = [item for item in queue if id(item) not in taken]
            end = now + self.factor * job.predicted()
            if self._is_in_time(job, now) and (
                not rest or self.lateness([], rest, end, elsewhere=elsewhere) <= 0
            ):
                return job
        jobs = (self.take(queue, self.fastest, p) for p in range(self.settings.max_passes, 0, -1))
        in_time = (job for job in jobs if self._is_in_time(job, now))
        return next(in_time, self.take(queue, self.fastest, 1))


def contenders(
    modes: Sequence[Mode],
    settings: PolicySettings | None = None,
    switch: Sequence[Mode] | None = None,
) -> dict[str, Policy]:
    """Make all rules for the same network; ``switch`` are a big and a small plain network."""
    rules: dict[str, Policy] = {
        f"fixed, {mode.active_streams} active": Policy([mode], settings) for mode in modes
    }
    rules["superpose what waits"] = SuperposeWhatWaits(modes, settings)
    rules["deadline fit"] = DeadlineFit(modes, settings)
    rules["drain test"] = Policy(modes, settings)
    if switch:
        rules["big/small switch"] = Policy(switch, settings)
    return rules


def small_network(big: Mode, *, cost: float, accuracy: float) -> Mode:
    """Describe a plain network of some fraction of the cost, as what one would switch to."""
    time = replace(big.time, per_pass=big.time.per_pass * cost, per_input=big.time.per_input * cost)
    return Mode(active_streams=1, time=time, accuracy=accuracy, name="small")


def fluid_bound(modes: Sequence[Mode], rate: float) -> tuple[float, float]:
    """Give the largest fraction served and the best accuracy at a rate, if inputs were a fluid.

    No queue, no randomness, full groups: every rule for these modes stays below it.

    >>> from mimonets.serving.modes import ServiceTime
    >>> modes = [Mode(A, ServiceTime(per_pass=1.0), a) for A, a in ((1, 0.99), (4, 0.95))]
    >>> [tuple(round(value, 4) for value in fluid_bound(modes, rate)) for rate in (1, 1.6, 8)]
    [(1.0, 0.99), (1.0, 0.97), (0.5, 0.95)]
    """
    points = [(mode.cost, mode.accuracy or 0.0) for mode in modes]
    budget = 1 / rate  # seconds per input
    if budget >= points[0][0]:
        return 1.0, points[0][1]
    if budget <= points[-1][0]:
        return budget / points[-1][0], points[-1][1]
    best = 0.0
    for dear in points:
        for cheap in points:
            if cheap[0] <= budget < dear[0]:
                share = (budget - cheap[0]) / (dear[0] - cheap[0])
                best = max(best, share * dear[1] + (1 - share) * cheap[1])
    return 1.0, best
