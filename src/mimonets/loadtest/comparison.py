"""Compare the drain test with other rules in the simulator: a table, JSON and plots."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from mimonets._config import Config, integer
from mimonets._figure import (
    legend_below,
    log_percent,
    new_figure,
    points_around_zero,
    rule_colour,
    save_figure,
)
from mimonets._show import make_table, progress
from mimonets.loadtest.simulator import Outcome, simulate
from mimonets.loadtest.workloads import WORKLOADS, Array, read_trace, step
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


@dataclass(frozen=True, kw_only=True)
class Comparison(Config):
    """What is simulated."""

    points: tuple[ServedPoint, ...]  # most accurate first
    slo: float = 0.1  # seconds
    loads: tuple[float, ...] = (0.2, 0.5, 0.8, 1.2, 1.6, 2.0, 2.5, 3.0, 4.0, 5.0)
    workload: str = "poisson"
    trace: str | None = None  # a file of arrival times in place of the workload
    requests: int = integer(10_000, least=100)  # about so many for each load
    seed: int = integer(0, least=0)
    theta: float = 0.6
    small: tuple[float, float] | None = None  # cost and accuracy of a small plain network

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems() + self._wrong_choice("workload", tuple(WORKLOADS))
        if not self.loads or not all(0 < load < float("inf") for load in self.loads):
            found.append(f"loads={self.loads!r} must be numbers above 0.")
        if not self.slo > self.points[0].seconds(1):
            found.append(f"slo={self.slo!r} s must be longer than a single pass takes.")
        if self.small is not None and not (0 < self.small[0] <= 1 and 0 <= self.small[1] <= 1):
            found.append(f"small={self.small!r} must be a fraction of the cost and an accuracy.")
        return found

    @property
    def slow_capacity(self) -> float:
        """Inputs per second at the slowest point: load 1."""
        return 1 / self.points[0].cost

    def outcomes(self, arrivals: Array) -> Iterator[tuple[str, Outcome]]:
        """Simulate every rule under the same arrivals and with the same noise."""
        switch = None
        if self.small is not None:
            switch = [self.points[0], small_network(self.points[0], *self.small)]
        for name, rule in contenders(self.points, PolicySettings(theta=self.theta), switch).items():
            rng = np.random.default_rng(self.seed + 1)
            yield name, simulate(rule, arrivals, self.slo, rng=rng, truth=self.points)

    def arrivals(self, load: float) -> Array:
        """Make or read the arrivals at some load; the same for every rule."""
        rate = load * self.slow_capacity
        if self.trace is not None:
            return read_trace(self.trace, rate=rate, most=self.requests)
        rng = np.random.default_rng(self.seed)
        return WORKLOADS[self.workload](rate, self.requests / rate, rng)

    def as_dict(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        modes = [
            {
                "active_streams": point.inputs_per_pass,
                "time": asdict(point.time),
                "accuracy": point.accuracy,
                "name": point.name,
            }
            for point in self.points
        ]
        others = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "points"}
        return {"modes": modes, **others}


def compare(comparison: Comparison) -> list[dict[str, Any]]:
    """Simulate every rule at every load; one row each, the fluid bound among them."""
    rows: list[dict[str, Any]] = []
    with progress("simulating", len(comparison.loads)) as advance:
        for load in comparison.loads:
            for name, outcome in comparison.outcomes(comparison.arrivals(load)):
                rows.append({"load": load, "rule": name, **outcome.summary()})
            share, accuracy = fluid_bound(comparison.points, load * comparison.slow_capacity)
            bound = {"right_in_time": share * accuracy, "accuracy": accuracy}
            rows.append({"load": load, "rule": "fluid bound", **bound})
            advance()
    return rows


def spike(comparison: Comparison) -> dict[str, Any]:
    """Simulate 12 s with a spike from load 0.5 to 3.2 and back, and give every rule's timeline."""
    rng = np.random.default_rng(comparison.seed)
    arrivals = step(0.5 * comparison.slow_capacity, 12.0, rng, times=3.2 / 0.5)
    found = replace(comparison, small=None).outcomes(arrivals)
    return {name: outcome.timeline(0.5) for name, outcome in found}


def comparison_table(rows: Sequence[dict[str, Any]]) -> Any:
    """Lay out right-and-in-time shares and p99 by load."""
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    title = "Right and in time, % of all offered; p99 in ms"
    table = make_table(title, ["load / slow capacity", *rules], words=())
    for load in dict.fromkeys(row["load"] for row in rows):
        found = {row["rule"]: row for row in rows if row["load"] == load}
        table.add_row(f"{load:g}", *(_cell(found[rule]) for rule in rules))
    return table


def _cell(row: dict[str, Any]) -> str:
    share = f"{100 * row['right_in_time']:.2f}"
    return share if "p99" not in row else f"{share}, {1000 * row['p99']:.0f}"


def draw_comparison(
    rows: Sequence[dict[str, Any]], timelines: dict[str, Any], path: str | Path
) -> Path:
    """Draw what is lost, how far rules are ahead of the fastest point, p99, and a spike.

    A request is lost if it is refused, late or answered wrongly.
    """
    figure = new_figure(8.4, 7.4)
    (lost, ahead), (slow, last) = figure.subplots(2, 2)
    fixed = [row["rule"] for row in rows if row["rule"].startswith("fixed")]
    base = {row["load"]: row["right_in_time"] for row in rows if row["rule"] == fixed[-1]}
    for rule in dict.fromkeys(row["rule"] for row in rows):
        found = [row for row in rows if row["rule"] == rule]
        loads = [row["load"] for row in found]
        share = [100 * row["right_in_time"] for row in found]
        look = _look(rule)
        lost.plot(loads, [100 - value for value in share], **look)
        if rule != fixed[-1]:
            over = [value - 100 * base[load] for value, load in zip(share, loads, strict=True)]
            ahead.plot(loads, over, **look)
        if "p99" in found[0]:
            slow.plot(loads, [1000 * row["p99"] for row in found], **look)
    for rule, line in timelines.items():
        last.plot(
            line["seconds"],
            [max(0.2, 100 - 100 * share) for share in line["right_in_time"]],
            **_look(rule),
        )
    for axes in (lost, last):
        log_percent(axes, 0.2)
        axes.set_ylabel("lost, % of offered (log scale)")
    points_around_zero(ahead)
    ahead.set_ylabel(f"points ahead of {_title(fixed[-1])}")
    slow.set_ylabel("p99 latency, ms")
    slow.set_ylim(bottom=0)
    for axes in (lost, ahead, slow):
        axes.set_xlabel("load / slow capacity")
    last.set_xlabel("seconds; a spike in the middle")
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    legend_below(figure, lost.get_lines())
    figure.suptitle("Simulated: lost requests are refused, late or wrong", fontsize=10)
    return save_figure(figure, path)


def _title(rule: str) -> str:
    names = {"drain test": "by load (drain test)", "fluid bound": "bound"}
    return names.get(rule, rule.replace("fixed, ", "always "))


def _look(rule: str) -> dict[str, Any]:
    """Choose how a rule is drawn; ours is thicker, the bound dotted."""
    styles = {"fluid bound": ":", "big/small switch": "--", "superpose what waits": "-."}
    style = styles.get(rule, "-")
    width = 2.4 if rule == "drain test" else 1.3
    title = _title(rule)
    return {"color": rule_colour(title), "linestyle": style, "linewidth": width, "label": title}
