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
from dataclasses import dataclass, field
from math import inf
from typing import Any

from mimonets._config import Config, whole
from mimonets.serving.modes import Mode

MISS_FACTOR = 1.1  # the safety factor grows by 10 % with every late job
DECAY = MISS_FACTOR ** (-1 / 99)  # and is steady if one job in 100 is late: a 99th percentile
LARGEST_SAFETY = 4.0
CORRECTION_RATE = 0.05  # how fast the running correction forgets


@dataclass(frozen=True, kw_only=True)
class PolicySettings(Config):
    """What the operator of a server may choose."""

    theta: float = 0.6  # fraction of the time budget that the queue may use
    passes: int = whole(2)  # passes per job in all modes but the fastest: decide again soon
    max_passes: int = whole(8)  # passes per job in the fastest mode

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        if not 0 < self.theta <= 1:
            found.append(f"theta={self.theta!r} must be above 0 and at most 1.")
        return found


@dataclass(slots=True, eq=False)
class Item:
    """One input that waits. ``place`` orders the queue: priority, then deadline, then arrival."""

    arrival: float
    deadline: float
    limit: int = 10**9  # the fastest mode it may run in, as an index
    least: int = 0  # the slowest mode it may run in, as an index
    tenant: str = ""
    shares: bool = False  # may share a pass with other tenants who agreed to that too
    alone: bool = False  # deterministic: runs as a batch of one, in the slowest mode
    priority: int = 0  # smaller is served first
    number: int = 0
    owner: Any = None  # the request that it belongs to
    row: int = 0  # which of the request's inputs it is

    @property
    def place(self) -> tuple[int, float, int]:
        """Order of service: earliest deadline first within a priority."""
        return (self.priority, self.deadline, self.number)

    def mode(self, gear: int) -> int:
        """Tell in which mode it runs when the policy chose this one."""
        return 0 if self.alone else min(max(gear, self.least), self.limit)

    def neighbours(self) -> object:
        """Tell with whom it may share a pass: inputs whose answers here are equal."""
        if self.alone:
            return (self.number, self.row)
        return None if self.shares else self.tenant


@dataclass(slots=True)
class Group:
    """Inputs that share a pass, or a single one."""

    mode: int  # index of the mode it runs in
    items: list[Item]


@dataclass(slots=True)
class Job:
    """What the engine does next, until the policy is asked again."""

    gear: int  # index of the mode that the policy chose
    groups: list[Group]
    modes: Sequence[Mode] = field(repr=False)

    @property
    def items(self) -> list[Item]:
        """All inputs of the job."""
        return [item for group in self.groups for item in group.items]

    def calls(self) -> list[tuple[int, list[Item]]]:
        """List the calls of the engine as (mode, inputs).

        Full groups of one mode are one call; a short group is a call of its own, so that nobody
        joins it, and so is an input that must run alone.
        """
        merged: dict[int, list[Item]] = {}
        single: list[tuple[int, list[Item]]] = []
        for group in self.groups:
            is_full = len(group.items) == self.modes[group.mode].active_streams
            if is_full and not group.items[0].alone:
                merged.setdefault(group.mode, []).extend(group.items)
            else:
                single.append((group.mode, group.items))
        return [*merged.items(), *single]

    def predicted(self) -> float:
        """Add up the service times of all calls, uncorrected."""
        return sum(
            self.modes[mode].time.of(len(items), self.modes[mode].active_streams)
            for mode, items in self.calls()
        )


class Backlog:
    """The time that a growing set of inputs needs in one gear, in jobs of some passes each."""

    def __init__(self, modes: Sequence[Mode], gear: int, passes: int) -> None:
        self._modes, self._gear, self._passes = modes, gear, passes
        self._open: dict[object, int] = {}  # members of every group that is not full
        self._full = [0] * len(modes)
        self._now = 0.0
        self.seconds = 0.0  # never falls, though a group that gets full may save a call

    def add(self, item: Item) -> float:
        """Add an input; returns the seconds that all of them need."""
        index = item.mode(self._gear)
        mode = self._modes[index]
        time = mode.time
        who = (index, item.neighbours())
        members = self._open.get(who, 0) + 1
        self._now += time.per_input
        if members == 1:
            self._now += time.per_pass + time.per_call
        if members == mode.active_streams:  # full groups share calls, one for each job
            if self._full[index] % self._passes:
                self._now -= time.per_call
            self._full[index] += 1
            members = 0
        self._open[who] = members
        self.seconds = max(self.seconds, self._now)
        return self.seconds


class Policy:
    """The drain test, with a service-time model that is corrected while it runs.

    Modes come most accurate (and slowest) first; `useful_modes` orders them so.
    """

    def __init__(self, modes: Sequence[Mode], settings: PolicySettings | None = None) -> None:
        self.modes = list(modes)
        self.settings = settings or PolicySettings()
        self.correction = 1.0  # observed / predicted, a moving average
        self.safety = 1.0  # k: the 99th percentile of observed / corrected prediction

    @property
    def fastest(self) -> int:
        """Index of the fastest mode."""
        return len(self.modes) - 1

    @property
    def factor(self) -> float:
        """What every prediction is multiplied by before it is compared with a deadline."""
        return self.safety * self.correction

    def limit(self, *, max_active: int | None = None, min_accuracy: float | None = None) -> int:
        """Find the fastest mode that a request allows; raises ValueError if there is none."""
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
        backlog = Backlog(self.modes, self.fastest, self.settings.max_passes)
        first = bisect_left(queue, items[0].place, key=_place)  # a request's inputs are neighbours
        for item in queue[:first]:
            backlog.add(item)
        worst, factor = -inf, self.factor
        for item in (*items, *queue[first:]):
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
        sizes = sorted({min(settings.max_passes, size) for size in (2, 4, settings.max_passes)})
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
        for item in queue[: 4 * passes * self.modes[gear].active_streams]:
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
        start, factor, kept = now + elsewhere, self.factor, 1 - self.settings.theta
        for item in queue:
            latest = item.deadline - kept * (item.deadline - item.arrival)
            if start + factor * backlog.add(item) > latest:
                return False
        return True


def _place(item: Item) -> tuple[int, float, int]:
    return item.place
