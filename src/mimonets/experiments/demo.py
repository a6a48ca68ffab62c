"""The demo: a network with three operating points beside a plain one of the same size."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mimonets._figure import need_matplotlib, save_figure
from mimonets._files import write_text
from mimonets._show import mmac, progress
from mimonets.checkpoints import load
from mimonets.evaluation import BenchSettings, bench, count_macs
from mimonets.evaluation.accuracy import evaluate
from mimonets.evaluation.provenance import environment
from mimonets.experiments.figures import against_cost
from mimonets.recipes import Recipe
from mimonets.recipes.execute import run_recipe, split_batches

MODES = {1: "slow", 2: "normal", 4: "fast"}


@dataclass(frozen=True)
class PointResult:
    """Accuracy, speed and cost of one network at one operating point."""

    name: str
    inputs_per_pass: int
    accuracy: float
    inputs_per_second: float
    macs: float


def run_demo(recipes: Sequence[Recipe], folder: Path, console: Console) -> dict[str, Any]:
    """Train both networks unless that was done before, measure them and show the record."""
    dynamic, plain = recipes
    console.print(
        "Training two networks of the same size on 1,500 handwritten digits: one that takes one at "
        "a time, and one that takes up to four and learns from it. About two minutes.\n"
    )
    teacher = str(folder / plain.name / "model")
    for recipe in (plain, replace(dynamic, train=replace(dynamic.train, teacher=teacher))):
        run_dir = folder / recipe.name
        run_recipe(recipe, run_dir, resume=run_dir.exists())  # a finished one comes back at once
    rows = measure(dynamic, plain, folder)
    console.print(demo_table(rows))
    record = {
        "environment": environment(),
        "recipes": [recipe.as_dict() for recipe in recipes],
        "teacher": {dynamic.name: plain.name},
        "rows": [vars(row) for row in rows],
    }
    write_text(folder / "demo.json", json.dumps(record, indent=2) + "\n")
    plot = draw(rows, folder / "accuracy-against-throughput.png")
    console.print(f"Plot: {plot}\nModel: {folder / dynamic.name / 'model'}, for mimonets.load")
    console.print(f"Next: mimonets evaluate {shlex.quote(str(folder / dynamic.name))}")
    return record


def demo_table(rows: Sequence[PointResult]) -> Table:
    """Lay out accuracy, speed and cost of every operating point."""
    table = Table(title="297 digits by other writers; one set of weights for slow, normal and fast")
    for name in ("network", "inputs per pass", "test accuracy", "inputs/s", "MMAC/input"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for row in rows:
        table.add_row(
            row.name,
            str(row.inputs_per_pass),
            f"{row.accuracy:.1%}",
            f"{row.inputs_per_second:.0f}",
            mmac(row.macs),
        )
    return table


def measure(dynamic: Recipe, plain: Recipe, folder: Path) -> list[PointResult]:
    """Measure accuracy on the test digits and speed, all networks interleaved."""
    settings = BenchSettings(batch_size=64, rounds=30, warmup=3, threads=1)
    with progress("timing", settings.warmup + settings.rounds) as advance:
        timed = bench([dynamic.model, plain.model], None, settings, after_round=advance)
    speed = {
        (type(timed.candidates[name].network), mode): timed.timing(name).inputs_per_second
        for name, mode in timed.modes.items()
    }
    rows = []
    for recipe, names in ((plain, {1: ""}), (dynamic, MODES)):
        model = load(folder / recipe.name / "model")
        found = evaluate(model, split_batches(recipe, "test"), list(names))
        for mode, name in names.items():
            title = type(model).__name__ + (f", {name}" if name else "")
            rate = speed[type(recipe.model), mode]
            macs = count_macs(recipe.model, mode).paper
            rows.append(PointResult(title, mode, found[mode].accuracy, rate, macs))
    return rows


def draw(rows: Sequence[PointResult], path: Path) -> Path | str:
    """Draw accuracy against throughput, if matplotlib is there."""
    try:
        need_matplotlib()
    except ValueError as error:
        return f"none. {error}"
    points = [
        {
            "ours": 100 * row.accuracy,
            "speed": row.inputs_per_second,
            "streams": row.inputs_per_pass,
            "group": row.name.partition(", ")[0],
        }
        for row in rows
    ]
    return save_figure(against_cost(points, "speed", "inputs/s"), path)
