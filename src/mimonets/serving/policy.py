r"""Which inputs run next, at which operating point: the drain test.

Superposition buys throughput at nearly constant latency, so a rule that looks at the first deadline
only is either always fast or swings between the points. The drain test looks at the whole queue:
**take the most accurate point at which everything that waits is still answered in time.**

.. math:: \mathrm{now} + k\,\mathrm{drain}(A, \text{the first } i \text{ inputs})
          \le \mathrm{deadline}_i - (1 - \theta)\,\mathrm{budget}_i \qquad\text{for every } i

The part (1 - theta) of every time budget is kept for those who arrive meanwhile. Nothing ever waits
for a group to fill: a short group is more accurate.

Pure: the time is always an argument.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import ceil, inf

from mimonets._config import Config, integer, number
from mimonets.serving.jobs import Backlog, Group, Job, QueuedInput
from mimonets.serving.operating_points import ServedPoint
from mimonets.serving.waiting_line import WaitingLine

MISS_FACTOR = 1.1  # the safety factor grows by 10 % with every late job
DECAY = MISS_FACTOR ** (-1 / 99)  # and is steady if one job in 100 is late: a 99th percentile
LARGEST_SAFETY = 4.0
RECOVERY = MISS_FACTOR ** (-1 / 9999)  # of the reserve: steady if one promise in 10,000 is broken
LEAST_RESERVE, LARGEST_RESERVE = 0.01, 0.25  # of a time budget
TRUST_KEPT = 0.25  # of theta, with every refusal
LEAST_TRUST = 0.01
TRUST_DOUBLES_AFTER = 200.0  # time budgets without a refusal
LONGEST_BUDGET = 1.0  # seconds; of a longer one, so much counts
CALL_SHARE = 0.05  # of a job's time that its calls may take: larger jobs would be better
CORRECTION_RATE = 0.05  # how fast the running correction forgets
FEW = 16  # inputs that are looked at one by one: a bound would not be faster
CLOSE_BLOCKS = 2  # of a long queue that are looked into where a bound does not decide


@dataclass(frozen=True, kw_only=True)
class PolicySettings(Config):
    """What the operator of a server may choose."""

    # Fraction of the time budget that the queue may use.
    theta: float = number(0.6, above=0, most=1)
    passes: int = integer(2)  # passes per job at all points but the fastest: decide again soon
    max_passes: int = integer(8)  # at most so many passes per job at the fastest point


class Policy:
    """The drain test, with a service-time model that is corrected while it runs.

    Points come most accurate (and slowest) first; `useful_points` orders them so.
    """

    def __init__(
        self, points: Sequence[ServedPoint], settings: PolicySettings | None = None
    ) -> None:
        self.points = list(points)
        self.settings = settings or PolicySettings()
        self.correction = 1.0  # observed / predicted, a moving average
        self.safety = 1.0  # k: the 99th percentile of observed / corrected prediction
        self.reserve = LEAST_RESERVE  # fraction of time budgets that admission keeps free
        self._calm_since = -inf  # when the last request was refused
        self._trust = 1.0  # what refusals have left of theta, at that time
        self._doubling = 1.0  # seconds in which trust doubles again

    @property
    def fastest(self) -> int:
        """Index of the fastest point."""
        return len(self.points) - 1

    @cached_property
    def most_passes(self) -> int:
        """Passes of the largest job at the fastest point: as few as make calls cheap.

        All inputs of a job are answered at its end, so a job of many passes makes its first ones
        late. What it saves is c for each call that is not made: enough passes are enough.
        """
        time = self.points[self.fastest].time
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
        calm = 2 ** min((now - self._calm_since) / self._doubling, 60)
        return self.settings.theta * min(1.0, self._trust * calm)

    def refused(self, now: float, budget: float) -> None:
        """Learn from a refusal that load caused: no answer costs far more than a fast one.

        Less of the time budgets is used for accuracy until there were no refusals for a while.
        """
        trust = self.theta(now) / self.settings.theta
        self._trust = max(trust * TRUST_KEPT, LEAST_TRUST)
        self._calm_since, self._doubling = now, TRUST_DOUBLES_AFTER * min(budget, LONGEST_BUDGET)

    def met_deadline(self) -> None:
        """Learn that an admitted request was answered in time."""
        self.reserve = max(self.reserve * RECOVERY, LEAST_RESERVE)

    def missed_deadline(self) -> None:
        """Learn that one was not: promise less.

        Under overload everybody who waits is admitted just in time, so that one pause of the
        machine makes all of them late. A shorter queue answers as many, and bears the pause.
        """
        self.reserve = min(self.reserve * MISS_FACTOR, LARGEST_RESERVE)

    def admission_deadline(self, queued: QueuedInput) -> float:
        """Give the time at which an input must be done to be admitted."""
        return queued.deadline - self.reserve * (queued.deadline - queued.arrival)

    def lateness(
        self,
        queue: Sequence[QueuedInput],
        inputs: Sequence[QueuedInput],
        now: float,
        free_at: float = -inf,
        elsewhere: float = 0.0,
    ) -> float:
        """Say by how many seconds somebody would be late if ``inputs`` joined the ordered queue.

        At the fastest point, with the largest batches, after the running job and ``elsewhere``
        seconds of other models' work. At most 0: admit them, and whoever is queued stays in time.
        """
        start = max(now, free_at) + elsewhere
        backlog = Backlog(self.points, self.fastest, self.most_passes)
        # A request's inputs are neighbours.
        first = bisect_left(queue, inputs[0].place, key=lambda queued: queued.place)
        for queued in queue[:first]:
            backlog.add(queued)
        worst = max([start + self.late(backlog, queued, is_new=True) for queued in inputs])
        return max([worst, *(start + self.late(backlog, queued) for queued in queue[first:])])

    def late(self, backlog: Backlog, queued: QueuedInput, *, is_new: bool = False) -> float:
        """Add an input to a backlog that starts at 0, and say by how much it is late then."""
        until = self.admission_deadline(queued) if is_new else queued.deadline
        return self.factor * backlog.add(queued) - until

    def next_job(
        self, queue: Sequence[QueuedInput], now: float, elsewhere: float = 0.0
    ) -> Job | None:
        """Choose the inputs and the operating point to run now; None only if nothing waits."""
        if not queue:
            return None
        most = self.most_passes
        sizes = sorted({min(most, size) for size in (2, 4, most)})
        choices = [(index, self.settings.passes) for index in range(self.fastest)]
        choices += [(self.fastest, passes) for passes in sizes]
        for index, passes in choices:
            job = self.take(queue, index, passes)
            if self._is_in_time(job, now) and self._drains(queue, index, passes, now, elsewhere):
                return job
        for passes in reversed(sizes):  # it does not drain: the largest job that is in time itself
            job = self.take(queue, self.fastest, passes)
            if self._is_in_time(job, now):
                return job
        return self.take(queue, self.fastest, 1)

    def take(self, queue: Sequence[QueuedInput], index: int, passes: int) -> Job:
        """Fill up to ``passes`` groups, in order of service.

        A group holds one tenant unless all its members agreed to share, and no input runs at a
        faster point than it allows. Who comes later may still join an open group: it costs no pass.
        """
        groups: list[Group] = []
        open_groups: dict[object, Group] = {}
        # Far down the queue little is left to fill; looking there would take time in every job.
        widest = max(point.inputs_per_pass for point in self.points)  # some may ask for that
        for queued in islice(queue, 4 * passes * widest):
            if len(groups) == passes and not open_groups:
                break
            allowed = queued.nearest_allowed(index)
            who = (allowed, queued.neighbours())
            group = open_groups.get(who)
            if group is None:
                if len(groups) == passes:
                    continue
                group = open_groups[who] = Group(self.points[allowed], [])
                groups.append(group)
            group.inputs.append(queued)
            if len(group.inputs) == group.point.inputs_per_pass:
                del open_groups[who]
        return Job(self.points[index], groups)

    def point_for(self, point: ServedPoint, members: int) -> ServedPoint:
        """Find the point that a group runs at: if it is short, the smallest that holds it."""
        index = self.points.index(point)
        sizes = [one.inputs_per_pass for one in self.points[: index + 1]]
        if sizes != sorted(set(sizes)):  # several networks: a short group changes nothing
            return point
        return self.points[min(bisect_left(sizes, members), index)]

    def observe(self, predicted: float, seconds: float) -> None:
        """Learn from a job: follow the mean and the 99th percentile of observed / predicted."""
        if predicted <= 0 or seconds <= 0:
            return
        ratio = seconds / predicted
        self.safety *= MISS_FACTOR if ratio > self.factor else DECAY
        self.safety = min(max(self.safety, 1.0), LARGEST_SAFETY)
        self.correction += CORRECTION_RATE * (min(ratio, 4 * self.correction) - self.correction)

    def is_worth_a_rerun(self, point: ServedPoint, confidence: float) -> bool:
        """Cascade: tell whether the confidence of a fast answer says that slow might differ."""
        if point is self.points[0] or point.confidence is None:
            return False
        return confidence < point.confidence

    def has_slack(self, queued: QueuedInput, now: float) -> bool:
        """Cascade: tell whether a rerun at the slowest point would still be in time."""
        return now + self.factor * self.points[0].seconds(1) <= queued.deadline

    def _is_in_time(self, job: Job, now: float) -> bool:
        end = now + self.factor * job.predicted()
        return all(end <= queued.deadline for queued in job.inputs)

    def _drains(
        self, queue: Sequence[QueuedInput], index: int, passes: int, now: float, elsewhere: float
    ) -> bool:
        """Tell whether every prefix of the queue is done in its part of the time budget."""
        backlog = Backlog(self.points, index, passes)
        start, factor, theta = now + elsewhere, self.factor, self.theta(now)

        def in_time(inputs: Iterable[QueuedInput]) -> bool:
            for queued in inputs:
                latest = theta * queued.deadline + (1 - theta) * queued.arrival
                if start + factor * backlog.add(queued) > latest:
                    return False
            return True

        if len(queue) <= FEW:
            return in_time(queue)
        line = queue if isinstance(queue, WaitingLine) else WaitingLine(queue)
        close = 0
        for block, seconds in zip(
            line.blocks, line.bounds(self.points, index, passes), strict=True
        ):
            latest = theta * block.earliest + (1 - theta) * block.oldest
            if start + factor * (backlog.seconds + seconds) <= latest:
                backlog.skip(seconds)
                continue
            close += 1
            if close > CLOSE_BLOCKS or not in_time(block.inputs):
                return False
        return True
