"""Compare rules over loads and workloads in the simulator: a table, JSON and plots."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from mimonets._config import Config, integer
from mimonets._figure import new_figure, save_figure
from mimonets._show import progress
from mimonets.loadtest.contenders import contenders, fluid_bound, small_network
from mimonets.loadtest.simulator import Outcome, simulate
from mimonets.loadtest.workloads import WORKLOADS, Array, read_trace, step
from mimonets.serving.operating_points import ServedPoint
from mimonets.serving.policy import PolicySettings


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
    from rich.table import Table

    rules = list(dict.fromkeys(row["rule"] for row in rows))
    table = Table(title="Right and in time, % of all offered; p99 in ms")
    table.add_column("load / slow capacity", justify="right")
    for rule in rules:
        table.add_column(rule, justify="right")
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
    """Draw right-and-in-time share, accuracy and p99 against load, and the spike's timeline."""
    figure = new_figure(11, 8)
    axes = figure.subplots(2, 2)
    titles = {
        "right_in_time": "right and in time / offered",
        "accuracy": "accuracy of answers",
        "p99": "p99 latency, s",
    }
    for place, (key, title) in zip(axes.flat, titles.items(), strict=False):
        for rule in dict.fromkeys(row["rule"] for row in rows):
            points = [(row["load"], row[key]) for row in rows if row["rule"] == rule and key in row]
            style = "k:" if rule == "fluid bound" else "-"
            if points:
                place.plot(*zip(*points, strict=True), style, label=rule)
        place.set(xlabel="load / slow capacity", ylabel=title)
        place.set_ylim(bottom=0 if key != "accuracy" else None)
        place.grid(alpha=0.3)
    axes.flat[0].legend(fontsize="small")
    last = axes.flat[3]
    for rule in ("fixed, 1 active", "superpose what waits", "drain test"):
        if rule in timelines:
            last.plot(timelines[rule]["seconds"], timelines[rule]["right_in_time"], label=rule)
    last.set(xlabel="seconds; a spike in the middle", ylabel="right and in time / offered")
    last.grid(alpha=0.3)
    last.legend(fontsize="small")
    return save_figure(figure, path)
