"""What an experiment is: something to run, and numbers to put beside the paper's."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mimonets.evaluation.provenance import environment

Verdict = Literal[
    "reproduced", "bettered", "holds", "differs", "scaled down", "ours alone", "not run"
]
Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One number of ours beside the paper's, and what to make of the two.

    >>> Row("WideResNet-28-10", "MMAC", 5250.3, 5251, tolerance=1).verdict
    'reproduced'
    >>> Row("MIMOConv, N=16", "%", 91.0, 80.4, tolerance=1, more_is_better=True).verdict
    'bettered'
    """

    what: str
    unit: str
    ours: float | None  # None: not run
    paper: float | None = None  # None: the paper does not say
    at_most: float | None = None  # a bound on ours
    tolerance: float = 0.0  # how far two numbers may lie apart and still be the same
    deviation: float | None = None  # over the seeds
    paper_deviation: float | None = None
    seeds: int | None = None
    more_is_better: bool = False
    scaled_down: bool = False  # less data, steps or width than the paper's
    macs: float | None = None  # per input, where accuracy is weighed against cost
    streams: int | None = None  # inputs per pass
    group: str = ""  # the line it belongs to in a plot
    diverged: int = 0  # seeds that came to nothing and are not in the mean
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """Say at a glance how ours relates to the paper's."""
        if self.diverged:
            return "differs"
        if self.ours is None:
            return "not run"
        if self.at_most is not None:
            return "holds" if self.ours <= self.at_most + self.tolerance else "differs"
        if self.paper is None:
            return "scaled down" if self.scaled_down else "ours alone"
        apart = self.ours - self.paper
        if self.more_is_better and apart > self.tolerance:
            return "bettered"
        if self.scaled_down:
            return "scaled down"
        return "reproduced" if abs(apart) <= self.tolerance else "differs"

    def as_dict(self) -> dict[str, Any]:
        """Give everything that is known as plain data."""
        known = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        if not self.diverged:
            del known["diverged"]
        return {**known, "verdict": self.verdict}


@dataclass(frozen=True)
class Workplace:
    """Where an experiment finds its data and leaves its runs, and whom it tells how far it is."""

    runs: Path = Path("runs/reproduce")
    data_dir: Path | None = None
    only: str = ""  # train only those runs whose name contains this
    train: bool = True  # False: report what has been trained so far
    tell: Callable[[str], object] = field(default=lambda line: None)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, or one of our own, that can be run again."""

    name: str
    source: str  # where the paper has it; "ours" if it has not
    title: str
    effort: str  # what it takes
    needs_gpu: bool
    measure: Callable[[Workplace], tuple[Sequence[Row], Record]]  # the rows, and what led there
    draw: Callable[[Record, Path], object] | None = None
    commands: tuple[str, ...] = ()  # the same by hand, run by run

    def run(self, workplace: Workplace) -> Record:
        """Measure, and put everything down that a reader needs to check it."""
        rows, details = self.measure(workplace)
        return {
            "experiment": self.name,
            "source": self.source,
            "title": self.title,
            "environment": environment(),
            "rows": [row.as_dict() for row in rows],
            **details,
        }

    def write(self, record: Record, folder: Path) -> list[Path]:
        """Write the record as JSON and, where there is one, the plot; returns the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
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
