"""What the manifest says about each mode: accuracy, operations and service time."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mimonets._inputs import Array
from mimonets.inference.engine import Engine, example_inputs, median_seconds

IGNORED = -100  # a label that is not scored
GROUPS = (1, 2, 4, 8)  # sizes of batches to time, in groups
TOO_LONG = 2.0  # seconds of a call after which no larger batch is timed


def measure_accuracy(
    engine: Engine, batches: Iterable[tuple[Any, ...]], active_streams: int
) -> float:
    """Measure the fraction of right answers in one mode; inputs left over in a batch count too.

    Next-token tasks are judged by the last token that has a label.
    """
    answers, labels = answers_and_labels(engine, batches, active_streams)
    return int((answers.argmax(axis=-1) == labels).sum()) / len(labels)


def answers_and_labels(
    engine: Engine, batches: Iterable[tuple[Any, ...]], active_streams: int
) -> tuple[Array, Array]:
    """Answer every input in one mode: logits (b, classes) and right answers (b,)."""
    found, wanted = [], []
    for batch in batches:
        inputs, *mask, labels = (np.asarray(part) for part in batch)
        answers = np.asarray(engine(inputs, active_streams, **({"mask": mask[0]} if mask else {})))
        if labels.ndim == 2:
            last = labels.shape[1] - 1 - (labels[:, ::-1] != IGNORED).argmax(axis=1)
            rows = np.arange(len(labels))
            answers, labels = answers[rows, last], labels[rows, last]
        found.append(answers)
        wanted.append(labels)
    if not sum(map(len, wanted)):
        raise ValueError("There is nothing to evaluate: the batches hold no input.")
    return np.concatenate(found), np.concatenate(wanted)


def macs_per_input(model: nn.Module, inputs: Tensor, options: dict[str, int]) -> float:
    """Count multiply-accumulates per input, as PyTorch's own counter sees them."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    # The fused attention of CPUs is not counted; the plain one is.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(inputs.to(device), **options)
    return counter.get_total_flops() / 2 / len(inputs)


def service_times(engine: Engine) -> dict[int, list[list[float]]]:
    """Time calls of several sizes in every mode: [inputs, seconds], the median of a few."""
    found: dict[int, list[list[float]]] = {}
    for mode in engine.modes:
        points: list[list[float]] = []
        for groups in GROUPS:
            count = groups * engine.manifest.answers_per_group(mode)
            inputs = example_inputs(engine.input_spec, count)
            seconds = median_seconds(partial(engine, inputs, mode), budget=0.5)
            points.append([count, float(f"{seconds:.4g}")])
            if points[-1][1] > TOO_LONG:
                break
        found[mode] = points
    return found
