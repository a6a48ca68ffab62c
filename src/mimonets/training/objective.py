"""What training minimises: the task's loss and the two penalties. MIMONets, appendix B."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mimonets._answers import parts_of
from mimonets.evaluation.metrics import class_last, has_classes, loss_of
from mimonets.training.batch import Batch
from mimonets.training.config import TrainConfig


def task_loss(answers: Any, batch: Batch, config: TrainConfig, loss: Any = None) -> Tensor:
    r"""Score answers, averaged over what has a label: by ``config.loss``, or a function's own way.

    .. math:: \lambda \, \ell(y, l) + (1 - \lambda) \, \ell(y, l_\pi) \quad
        \text{for inputs mixed in the proportion } \lambda
    """
    score = loss_of(config.loss if loss is None else loss, config.label_smoothing)
    found = score(answers, batch.labels)
    if batch.mixed_in is None:
        return found
    return torch.lerp(score(answers, batch.mixed_in), found, batch.share)


def penalty(model: nn.Module, config: TrainConfig) -> Tensor | float:
    r"""Add up what the model asks for of the two penalties.

    .. math:: \gamma \sum_W L(W) + \mu \, L(a^{(1)}, \dots, a^{(N)})

    with :math:`\gamma` = ``config.isometry`` and :math:`\mu` = ``config.key_penalty``.
    """
    total: Tensor | float = 0.0
    for weight, name in (
        (config.isometry, "isometry_penalty"),
        (config.key_penalty, "stream_key_penalty"),
    ):
        measure = getattr(model, name, None)
        if weight and measure is not None:
            total = total + weight * measure()
    return total


@torch.no_grad()
def count_right(answers: Any, batch: Batch) -> Tensor:
    """Count answers that name the label; of a mixture, the larger part's. NaN without classes."""
    labels = batch.labels
    if batch.mixed_in is not None and batch.share < 0.5:
        labels = batch.mixed_in
    if not has_classes(labels, answers):
        return torch.full((), torch.nan, device=parts_of(answers)[0].device)
    return (class_last(answers, labels).argmax(dim=-1) == labels).sum()


def note_values(model: Any) -> None:
    """Let a trained network say that its answers are values, to whoever exports or serves it."""
    model.answer_kind = "values"
    if getattr(model, "input_spec", None) is not None:
        model.input_spec = replace(model.input_spec, answers="values")


def judged_by_loss(config: TrainConfig, loss: Any, metrics: Any, labels: Any) -> bool:
    """Tell whether validation goes by the loss, as no input has one right class."""
    own = loss is not None or bool(metrics) or config.loss == "binary"
    return own or not has_classes(labels) or labels.ndim > 2
