"""What came out of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Row = dict[str, Any]


@dataclass(frozen=True)
class TrainResult:
    """What came out of a run."""

    history: list[Row]  # one row per epoch, as in metrics.jsonl
    final: dict[int, Row]  # the kept model on the validation data, by active streams; or empty
    keep: str  # which model to use and to measure: best, on the validation data, or last
    steps: int
    skipped: int  # batches left out by the gradient filter
    not_finite: int  # those of them whose gradient was not finite
    seconds: float | None  # of training; None for runs of version 0.1.0
    slopes: dict[str, float]  # of parametric ReLUs in the kept model: the mean, layer by layer
    run_dir: Path
    rank: int = 0  # of this process; with several devices only 0 should print

    @property
    def model_dir(self) -> Path:
        """The model that is kept, for mimonets.load."""
        return self.run_dir / ("best" if self.keep == "best" else "model")

    @property
    def training(self) -> Row:
        """Loss and accuracy on the training data in the last epoch."""
        last = self.history[-1] if self.history else {}
        return {name: last.get(name) for name in ("loss", "accuracy")}

    def as_dict(self) -> Row:
        """Give what is not in other files of the run folder as plain data for JSON."""
        return {
            "final": self.final,
            "training": self.training,
            "keep": self.keep,
            "steps": self.steps,
            "skipped": self.skipped,
            "not_finite": self.not_finite,
            "seconds": self.seconds,
            "slopes": self.slopes,
        }

    @classmethod
    def from_dict(cls, found: Row, run_dir: Path, history: list[Row]) -> Self:
        """Read what :meth:`as_dict` gave."""
        return cls(
            history=history,
            final={int(mode): dict(row) for mode, row in found["final"].items()},
            keep=str(found.get("keep", "last")),
            steps=int(found["steps"]),
            skipped=int(found["skipped"]),
            not_finite=int(found["not_finite"]),
            seconds=found.get("seconds"),
            slopes=dict(found.get("slopes", {})),
            run_dir=run_dir,
        )
