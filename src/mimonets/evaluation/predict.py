"""Answers for single inputs: the likeliest classes and their probabilities."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from mimonets._answers import each, names_of, parts_of
from mimonets._inputs import KINDS, InputSpec
from mimonets.data.images.reading import Array, to_input
from mimonets.evaluation.accuracy import device_of
from mimonets.models import eval_mode, find_point

Values = dict[str, Array]  # of one input, by the names of the outputs; "values" of just one


@dataclass(frozen=True)
class Guess:
    """One class that an input may belong to."""

    label: str
    probability: float


def predict(
    model: Any,
    images: Iterable[Array],
    *,
    spec: InputSpec | None = None,
    active_streams: int | None = None,
    top: int = 1,
    batch_size: int = 256,
) -> list[list[Guess]]:
    """Name the likeliest classes of images, best first, one list per image.

    Neighbours share a pass, ``active_streams`` at a time. :func:`predict_values` is for networks
    that answer with numbers.

    Args:
        model: any model that takes images.
        images: uint8, (h, w) or (h, w, 3), of any size: they are brought to the size, colours and
            scale of the training data.
        spec: how to do that; by default the model's own ``input_spec``.
        active_streams: the operating point, by its number; by default the fastest.
        top: how many classes to name.
    """
    spec = check_spec(model, spec)
    if gives_values(model, spec):
        raise ValueError(
            f"This {type(model).__name__} answers with values, not with classes: use "
            f"predict_values."
        )
    found: list[list[Guess]] = []
    for logits in _answered(model, images, spec, active_streams, batch_size):
        best = logits.softmax(dim=-1).topk(min(top, logits.shape[-1]))
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        found += [
            [Guess(spec.label(index), share) for index, share in zip(*row, strict=True)]
            for row in rows
        ]
    return found


def predict_values(
    model: Any,
    images: Iterable[Array],
    *,
    spec: InputSpec | None = None,
    active_streams: int | None = None,
    batch_size: int = 256,
) -> list[Values]:
    """Give the answers to images as arrays, such as numbers, maps or images, one dict per image.

    The arguments are those of :func:`predict`.
    """
    spec = check_spec(model, spec)
    found: list[Values] = []
    for answers in _answered(model, images, spec, active_streams, batch_size):
        names = names_of(answers) or ("values",)
        arrays = [part.cpu().numpy() for part in parts_of(answers)]
        found += [dict(zip(names, row, strict=True)) for row in zip(*arrays, strict=True)]
    return found


def gives_values(model: Any, spec: InputSpec | None) -> bool:
    """Tell whether answers are numbers and name no classes."""
    kinds = (getattr(spec, "answers", None), getattr(model, "answer_kind", None))
    return "values" in kinds


def _answered(
    model: Any, images: Iterable[Array], spec: InputSpec, active_streams: int | None, size: int
) -> Iterator[Any]:
    """Answer images batch by batch, in float32."""
    point = find_point(model, active_streams)
    waiting = iter(images)
    with eval_mode(model):
        while some := list(islice(waiting, size)):
            inputs = torch.from_numpy(np.stack([to_input(image, spec) for image in some]))
            answers = model(inputs.to(device_of(model)), **point.options)
            yield each(torch.Tensor.float, answers)


def check_spec(model: Any, spec: InputSpec | None = None) -> InputSpec:
    """Find the description of a model's inputs, or say what is missing."""
    spec = spec or getattr(model, "input_spec", None)
    if spec is None or (spec.kind == "image" and spec.mean is None):
        raise ValueError(
            f"This {type(model).__name__} does not say how its images were prepared: give the mean "
            f"and deviation of the training data on the scale 0..255 (--mean and --deviation, one "
            f"number per channel; --crop if there was one), or train and save it again."
        )
    if spec.kind != "image":
        raise ValueError(
            f"This {type(model).__name__} takes {KINDS[spec.kind]}, and only images can be "
            f"predicted: call the model itself."
        )
    return spec
