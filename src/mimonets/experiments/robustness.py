"""Judge a network on clean, damaged and foreign images, at each operating point."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mimonets.data import ImageBatches, ImageSet, SequenceBatches, evaluation_batches
from mimonets.evaluation.accuracy import answers
from mimonets.experiments.corruptions import CORRUPTIONS, STRENGTHS, corrupt
from mimonets.experiments.foreign import foreign_images
from mimonets.experiments.uncertainty import auroc, confidence, judge
from mimonets.models import eval_mode, find_point

MOST_DAMAGED = 2_000  # images that are damaged in every way: the first of all


def judge_everywhere(
    model: Any,
    batches: ImageBatches | SequenceBatches,
    modes: Sequence[int],
    foreign: str,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Judge a network in each mode: by mode, its answers to clean, damaged and foreign images.

    Args:
        model: any network that takes images.
        batches: clean images to evaluate on; damaged ones are made of their first 2,000.
        modes: numbers of active streams.
        foreign: images of no class of the network: ``"letters"``, or the name of a data set.
        folder: where the files of that data set are.

    Returns:
        Plain data: for each mode ``clean`` (a :class:`Judgement`), ``damaged`` (one by kind and
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

    def logits(data: ImageSet, mode: int) -> tuple[Tensor, Tensor]:
        with eval_mode(model):
            return answers(
                model,
                evaluation_batches(data, statistics=batches.statistics),
                find_point(model, mode),
            )

    found: dict[str, Any] = {}
    for mode in modes:
        clean, labels = logits(batches.data, mode)
        strange, _ = logits(others, mode)
        judged = {which: judge(*logits(data, mode)).as_dict() for which, data in damaged.items()}
        found[str(mode)] = {
            "clean": judge(clean, labels).as_dict(),
            "foreign": auroc(confidence(clean), confidence(strange)),
            "damaged": {
                kind: {str(strength): judged[kind, strength] for strength in STRENGTHS}
                for kind in CORRUPTIONS
            },
        }
    return found
