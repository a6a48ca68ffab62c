"""The runs of a plan: train one, test it once, and compare all of them with the paper."""

import ctypes
import json
import math
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from mimonets._files import write_json, write_text
from mimonets._messages import first_line
from mimonets._operating_point import OperatingPoint
from mimonets._seeds import mean_and_deviation
from mimonets.evaluation.provenance import environment
from mimonets.experiments.experiment import Record, RunOptions
from mimonets.experiments.plan import Average, Difference, Plan, Trial
from mimonets.experiments.verdict import Row, accuracy_row, same_within
from mimonets.recipes.execute import DIVERGED, measure_run, run_recipe
from mimonets.training import TrainingDivergedError
from mimonets.training.lock import FolderInUseError, FolderLock
from mimonets.training.run_folder import RunFolder

HISTORY_ROWS = 25  # of a run's epochs, evenly spread: enough to draw its curve


def plan_rows(plan: Plan, runs: list[Record]) -> list[Row]:
    """Compare every trial with the paper, the averages over trials and their differences."""
    rows = [row for trial in plan.trials for row in trial_rows(trial, runs)]
    rows += [average_row(average, rows) for average in plan.averages]
    return rows + [difference_row(difference, rows) for difference in plan.differences]


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    label: str  # such as mnist-tiles-n16/seed-0
    state: Literal["done", "diverged", "left", "failed"]  # left: another process trains it
    words: str = ""


def attempt(trial: Trial, seed: int, options: RunOptions) -> Outcome:
    """Train and test one run; whatever goes wrong is told and does not stop the others."""
    label = run_label(trial, seed)
    try:
        outcome = train_and_test(trial, seed, options)
    except FolderInUseError as error:
        outcome = Outcome(label, "left", str(error))
    except (ValueError, OSError) as error:
        outcome = Outcome(label, "failed", str(error))
    except (RuntimeError, MemoryError, TypeError, LookupError, AttributeError) as error:
        details = options.runs / trial.name / f"seed-{seed}.error.txt"
        details.parent.mkdir(parents=True, exist_ok=True)
        write_text(details, traceback.format_exc())
        outcome = Outcome(label, "failed", f"{first_line(error)}; more is in {details}")
    if outcome.state != "done":
        said = "left out" if outcome.state == "left" else outcome.state
        options.tell(f"{said} {label}: {outcome.words}")
    return outcome


def train_and_test(trial: Trial, seed: int, options: RunOptions) -> Outcome:
    """Train one trial with one seed and measure it on the test data, unless that was done.

    A run that diverges is an outcome too: it is written down.
    """
    folder, label = run_folder(trial, seed, options.runs), run_label(trial, seed)
    if (folder / DIVERGED).exists():
        return Outcome(label, "done")  # nothing new
    teacher = options.runs / trial.teacher / f"seed-{seed}"
    if trial.teacher and teacher.is_dir() and not (teacher / "model").is_dir():
        reason = "diverged" if (teacher / DIVERGED).exists() else "was not trained"
        return Outcome(label, "left", f"its teacher {reason}")
    recipe = trial.load(seed, teacher_settings(trial, seed, options.runs))
    recipe = recipe.with_data_dir(options.data_dir)
    if not (folder / "result.json").exists():
        options.tell(f"training {label}")
    try:  # of a finished run this checks only that it is one of this recipe
        if recipe.train.devices == 1:
            run_recipe(recipe, folder, resume=True)
        else:
            train_in_processes(trial, seed, folder, options)
    except TrainingDivergedError as error:
        return Outcome(label, "diverged", str(error))
    measure_outcome(trial, seed, folder, options)
    return Outcome(label, "done")


def measure_outcome(trial: Trial, seed: int, folder: Path, options: RunOptions) -> None:
    """Measure a finished run on the test data, as far as that was not done yet."""
    tested = _read_tested(folder)
    missing = [number for number in trial.modes if str(number) not in tested]
    if missing:
        measured = measure_run(folder, "test", missing, options.data_dir)
        found = {str(p.number): {**found.as_dict(), "macs": macs} for p, found, macs in measured}
        record = {"environment": environment(), "points": {**tested, **found}}
        write_json(folder / "test.json", record, indent=1)
        accuracies = ", ".join(f"{found.accuracy:.2%} ({p.name})" for p, found, _ in measured)
        options.tell(f"tested {run_label(trial, seed)}: {accuracies}")


