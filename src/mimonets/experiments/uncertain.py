"""What a plan's ``foreign`` asks for: trained networks on clean, damaged and foreign images."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from mimonets._seeds import mean_and_deviation
from mimonets.experiments.compare import Row
from mimonets.experiments.experiment import Record
from mimonets.experiments.robustness import judge_everywhere
from mimonets.recipes.execute import open_run


def measure_uncertainty(
    folder: Path,
    modes: Sequence[int],
    foreign: str,
    data_dir: Path | None = None,
    settings: Sequence[str] = (),
) -> Record:
    """Judge a run's model in each mode, see :func:`judge_everywhere`.

    Args:
        folder: of the run.
        modes: numbers of active streams.
        foreign: letters, or the name of a data set.
        data_dir: where the files of that data set are, or a folder with one folder for each.
        settings: of the run's own data, such as ``data.dir=DIR``.
    """
    model, batches = open_run(folder, "test", settings)
    place = data_dir
    if data_dir is not None and (data_dir / foreign).is_dir():
        place = data_dir / foreign
    return judge_everywhere(model, batches, modes, foreign, place)


def uncertainty_rows(
    title: str, mode: int, found: Sequence[Record], group: str = "", macs: float | None = None
) -> list[Row]:
    """Give one row per measure: mean and spread over the seeds."""
    rows = []
    for what, (unit, read) in MEASURES.items():
        values = [read(one[str(mode)]) for one in found]
        average, spread = mean_and_deviation(values)
        rows.append(
            Row(
                f"{title}: {what}",
                unit,
                average,
                deviation=spread,
                seeds=len(values),
                streams=mode,
                group=group,
                macs=macs,
            )
        )
    return rows


def damaged_mean(found: Record, measure: str) -> float:
    """Average a measure over all kinds and strengths of damage."""
    return mean(one[measure] for kind in found["damaged"].values() for one in kind.values())


# What is reported: by title its unit, and how to read it from what was found in one mode.
MEASURES: dict[str, tuple[str, Callable[[Record], float]]] = {
    "negative log-likelihood": ("nats", lambda one: one["clean"]["negative_log_likelihood"]),
    "calibration error": ("%", lambda one: 100 * one["clean"]["calibration_error"]),
    "accuracy, damaged": ("%", lambda one: 100 * damaged_mean(one, "accuracy")),
    "negative log-likelihood, damaged": (
        "nats",
        lambda one: damaged_mean(one, "negative_log_likelihood"),
    ),
    "foreign images found, AUROC": ("%", lambda one: 100 * one["foreign"]),
}
