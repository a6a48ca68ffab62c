"""The demo: the paper's network at three operating points beside tiles and two plain networks."""

import multiprocessing
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from mimonets._figure import family_colour, legend_below, need_matplotlib, new_axes, save_figure
from mimonets._files import write_json
from mimonets._show import make_table, mmac, progress
from mimonets.checkpoints import load
from mimonets.data import split_batches
from mimonets.evaluation import count_macs
from mimonets.evaluation.accuracy import evaluate
from mimonets.evaluation.provenance import environment
from mimonets.evaluation.throughput import Contender, Timing, race
from mimonets.inference import Engine, export
from mimonets.inference.engine import available_cores
from mimonets.inference.manifest import MANIFEST_FILE
from mimonets.recipes import Recipe, load_recipe
from mimonets.recipes.execute import run_recipe

PLAIN = "digits-writers-wideresnet"
KEYS = "digits-writers-mimoconv-narrow"
TILES = "digits-writers-tiles-late"
SMALL = "digits-writers-wideresnet-small"
NETWORKS = {  # recipe -> what it is; the others are distilled from the first
    PLAIN: "plain, same size",
    KEYS: "keys",
    TILES: "tiles",
    SMALL: "plain, cost of fast",
}
MEANING = {
    PLAIN: "plain network of the same size",
    KEYS: "keys: four inputs are bound, added and unbound",
    TILES: "late tiles: four inputs side by side, nothing is added",
    SMALL: "plain network of fast mode's cost",
}
EPOCHS = {KEYS: 52, TILES: 62, SMALL: 38}  # fewer than the recipes', to stay below two minutes
MODES = {1: "slow", 2: "normal", 4: "fast"}
BATCHES = (4, 64, 512)
ROUNDS, WARMUP = 11, 2


@dataclass(frozen=True)
class PointResult:
    """Accuracy, speed and cost of one network at one operating point."""

    recipe: str
    mode: str  # empty for a plain network
    inputs_per_pass: int
    correct: int
    total: int
    interval: tuple[float, float]  # 95 %, of the accuracy
    macs: float
    inputs_per_second: dict[int, float]  # batch size -> median over the rounds
    speedup: dict[int, float]  # batch size -> over the plain network of the same size

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.total

    @property
    def name(self) -> str:
        """The network and its operating point, for a table."""
        return f"{NETWORKS[self.recipe]}{': ' if self.mode else ''}{self.mode}"


def run_demo(folder: Path, console: Console, epochs: int | None = None) -> dict[str, Any]:
    """Train the networks unless that was done before, measure them and show the record."""
    console.print(
        "Training four small networks on 1,500 handwritten digits: a plain one, and three that are "
        "distilled from it. About two minutes on two free cores.\n"
    )
    recipes = {name: load_recipe(name) for name in NETWORKS}
    for name, recipe in recipes.items():
        length = epochs or EPOCHS.get(name, recipe.train.epochs)
        recipes[name] = replace(recipe, train=replace(recipe.train, epochs=length))
    train_all(recipes, folder)
    rows = measure(recipes, folder)
    engine = engine_name()
    console.print(demo_table(rows, engine))
    record = {
        "environment": environment(),
        "engine": engine,
        "threads": 1,
        "rounds": ROUNDS,
        "recipes": [recipe.as_dict() for recipe in recipes.values()],
        "teacher": dict.fromkeys([name for name in recipes if name != PLAIN], PLAIN),
        "rows": [{**asdict(row), "name": row.name, "accuracy": row.accuracy} for row in rows],
    }
    write_json(folder / "demo.json", record)
    keys = shlex.quote(str(folder / KEYS))
    console.print(
        f"Keys is the paper's MIMOConv: one set of weights runs slow, normal and fast.\n"
        f"297 digits and one training each: differences below 2 points are noise. "
        f"`mimonets reproduce demo-seeds` has four times the digits and three seeds.\n\n"
        f"Plot:  {draw(rows, folder / 'accuracy-against-throughput.png')}\n"
        f"Model: {folder / KEYS / 'model'}, for mimonets.load\n"
        f"Next:  mimonets serve {keys} --demo",
        soft_wrap=True,
    )
    return record


def train_all(recipes: Mapping[str, Recipe], folder: Path) -> None:
    """Train the plain network, then the others from it, in a process for each core."""
    teacher = str(folder / PLAIN / "model")
    plain = recipes[PLAIN]
    others = [
        replace(recipe, train=replace(recipe.train, teacher=teacher))
        for name, recipe in recipes.items()
        if name != PLAIN
    ]
    workers = min(available_cores(), len(others))
    if workers == 1 or all((folder / name / "result.json").exists() for name in recipes):
        for recipe in (plain, *others):
            _train(recipe, folder / recipe.name)
            _export(folder / recipe.name)
        return
    epochs = sum(recipe.train.epochs for recipe in recipes.values())
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads hangs
    with (
        progress("training, epochs", epochs) as advance,
        ProcessPoolExecutor(workers, spawn) as pool,
    ):
        done = 0
        for tasks in (
            [(_train_apart, plain, folder), (engine_name,)],  # this one starts a second process
            [*((_train_apart, recipe, folder) for recipe in others), (_export, folder / PLAIN)],
        ):
            futures = [pool.submit(*task) for task in tasks]
            while not all(future.done() for future in futures):
                time.sleep(0.2)
                now = sum(_epochs_done(folder / name) for name in recipes)
                advance(now - done)
                done = now
            for future in futures:
                future.result()  # or what it raised


def _train(recipe: Recipe, run_dir: Path) -> None:
    run_recipe(recipe, run_dir, resume=run_dir.exists())  # a finished one comes back at once


