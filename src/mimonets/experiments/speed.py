"""``mimonets reproduce NAME --speed``: inputs per second of every network of a plan."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from mimonets._figure import save_figure
from mimonets.evaluation.provenance import environment
from mimonets.experiments.experiment import Record
from mimonets.experiments.figures import against_cost
from mimonets.experiments.plan import Plan, Trial
from mimonets.experiments.speeds import ENGINES, Point, measure_speeds
from mimonets.experiments.trained import row_titles
from mimonets.recipes.execute import make_model

BATCH_SIZE = 64
ROUNDS, WARM_UP = 9, 2


def measure_plan_speed(
    plan: Plan,
    folder: Path,
    only: str = "",
    rounds: int = ROUNDS,
    after_round: Callable[[], object] = lambda: None,
) -> Record:
    """Race the networks of a plan, with random weights, in every engine.

    Trials that share a network, and differ in training alone, share its measurement.

    Args:
        folder: an empty one, for exported networks.
        only: measure only trials with this in their name.
        rounds: how often each is timed.
        after_round: called after each round and each of the two to warm up, for a progress bar.
    """
    found: dict[tuple[Any, str], list[str]] = {}
    points: dict[tuple[Any, str], Point] = {}
    for trial in plan.trials:
        if only not in trial.name or trial.removed:
            continue
        config = trial.load(0).model
        for title, point in _points(trial):
            key = (config, f"{point.active_streams} {getattr(point.network, 'gear', '')}")
            points.setdefault(key, point)
            found.setdefault(key, []).append(title)
    if not points:
        raise ValueError(f"{plan.name} has no trial with {only!r} in its name to time.")
    rows = measure_speeds(
        list(points.values()),
        folder,
        ENGINES,
        batch_size=BATCH_SIZE,
        rounds=rounds,
        after_round=after_round,
    )
    return {
        "experiment": plan.name,
        "title": f"{plan.title}: speed",
        "environment": environment(),
        "batch_size": BATCH_SIZE,
        "threads": 1,
        "clock": "CPU time",
        "engines": list(ENGINES),
        "rows": [
            {**row, "what": title}
            for (key, titles), row in zip(found.items(), rows, strict=True)
            for title in titles
        ],
    }


def _points(trial: Trial) -> list[tuple[str, Point]]:
    model: Any = make_model(trial.load(0)).eval()
    return [
        (title, Point(title, model.in_gear(which)) if trial.gears else Point(title, model, which))
        for which, title in row_titles(trial).items()
    ]


def speed_table(record: Record) -> Table:
    """Lay out inputs per second, engine by engine, and memory."""
    table = Table(title=f"{record['title']} (one thread, batch of {record['batch_size']})")
    table.add_column("network")
    for name in (*record["engines"], "MMAC/input", "weights, kB", "a pass, kB"):
        table.add_column(name, justify="right")
    for row in record["rows"]:
        table.add_row(
            row["what"],
            *(f"{row['engines'][engine]:.0f}" for engine in record["engines"]),
            f"{row['macs'] / 1e6:.2f}",
            *(f"{row[what] / 1e3:.0f}" for what in ("weight_bytes", "peak_bytes")),
        )
    return table


def draw_against_speed(record: Record, speeds: Record, path: Path) -> Path:
    """Draw accuracy against measured inputs per second."""
    fast = {row["what"]: row["inputs_per_second"] for row in speeds["rows"]}
    rows = [
        {**{name: row[name] for name in row if name != "paper"}, "speed": fast[row["what"]]}
        for row in record["rows"]
        if "ours" in row and row["what"] in fast and row["unit"] == "%"
    ]
    if not rows:
        raise ValueError(
            f"No network of {record['experiment']} has both an accuracy and a speed: train some."
        )
    figure = against_cost(rows, "speed", "inputs/s, one thread, best engine")
    figure.suptitle(record["title"], fontsize=10)
    return save_figure(figure, path)