def train_in_processes(trial: Trial, seed: int, folder: Path, options: RunOptions) -> None:
    """Train on several devices by ``mimonets train``, which starts a process for each.

    It ends with this process, whatever ends it, and saves when this one is interrupted.
    """
    lock = FolderLock(folder)
    if folder.is_dir():
        lock.acquire()  # says so if another process has it
        lock.release()
    words = shlex.split(trial.command(seed, options.runs, options.data_dir))[1:]
    words[words.index("--out") + 1] = str(folder)  # it may have a former name
    command = [sys.executable, "-m", "mimonets.cli.main", *words]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    ) as child:
        try:
            said = child.communicate()[1].strip().splitlines()
        except KeyboardInterrupt:
            child.terminate()
            child.communicate()
            raise
    if (folder / DIVERGED).exists():
        raise TrainingDivergedError(_read(folder / DIVERGED)["reason"])
    if child.returncode:
        last = said[-1] if said else f"it ended with exit code {child.returncode}"
        raise ValueError(last.removeprefix("mimonets train: error: "))


def _end_with_parent() -> None:
    """Ask Linux to send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def teacher_settings(trial: Trial, seed: int, runs: Path) -> tuple[str, ...]:
    """Point a trial at the network that teaches it, which must have been trained before."""
    if not trial.teacher:
        return ()
    folder = runs / trial.teacher / f"seed-{seed}" / "model"
    if not folder.is_dir():
        raise ValueError(
            f"{run_label(trial, seed)} learns from {trial.teacher}/seed-{seed}, which has not been "
            f"trained: run it first, for example with --only {trial.teacher}/seed-{seed}."
        )
    return (f"train.teacher={json.dumps(str(folder))}",)


def read_run_record(trial: Trial, seed: int, runs: Path) -> Record | None:
    """Collect what a finished run left behind; None if it has not finished."""
    folder = run_folder(trial, seed, runs)
    diverged = (folder / DIVERGED).exists()
    tested = {} if diverged else _read_tested(folder)
    if not diverged and any(str(number) not in tested for number in trial.modes):
        return None
    where = _read(folder / "environment.json")
    epochs = RunFolder(folder, writes=False).history()
    stride = max(1, -(-len(epochs) // HISTORY_ROWS))
    if diverged:
        outcome = {"diverged": _read(folder / DIVERGED)["reason"]}
    else:
        result = _read(folder / "result.json")
        outcome = {
            "steps": result["steps"],
            "skipped": result["skipped"],
            "validation": {mode: found["accuracy"] for mode, found in result["final"].items()},
            "test": tested,
            **{name: result[name] for name in ("keep", "seconds", "slopes") if name in result},
        }
    return {
        "trial": trial.name,
        "recipe": trial.recipe,
        "settings": list(trial.settings),
        "seed": seed,
        **{name: where[name] for name in ("commit", "date", "cpu", "threads", "torch")},
        **outcome,
        "history": [_brief(row) for row in epochs[::-1][::stride][::-1]],
    }


def trial_rows(trial: Trial, runs: list[Record]) -> list[Row]:
    """Compare a trial with the paper, one row per operating point."""
    mine = [run for run in runs if run["trial"] in trial.names]
    diverged = sum("diverged" in run for run in mine)
    mine = [run for run in mine if "test" in run]
    note = f"{diverged} of {diverged + len(mine)} seeds diverged" if diverged else trial.note
    rows = []
    for point, title in row_titles(trial):
        found = {run["seed"]: run["test"][str(point.number)] for run in mine}
        by_seed = {seed: 100 * one["accuracy"] for seed, one in found.items()}
        macs = next((one["macs"] for one in found.values()), None)
        rows.append(
            accuracy_row(
                title,
                *mean_and_deviation(list(by_seed.values())),
                seeds=len(found),
                by_seed=by_seed,
                paper=trial.paper.get(point.number, (None, None)),
                our_recipe=trial.our_recipe,
                scaled_down=trial.scaled_down,
                macs=macs,
                group=trial.group,
                variant=trial.variant,
                streams=point.inputs_per_pass,
                diverged=diverged,
                note=note,
            )
        )
    return rows


def row_titles(trial: Trial) -> list[tuple[OperatingPoint, str]]:
    """Name what is measured of a trial: an operating point, if there are several."""
    several = len(trial.points) > 1
    return [(p, trial.title + (f", {p.name}" if several else "")) for p in trial.points]


def average_row(average: Average, rows: list[Row]) -> Row:
    """Average over trials, seed by seed; the spread is that of these averages."""
    parts = [row for row in rows if fnmatchcase(row.what, f"{average.over}*")]
    means = [row.ours for row in parts if row.ours is not None]
    complete = bool(parts) and len(means) == len(parts)
    by_seed = {seed: fmean(row.by_seed[seed] for row in parts) for seed in _seeds_of_all(parts)}
    return accuracy_row(
        average.title,
        fmean(by_seed.values() or means) if complete else None,
        mean_and_deviation(list(by_seed.values()))[1] if complete else None,
        seeds=min((row.seeds or 0 for row in parts), default=0),
        by_seed=by_seed,
        paper=average.paper or (None, None),
        scaled_down=any(row.scaled_down for row in parts),
        our_recipe=any(row.our_recipe for row in parts),
        diverged=sum(row.diverged for row in parts),
        note=average.note,
    )


def difference_row(difference: Difference, rows: list[Row]) -> Row:
    r"""Average the differences of two rows, seed by seed, over the seeds that both have.

    .. math:: d = \frac{1}{n} \sum_i (a_i - b_i), \qquad
        s_d^2 = \frac{1}{n - 1} \sum_i (a_i - b_i - d)^2
    """
    named = {row.what: row for row in rows}
    wrong = [title for title in (difference.of, difference.above) if title not in named]
    if wrong:
        raise ValueError(
            f"The difference {difference.title!r} names {wrong[0]!r}, which is no row: it must be "
            f"one of {', '.join(named)}."
        )
    a, b = named[difference.of], named[difference.above]
    by_seed = {seed: a.by_seed[seed] - b.by_seed[seed] for seed in _seeds_of_all([a, b])}
    spread = mean_and_deviation(list(by_seed.values()))[1]
    noise = 0.0 if spread is None else 2 * spread / math.sqrt(len(by_seed))
    return Row(
        difference.title,
        "points",
        fmean(by_seed.values()) if by_seed else None,
        difference.paper,
        tolerance=same_within(noise),
        noise=noise,
        deviation=spread,
        seeds=len(by_seed),
        scaled_down=a.scaled_down or b.scaled_down,
        diverged=a.diverged + b.diverged,
        by_seed=by_seed,
    )


def _seeds_of_all(rows: Sequence[Row]) -> list[int]:
    """List the seeds that every row was run with."""
    return sorted(set.intersection(*(set(row.by_seed) for row in rows))) if rows else []


def run_folder(trial: Trial, seed: int, runs: Path) -> Path:
    """Where a run is kept: under its name, or a former one if it is there."""
    places = [runs / name / f"seed-{seed}" for name in trial.names]
    return next((place for place in places if place.is_dir()), places[0])


def _read_tested(folder: Path) -> dict[str, Any]:
    """Read what a run got on the test data, by the number of the operating point."""
    path = folder / "test.json"
    found = _read(path) if path.exists() else {}
    # Version 0.2.0 wrote the points of slimmable networks as gears, and all others as modes.
    return next((found[name] for name in ("points", "gears", "modes") if name in found), {})


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}): delete it, and what it says is measured again."
        ) from None


def run_label(trial: Trial, seed: int) -> str:
    """Name a run: its trial and its seed."""
    return f"{trial.name}/seed-{seed}"


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    """Keep what a curve needs of an epoch's metrics."""
    kept = [name for name in ("epoch", "loss", "accuracy", "slope") if name in row]
    brief: dict[str, Any] = {name: round(row[name], 5) for name in kept}
    if "validation" in row:
        brief["validation"] = {
            mode: round(found["accuracy"], 5) for mode, found in row["validation"].items()
        }
    return brief
