r"""Which inputs run next, in which mode: the drain test. Pure: the time is always an argument.

Superposition buys throughput at nearly constant latency, so a rule that looks at the first deadline
only is either always fast or swings between the modes. The drain test looks at the whole queue:
**take the most accurate mode in which everything that waits is still answered in time.**

.. math:: \mathrm{now} + k\,\mathrm{drain}(A, \text{the first } i \text{ inputs})
          \le \mathrm{deadline}_i - (1 - \theta)\,\mathrm{budget}_i \qquad\text{for every } i

The part (1 - theta) of every time budget is kept for those who arrive meanwhile. Nothing ever waits
for a group to fill: a short group is more accurate.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from mimonets._config import Config, integer
from mimonets.serving.jobs import Backlog, Group, Item, Job
from mimonets.serving.modes import Mode

MISS_FACTOR = 1.1  # the safety factor grows by 10 % with every late job
DECAY = MISS_FACTOR ** (-1 / 99)  # and is steady if one job in 100 is late: a 99th percentile
LARGEST_SAFETY = 4.0
RECOVERY = MISS_FACTOR ** (-1 / 9999)  # of the reserve: steady if one promise in 10,000 is broken
LEAST_RESERVE, LARGEST_RESERVE = 0.01, 0.25  # of a time budget
TRUST_KEPT = 0.25  # of theta, with every refusal
LEAST_TRUST = 0.01
PATIENCE = 200.0  # time budgets without a refusal until trust doubles again
LONGEST_BUDGET = 1.0  # seconds; of a longer one, so much counts
CALL_SHARE = 0.05  # of a job's time that its calls may take: larger jobs would be better
CORRECTION_RATE = 0.05  # how fast the running correction forgets


@dataclass(frozen=True, kw_only=True)
class PolicySettings(Config):
    """What the operator of a server may choose."""

    theta: float = 0.6  # fraction of the time budget that the queue may use
    passes: int = integer(2)  # passes per job in all modes but the fastest: decide again soon
    max_passes: int = integer(8)  # at most so many passes per job in the fastest mode

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        if not 0 < self.theta <= 1:
            found.append(f"theta={self.theta!r} must be above 0 and at most 1.")
        return found


class Policy:
    """The drain test, with a service-time model that is corrected while it runs.

    Modes come most accurate (and slowest) first; `useful_modes` orders them so.
    """

    def __init__(self, modes: Sequence[Mode], settings: PolicySettings | None = None) -> None:
        self.modes = list(modes)
        self.settings = settings or PolicySettings()
        self.correction = 1.0  # observed / predicted, a moving average
        self.safety = 1.0  # k: the 99th percentile of observed / corrected prediction
        self.reserve = LEAST_RESERVE  # fraction of time budgets that admission keeps free
        self._calm_since = -inf  # when the last request was refused
        self._trust = 1.0  # what refusals have left of theta, at that time
        self._patience = 1.0  # seconds in which trust doubles again

    @property
    def fastest(self) -> int:
        """Index of the fastest mode."""
        return len(self.modes) - 1

    @property
    def largest_job(self) -> int:
        """Passes of the largest job in the fastest mode: as few as make calls cheap.

        All inputs of a job are answered at its end, so a job of many passes makes its first ones
        late. What it saves is c for each call that is not made: enough passes are enough.
        """
        time = self.modes[self.fastest].time
        if time.per_pass == 0:
            return self.settings.max_passes
        enough = ceil(time.per_call / (CALL_SHARE * time.per_pass))
        return min(max(enough, self.settings.passes), self.settings.max_passes)

    @property
    def factor(self) -> float:
        """What every prediction is multiplied by before it is compared with a deadline."""
        return self.safety * self.correction

    def theta(self, now: float) -> float:
        """Give the fraction of time budgets that the queue may use now."""
        if self._trust == 1.0:
            return self.settings.theta
        calm = 2 ** min((now - self._calm_since) / self._patience, 60)
        return self.settings.theta * min(1.0, self._trust * calm)

    def refused(self, now: float, budget: float) -> None:
        """Learn from a refusal that load caused: no answer costs far more than a fast one.

        Less of the time budgets is used for accuracy until there were no refusals for a while.
        """
        trust = self.theta(now) / self.settings.theta
        self._trust = max(trust * TRUST_KEPT, LEAST_TRUST)
        self._calm_since, self._patience = now, PATIENCE * min(budget, LONGEST_BUDGET)

    def kept(self) -> None:
        """Learn that an admitted request was answered in time."""
        self.reserve = max(self.reserve * RECOVERY, LEAST_RESERVE)

    def broke(self) -> None:
        """Learn that one was not: promise less.

        Under overload everybody who waits is admitted just in time, so that one pause of the
        machine makes all of them late. A shorter queue answers as many, and bears the pause.
        """
        self.reserve = min(self.reserve * MISS_FACTOR, LARGEST_RESERVE)

    def latest(self, item: Item) -> float:
        """Give the time at which an input must be done to be admitted."""
        return item.deadline - self.reserve * (item.deadline - item.arrival)

    def limit(self, *, max_active: int | None = None, min_accuracy: float | None = None) -> int:
        """Find the fastest mode that a request allows; raises ValueError if there is none."""
        if max_active is None and min_accuracy is None:
            return self.fastest
        fits = [
            index
            for index, mode in enumerate(self.modes)
            if (max_active is None or mode.active_streams <= max_active)
            and (min_accuracy is None or (mode.accuracy or 0.0) >= min_accuracy)
        ]
        if not fits:
            known = ", ".join(
                f"{mode.active_streams} active"
                + ("" if mode.accuracy is None else f": {mode.accuracy:.4f}")
                for mode in self.modes
            )
            raise ValueError(
                f"No mode fits max_active={max_active} and min_accuracy={min_accuracy}: "
                f"the modes and their accuracies are {known}."
            )
        return max(fits)

    def lateness(
        self,
        queue: Sequence[Item],
        items: Sequence[Item],
        now: float,
        free_at: float = -inf,
        elsewhere: float = 0.0,
    ) -> float:
        """Say by how many seconds somebody would be late if ``items`` joined the ordered queue.

        In the fastest mode, with the largest batches, after the running job and ``elsewhere``
        seconds of other models' work. At most 0: admit them, and whoever is queued stays in time.
        """
        start = max(now, free_at) + elsewhere
        backlog = Backlog(self.modes, self.fastest, self.largest_job)
        first = bisect_left(queue, items[0].place, key=_place)  # a request's inputs are neighbours
        for item in queue[:first]:
            backlog.add(item)
        worst, factor = -inf, self.factor
        for item in items:
            worst = max(worst, start + factor * backlog.add(item) - self.latest(item))
        for item in queue[first:]:
            worst = max(worst, start + factor * backlog.add(item) - item.deadline)
        return worst

    def next_job(self, queue: Sequence[Item], now: float, elsewhere: float = 0.0) -> Job | None:
        """Choose the inputs and the mode to run now; None only if nothing waits."""
        if not queue:
            return None
        settings = self.settings
        for gear in range(self.fastest):
            job = self.take(queue, gear, settings.passes)
            if self._is_in_time(job, now) and self._drains(
                queue, gear, settings.passes, now, elsewhere
            ):
                return job
        largest = self.largest_job
        sizes = sorted({min(largest, size) for size in (2, 4, largest)})
        jobs = {passes: self.take(queue, self.fastest, passes) for passes in sizes}
        for passes, job in jobs.items():
            if self._is_in_time(job, now) and self._drains(
                queue, self.fastest, passes, now, elsewhere
            ):
                return job
        for job in reversed(jobs.values()):
            if self._is_in_time(job, now):
                return job
        return self.take(queue, self.fastest, 1)

    def take(self, queue: Sequence[Item], gear: int, passes: int) -> Job:
        """Fill up to ``passes`` groups, in order of service.

        A group holds one tenant unless all its members agreed to share, and no input runs in a
        faster mode than it allows. Who comes later may still join an open group: it costs no pass.
        """
        groups: list[Group] = []
        open_groups: dict[object, Group] = {}
        # Far down the queue little is left to fill; looking there would take time in every job.
        widest = max(mode.active_streams for mode in self.modes)  # some may ask for that
        for item in queue[: 4 * passes * widest]:
            if len(groups) == passes and not open_groups:
                break
            mode = item.mode(gear)
            who = (mode, item.neighbours())
            group = open_groups.get(who)
            if group is None:
                if len(groups) == passes:
                    continue
                group = open_groups[who] = Group(mode, [])
                groups.append(group)
            group.items.append(item)
            if len(group.items) == self.modes[mode].active_streams:
                del open_groups[who]
        return Job(gear, groups, self.modes)

    def mode_of(self, mode: int, members: int) -> int:
        """Find the mode that a short group runs in: the one of its number, or the next larger."""
        sizes = [point.active_streams for point in self.modes[: mode + 1]]
        if sizes != sorted(set(sizes)):  # several networks: a short group changes nothing
            return mode
        return min(bisect_left(sizes, members), mode)

    def observe(self, predicted: float, seconds: float) -> None:
        """Learn from a job: follow the mean and the 99th percentile of observed / predicted."""
        if predicted <= 0 or seconds <= 0:
            return
        ratio = seconds / predicted
        self.safety *= MISS_FACTOR if ratio > self.factor else DECAY
        self.safety = min(max(self.safety, 1.0), LARGEST_SAFETY)
        self.correction += CORRECTION_RATE * (min(ratio, 4 * self.correction) - self.correction)

    def is_worth_a_rerun(self, mode: int, confidence: float) -> bool:
        """Cascade: tell whether the confidence of a fast answer says that slow might differ."""
        threshold = self.modes[mode].confidence
        return mode > 0 and threshold is not None and confidence < threshold

    def has_slack(self, item: Item, now: float) -> bool:
        """Cascade: tell whether a rerun in the slowest mode would still be in time."""
        alone = self.modes[0].time.of(1, self.modes[0].active_streams)
        return now + self.factor * alone <= item.deadline

    def _is_in_time(self, job: Job, now: float) -> bool:
        end = now + self.factor * job.predicted()
        return all(end <= item.deadline for group in job.groups for item in group.items)

    def _drains(
        self, queue: Sequence[Item], gear: int, passes: int, now: float, elsewhere: float
    ) -> bool:
        """Tell whether every prefix of the queue is done in its part of the time budget."""
        backlog = Backlog(self.modes, gear, passes)
        start, factor, kept = now + elsewhere, self.factor, 1 - self.theta(now)
        for item in queue:
            latest = item.deadline - kept * (item.deadline - item.arrival)
            if start + factor * backlog.add(item) > latest:
                return False
        return True


def _place(item: Item) -> tuple[int, float, int]:
    return item.place
