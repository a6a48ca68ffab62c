"""What an experiment is: something to run, and numbers to put beside the paper's."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimonets._files import write_text
from mimonets._messages import first_line
from mimonets.evaluation.provenance import environment
from mimonets.experiments.compare import Row

Record = dict[str, Any]


@dataclass(frozen=True)
class RunOptions:
    """Where an experiment finds its data and keeps its runs, how much it trains, whom it tells."""

    runs: Path = Path("runs/reproduce")
    data_dir: Path | None = None
    only: str = ""  # train only those runs whose name contains this
    train: bool = True  # False: report what has been trained so far
    scale: float = 1.0  # train for this fraction of the epochs and steps
    compile: bool = False  # train through torch.compile
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
    commands: tuple[str, ...] = ()  # the same by hand, run by run
    plan: Any = None  # the Plan it trains by, if it trains

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

    def write(self, record: Record, folder: Path) -> list[Path]:
        """Write the record as JSON and, where there is one, the plot; returns the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        write_text(path, json.dumps(record, indent=1) + "\n")
        if self.draw is None:
            return [path]
        plot = folder / f"{self.name}.png"
        self.draw(record, plot)
        return [path, plot]


def verdicts(record: Record) -> dict[str, int]:
    """Count how often each verdict was given.

    >>> verdicts({"rows": [{"verdict": "reproduced"}, {"verdict": "reproduced"}]})
    {'reproduced': 2}
    """
    return dict(Counter(row["verdict"] for row in record["rows"]))