def _train_apart(recipe: Recipe, folder: Path) -> None:
    """Train in a process of its own, whose messages go to a file; export what was distilled."""
    run_dir = folder / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    with open(f"{run_dir}.log", "a", encoding="utf-8") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        _train(recipe, run_dir)
        if recipe.train.teacher:
            _export(run_dir)


def _export(run_dir: Path) -> None:
    """Export a network for the engine in which it is timed, unless that was done or needs none."""
    if engine_name() != "torch" and not (_export_of(run_dir) / MANIFEST_FILE).exists():
        model = load(run_dir / "model")
        export(model, _export_of(run_dir), modes=_points(model), measure=False)


def _export_of(run_dir: Path) -> Path:
    return run_dir.parent / "exports" / run_dir.name


def _points(model: Any) -> list[int]:
    return list(MODES) if model.num_streams > 1 else [1]


def _epochs_done(run_dir: Path) -> int:
    metrics = run_dir / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def engine_name() -> str:
    """Choose what runs the networks when they are timed: ONNX Runtime, if it can be used."""
    packages = ("onnx", "onnxscript", "onnxruntime")
    return "onnxruntime" if all(find_spec(package) for package in packages) else "torch"


def measure(recipes: Mapping[str, Recipe], folder: Path) -> list[PointResult]:
    """Measure accuracy on the test digits, and speed, all networks interleaved."""
    models = {name: load(folder / name / "model") for name in recipes}
    points = {name: _points(model) for name, model in models.items()}
    found = {
        name: evaluate(models[name], split_batches(recipe.data, "test"), points[name])
        for name, recipe in recipes.items()
    }
    timings = _time(models, points, folder)
    rows = []
    for name in recipes:
        for mode, result in found[name].items():
            own = {batch: timings[name, mode, batch] for batch in BATCHES}
            rows.append(
                PointResult(
                    recipe=name,
                    mode=MODES[mode] if len(points[name]) > 1 else "",
                    inputs_per_pass=mode,
                    correct=result.correct,
                    total=result.total,
                    interval=result.interval,
                    macs=count_macs(models[name], mode).paper,
                    inputs_per_second={batch: t.inputs_per_second for batch, t in own.items()},
                    speedup={
                        b: t.speedup_over(timings[PLAIN, 1, b]).median for b, t in own.items()
                    },
                )
            )
    return rows


def _time(
    models: Mapping[str, Any], points: Mapping[str, Sequence[int]], folder: Path
) -> dict[tuple[str, int, int], Timing]:
    """Time every operating point at every batch size on one thread, in the engine one would use."""
    chosen = engine_name()
    engines = {}
    for name, model in models.items():
        source = model if chosen == "torch" else _export_of(folder / name)
        engines[name] = Engine(source, chosen, threads=1)
    contenders, keys = [], {}
    for name, engine in engines.items():
        for mode in points[name]:
            for batch in BATCHES:
                inputs = models[name].example_inputs(batch).numpy()
                title = f"{name}, {mode} active, batch {batch}"
                keys[title] = (name, mode, batch)
                contenders.append(Contender(title, partial(engine, inputs, mode), batch))
    with progress("timing", ROUNDS + WARMUP) as advance:
        timed = race(contenders, rounds=ROUNDS, warmup=WARMUP, after_round=advance)
    return {keys[timing.name]: timing for timing in timed}


def demo_table(rows: Sequence[PointResult], engine: str) -> Any:
    """Lay out accuracy, speed and cost of every operating point."""
    runs_in = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch (eager)"}[engine]
    table = make_table(
        f"{rows[0].total} digits by other writers",
        ["network", "inputs per pass", "accuracy (95 % interval)", "MMAC/input"]
        + [f"inputs/s, batch {batch}" for batch in BATCHES],
        f"inputs/s in {runs_in} on one thread, median of {ROUNDS} rounds; x: times the plain "
        f"network of the same size",
    )
    for row in rows:
        low, high = (100 * bound for bound in row.interval)
        table.add_row(
            row.name,
            str(row.inputs_per_pass),
            f"{100 * row.accuracy:.1f} % ({low:.1f} to {high:.1f})",
            mmac(row.macs),
            *(f"{row.inputs_per_second[b]:,.0f}  {row.speedup[b]:.1f}x" for b in BATCHES),
            end_section=row.mode in ("", "fast"),
        )
    return table


def draw(rows: Sequence[PointResult], path: Path) -> Path | str:
    """Draw accuracy against throughput at batch 64, if matplotlib is there."""
    try:
        need_matplotlib()
    except ValueError as error:
        return f"none. {error}"
    figure, axes = new_axes(width=7.0, height=4.6)
    handles = []
    for (name, meaning), marker in zip(MEANING.items(), "ooos", strict=True):
        some = [row for row in rows if row.recipe == name]
        speed = [row.inputs_per_second[64] for row in some]
        percent = [100 * row.accuracy for row in some]
        reach = [[100 * abs(row.accuracy - row.interval[side]) for row in some] for side in (0, 1)]
        colour = family_colour(meaning)
        style = {"color": colour, "marker": marker, "capsize": 3, "elinewidth": 0.8}
        handles.append(axes.errorbar(speed, percent, yerr=reach, label=meaning, **style))
        side = {"ha": "right", "xytext": (-5, -12)} if name == KEYS else {"xytext": (5, 4)}
        for row, x, y in zip(some, speed, percent, strict=True):
            axes.annotate(row.mode, (x, y), textcoords="offset points", color=colour, **side)
    axes.set_xlabel("inputs per second at batch 64, one thread")
    axes.set_ylabel("accuracy on 297 test digits, % (bars: 95 % interval)")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    legend_below(figure, handles)
    return save_figure(figure, path)
