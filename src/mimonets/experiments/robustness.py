"""How far a network's probabilities can be trusted: on clean, damaged and foreign images.

A plan's ``foreign`` asks for this: its trained networks are judged at each operating point.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimonets._operating_point import OperatingPoint
from mimonets._seeds import mean_and_deviation
from mimonets.data import ImageBatches, ImageSet, SequenceBatches, evaluation_batches
from mimonets.evaluation.accuracy import answers, expected_calibration_error
from mimonets.experiments.compare import Row
from mimonets.experiments.corruptions import CORRUPTIONS, STRENGTHS, corrupt
from mimonets.experiments.experiment import Record
from mimonets.experiments.foreign import foreign_images
from mimonets.models import eval_mode, find_point

# n inputs   c classes

MOST_DAMAGED = 2_000  # images that are damaged in every way: the first of all


def judge_everywhere(
    model: Any,
    batches: ImageBatches | SequenceBatches,
    points: Sequence[int],
    foreign: str,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Judge a network at operating points: its answers to clean, damaged and foreign images.

    Args:
        model: any network that takes images.
        batches: clean images to evaluate on; damaged ones are made of their first 2,000.
        points: their numbers, such as numbers of active streams.
        foreign: images of no class of the network: ``"letters"``, or the name of a data set.
        folder: where the files of that data set are, or a folder with one folder for each.

    Returns:
        Plain data: for each point ``clean`` (see :func:`judge`), ``damaged`` (one by kind and
        strength) and ``foreign``, the AUROC of telling clean from foreign images by confidence.
    """
    if not isinstance(batches, ImageBatches):
        raise ValueError(f"{batches.data.name} is no set of images: only those can be damaged.")
    others = foreign_images(foreign, batches.data, folder)
    few = batches.data.subset(torch.arange(min(MOST_DAMAGED, len(batches.data))))
    damaged = {
        (kind, strength): replace(few, images=corrupt(few.images, kind, strength))
        for kind in CORRUPTIONS
        for strength in STRENGTHS
    }

    def logits(data: ImageSet, number: int) -> tuple[Tensor, Tensor]:
        with eval_mode(model):
            return answers(
                model,
                evaluation_batches(data, statistics=batches.statistics),
                find_point(model, number),
            )

    found: dict[str, Any] = {}
    for number in points:
        clean, labels = logits(batches.data, number)
        strange, _ = logits(others, number)
        judged = {which: judge(*logits(data, number)) for which, data in damaged.items()}
        found[str(number)] = {
            "clean": judge(clean, labels),
            "foreign": auroc(confidence(clean), confidence(strange)),
            "damaged": {
                kind: {str(strength): judged[kind, strength] for strength in STRENGTHS}
                for kind in CORRUPTIONS
            },
        }
    return found


def judge(logits: Tensor, labels: Tensor) -> dict[str, float]:
    r"""Judge answers (n, c) by their labels (n,): accuracy, nats per input, calibration error.

    .. math:: \mathrm{NLL} = -\frac{1}{n} \sum_i \log p_i(y_i)

    >>> sure = judge(torch.eye(2) * 50, torch.tensor([0, 1]))
    >>> sure["accuracy"], round(sure["negative_log_likelihood"], 6)
    (1.0, 0.0)
    """
    return {
        "accuracy": float((logits.argmax(dim=-1) == labels).double().mean()),
        "negative_log_likelihood": float(F.cross_entropy(logits.double(), labels)),
        "calibration_error": expected_calibration_error(logits, labels),
    }


def confidence(logits: Tensor) -> Tensor:
    """Give the probability of the likeliest class: (n, c) -> (n,).

    Hendrycks & Gimpel, "A baseline for detecting misclassified and out-of-distribution examples",
    ICLR 2017.
    """
    return logits.double().softmax(dim=-1).amax(dim=-1)


def auroc(own: Tensor, foreign: Tensor) -> float:
    r"""Say how often an own input scores above a foreign one; ties count half.

    .. math:: \frac{1}{n m} \sum_{i \le n} \sum_{j \le m} [s_i > t_j] + \tfrac12 [s_i = t_j]

    That is the area under the curve of right alarms against false alarms. 0.5 is chance.

    Args:
        own: scores (n,) of inputs of the kind that the network was trained on.
        foreign: scores (m,) of inputs that belong to none of its classes.

    >>> auroc(torch.tensor([0.9, 0.8]), torch.tensor([0.8, 0.1]))
    0.875
    """
    for name, scores in (("own", own), ("foreign", foreign)):
        if not len(scores) or not bool(torch.isfinite(scores).all()):
            raise ValueError(
                f"The {len(scores)} {name} scores cannot be ranked: there must be some, all finite."
            )
    values, place = torch.cat([own, foreign]).unique(return_inverse=True)
    mine = torch.bincount(place[: len(own)], minlength=len(values)).double()
    theirs = torch.bincount(place[len(own) :], minlength=len(values)).double()
    below = theirs.cumsum(0) - theirs
    return float((mine * (below + theirs / 2)).sum()) / (len(own) * len(foreign))


def uncertainty_rows(
    title: str,
    point: OperatingPoint,
    found: Sequence[Record],
    group: str = "",
    macs: float | None = None,
) -> list[Row]:
    """Give one row per measure: mean and spread over the seeds."""
    rows = []
    for what, (unit, read) in MEASURES.items():
        values = [read(one[str(point.number)]) for one in found]
        average, spread = mean_and_deviation(values)
        rows.append(
            Row(
                f"{title}: {what}",
                unit,
                average,
                deviation=spread,
                seeds=len(values),
                streams=point.inputs_per_pass,
                group=group,
                macs=macs,
            )
        )
    return rows


def damaged_mean(found: Record, measure: str) -> float:
    """Average a measure over all kinds and strengths of damage."""
    return mean(one[measure] for kind in found["damaged"].values() for one in kind.values())


# What is reported: by title its unit, and how to read it from what was found at one point.
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
