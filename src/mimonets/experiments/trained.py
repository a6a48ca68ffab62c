"""Run a plan: train what is not trained yet, test each model once, and compare with the paper."""

import json
import statistics
from pathlib import Path
from typing import Any

from mimonets._files import write_text
from mimonets.evaluation.provenance import environment
from mimonets.experiments.experiment import Record, Row, Workplace
from mimonets.experiments.plan import Plan, Trial
from mimonets.recipes.execute import measure_run, run_recipe
from mimonets.training import TrainingDivergedError
from mimonets.training.run_folder import RunFolder

HISTORY_ROWS = 25  # of a run's epochs, evenly spread: enough to draw its curve


def measure_plan(plan: Plan, workplace: Workplace) -> tuple[list[Row], Record]:
    """Train and test every trial with every seed; go on where an earlier call was stopped."""
    if workplace.train:
        jobs = [(trial, seed) for trial in plan.trials for seed in trial.seeds]
        jobs.sort(key=lambda job: job[1])  # the first seed of all before the second of any
        for trial, seed in jobs:
            if workplace.only in _label(trial, seed):
                train_and_test(trial, seed, workplace)
    runs = [
        run
        for trial in plan.trials
        for seed in trial.seeds
        if (run := read_run_record(trial, seed, workplace.runs)) is not None
    ]
    return [row for trial in plan.trials for row in trial_rows(trial, runs)], {"runs": runs}


def train_and_test(trial: Trial, seed: int, workplace: Workplace) -> None:
    """Train one trial with one seed and measure it on the test data, unless that was done.

    A run that diverges is an outcome too: it is written down, and the others go on.
    """
    folder = run_folder(trial, seed, workplace.runs)
    if (folder / "diverged.json").exists():
        return
    data = _data_override(trial, seed, workplace.data_dir)
    if not (folder / "result.json").exists():
        workplace.tell(f"training {_label(trial, seed)}")
        try:
            run_recipe(trial.load(seed, data), folder, resume=True)
        except TrainingDivergedError as error:
            write_text(folder / "diverged.json", json.dumps({"reason": str(error)}) + "\n")
            workplace.tell(f"diverged {_label(trial, seed)}: {error}")
            return
    if not (folder / "test.json").exists():
        measured = measure_run(folder, "test", trial.modes, data)
        tested = {
            "environment": environment(),
            "modes": {
                str(mode): {**found.as_dict(), "macs": macs} for mode, found, macs in measured
            },
        }
        write_text(folder / "test.json", json.dumps(tested, indent=1) + "\n")
        accuracies = ", ".join(f"{found.accuracy:.2%} ({mode})" for mode, found, _ in measured)
        workplace.tell(f"tested {_label(trial, seed)}: {accuracies}")


def read_run_record(trial: Trial, seed: int, runs: Path) -> Record | None:
    """Collect what a finished run left behind; None if it has not finished."""
    folder = run_folder(trial, seed, runs)
    diverged = (folder / "diverged.json").exists()
    if not diverged and not (folder / "test.json").exists():
        return None
    where = _read(folder / "environment.json")
    epochs = RunFolder(folder, writes=False).history()
    stride = max(1, -(-len(epochs) // HISTORY_ROWS))
    if diverged:
        outcome = {"diverged": _read(folder / "diverged.json")["reason"]}
    else:
        result = _read(folder / "result.json")
        outcome = {
            "steps": result["steps"],
            "skipped": result["skipped"],
            "validation": {mode: found["accuracy"] for mode, found in result["final"].items()},
            "test": _read(folder / "test.json")["modes"],
        }
    return {
        "trial": trial.name,
        "recipe": trial.recipe,
        "settings": list(trial.settings),
        "seed": seed,
        "commit": where["commit"],
        "date": where["date"],
        "cpu": where["cpu"],
        "threads": where["threads"],
        "torch": where["torch"],
        **outcome,
        "history": [_brief(row) for row in epochs[::-1][::stride][::-1]],
    }


def trial_rows(trial: Trial, runs: list[Record]) -> list[Row]:
    """Compare a trial with the paper, one row per mode."""
    mine = [run for run in runs if run["trial"] == trial.name]
    diverged = sum("diverged" in run for run in mine)
    mine = [run for run in mine if "test" in run]
    note = f"{diverged} of {diverged + len(mine)} seeds diverged" if diverged else trial.note
    rows = []
    modes = trial.modes
    for mode in modes:
        found = [run["test"][str(mode)] for run in mine]
        accuracies = [100 * one["accuracy"] for one in found]
        mean, deviation = trial.paper.get(mode, (None, None))
        rows.append(
            Row(
                trial.title + (f", {mode} active" if len(modes) > 1 else ""),
                "%",
                ours=statistics.mean(accuracies) if accuracies else None,
                paper=mean,
                tolerance=max(1.0, 2 * (deviation or 0.0)),
                deviation=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
                paper_deviation=deviation,
                seeds=len(accuracies),
                more_is_better=True,
                scaled_down=trial.scaled_down,
                macs=found[0]["macs"] if found else None,
                group=trial.group,
                streams=mode,
                diverged=diverged,
                note=note,
            )
        )
    return rows


def run_folder(trial: Trial, seed: int, runs: Path) -> Path:
    """Where a run is kept."""
    return runs / _label(trial, seed)


def _data_override(trial: Trial, seed: int, data_dir: Path | None) -> tuple[str, ...]:
    """Point a recipe at its files: in the folder itself, or in one named after the data set."""
    if data_dir is None:
        return ()
    own = data_dir / trial.load(seed).data.name
    return (f"data.dir={json.dumps(str(own if own.is_dir() else data_dir))}",)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _label(trial: Trial, seed: int) -> str:
    return f"{trial.name}/seed-{seed}"


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    """Keep what a curve needs of an epoch's metrics."""
    brief: dict[str, Any] = {name: round(row[name], 5) for name in ("epoch", "loss", "accuracy")}
    if "validation" in row:
        brief["validation"] = {
            mode: round(found["accuracy"], 5) for mode, found in row["validation"].items()
        }
    return brief
