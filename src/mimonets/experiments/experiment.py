"""What an experiment is: something to run, and numbers to put beside the paper's."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimonets._files import write_json
from mimonets._messages import first_line
from mimonets.evaluation.provenance import environment
from mimonets.experiments.plan import RUNS, Plan
from mimonets.experiments.verdict import Row

Record = dict[str, Any]


@dataclass(frozen=True)
class RunOptions:
    """Where an experiment finds its data and keeps its runs, how much it trains, whom it tells."""

    runs: Path = RUNS
    data_dir: Path | None = None
    only: str = ""  # train only those runs whose name contains this
    train: bool = True  # False: report what has been trained so far
    scale: float = 1.0  # train for this fraction of the epochs and steps
    workers: int | None = None  # runs at a time, as Ray tasks; 0: as many as fit; None: no Ray
    cpus_per_run: int = 1  # of a Ray task
    needs_gpu: bool = False  # refuse a cluster without one
    earlier: Sequence[Record] = ()  # runs of a result file: not trained again, kept
    tell: Callable[[str], object] = field(default=lambda line: None)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper, or one of our own, that can be run again."""

    name: str
    source: str  # where the paper has it; "ours" if it has not
    title: str
    effort: str  # what it takes
    order: int = 1000  # its place in the list: the paper's order, then our own
    needs_gpu: bool = False
    measure: Callable[[RunOptions], tuple[Sequence[Row], Record]]  # the rows, and what led there
    draw: Callable[[Record, Path], object] | None = None
    plan: Plan | None = None  # what it trains by, if it trains

    @property
    def commands(self) -> list[str]:
        """The same by hand, run by run; none if it trains nothing."""
        jobs = [] if self.plan is None else self.plan.jobs()
        return [trial.command(seed) for trial, seed in jobs]

    def run(self, options: RunOptions) -> Record:
        """Measure, and put everything down that a reader needs to check it."""
        return self.record(*self.measure(options))

    def record(self, rows: Sequence[Row], details: Record) -> Record:
        """Put down what was measured, where and by which command."""
        return {
            "experiment": self.name,
            "source": self.source,
            "title": self.title,
            "environment": environment(),
            "rows": [row.as_dict() for row in rows],
            **details,
        }

    def runs_in(self, folder: Path) -> list[Record]:
        """Read the runs that a result in the folder is made of; none if there is no result."""
        return list(self.result_in(folder).get("runs", []))

    def result_in(self, folder: Path) -> Record:
        """Read the result in a folder; empty if there is none."""
        path = folder / f"{self.name}.json"
        if not path.exists():
            return {}
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            runs = [run for run in record.get("runs", []) if {"trial", "seed"} <= run.keys()]
            return {**record, "runs": runs}
        except (OSError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path} is no result of `mimonets reproduce` ({first_line(error)}): move it away, "
                f"or choose another --out."
            ) from error

    def check_result_stays(self, folder: Path, scale: float) -> None:
        """Refuse, before anything is trained, to replace a result by one of other runs."""
        path = folder / f"{self.name}.json"
        earlier = self.result_in(folder)
        if not earlier.get("runs"):
            return
        before = earlier.get("scale", 1.0)
        if before != scale:
            raise ValueError(
                f"{path} was trained with --scale {before:g}, and would be replaced by one with "
                f"{scale:g}: choose another --out."
            )
        settings = [earlier.get("settings", []), [] if self.plan is None else self.plan.settings]
        then, now = (" ".join(one) or "no changed settings" for one in settings)
        if then != now:
            raise ValueError(
                f"{path} was trained with {then}, and would be replaced by one with {now}: choose "
                f"another --out."
            )
        known = self._present_names(scale)
        foreign = [run["trial"] for run in earlier["runs"] if run["trial"] not in known]
        if foreign:
            raise ValueError(
                f"{path} has runs of {foreign[0]}, which is no trial of {self.name} any more: it "
                f"would lose them, so choose another --out."
            )

    def write(self, record: Record, folder: Path) -> list[Path]:
        """Write the record as JSON and, where there is one, the plot; returns the paths.

        Refuses to replace a result in the folder by one without some of its runs.
        """
        now = self._present_names(record.get("scale", 1.0))

        def key(run: Record) -> tuple[str, int]:
            return str(now.get(run["trial"], run["trial"])), run["seed"]

        path = folder / f"{self.name}.json"
        here = {key(run) for run in record.get("runs", [])}
        gone = [run for run in self.runs_in(folder) if key(run) not in here]
        if gone:
            raise ValueError(
                f"{len(gone)} runs of {path} are not in --runs, such as {gone[0]['trial']}/seed-"
                f"{gone[0]['seed']}, and would be lost: --add keeps them; or choose another --out."
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, record, indent=1)
        if self.draw is None:
            return [path]
        plot = folder / f"{self.name}.png"
        self.draw(record, plot)
        slopes = folder / f"{self.name}-slopes.png"
        return [path, plot, *([slopes] if slopes.exists() else [])]

    def _present_names(self, scale: float) -> dict[str, str]:
        """Give the names of all trials by these and their former ones."""
        trials = () if self.plan is None else self.plan.scaled(scale).trials
        return {name: trial.name for trial in trials for name in trial.names}
