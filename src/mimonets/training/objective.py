"""What training minimises: the losses of labels and of a teacher, and two penalties.

MIMONets, appendix B.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets._answers import each, parts_of
from mimonets.data.interface import IGNORED
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


def taught_loss(
    answers: Any, batch: Batch, config: TrainConfig, taught: Any, loss: Any = None
) -> Tensor:
    r"""Score answers by the labels and by the teacher's answers, if it was asked.

    .. math:: (1 - w) \, \ell(y, l) + w \, T^2 \,
        \mathrm{KL}\bigl(\mathrm{softmax}(y_t / T) \,\|\, \mathrm{softmax}(y / T)\bigr)

    with w = ``config.distill`` and T = ``config.temperature``. Without a teacher it is the task's
    loss alone. Answers that are no logits of classes are compared by their squared difference.
    """
    found = task_loss(answers, batch, config, loss)
    if taught is None:
        return found
    labels = batch.labels
    if has_classes(labels, answers):
        scored = None if labels.ndim == 1 else labels.flatten() != IGNORED
        rows, wanted = (class_last(one, labels) for one in (answers, taught))
        soft = soft_loss(rows, wanted, scored, config.temperature)
    else:
        soft = loss_of("squared_error")(answers, each(Tensor.float, taught))
    return torch.lerp(found, soft, config.distill)


def soft_loss(logits: Tensor, wanted: Tensor, scored: Tensor | None, temperature: float) -> Tensor:
    """Compare softened answers (..., c): T^2 times the KL divergence, averaged.

    Over those that are ``scored`` (...), or all without it. Nothing waits for the device.
    """
    found, target = (
        F.log_softmax(x.flatten(0, -2).float() / temperature, dim=-1) for x in (logits, wanted)
    )
    if scored is None:
        return temperature**2 * F.kl_div(found, target, log_target=True, reduction="batchmean")
    apart = F.kl_div(found, target, log_target=True, reduction="none").sum(dim=-1)
    return temperature**2 * (apart * scored).sum() / scored.sum()


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
    if not has_classes(labels, answers):
        return torch.full((), torch.nan, device=parts_of(answers)[0].device)
    if batch.mixed_in is not None:
        labels = torch.where(torch.as_tensor(batch.share) < 0.5, batch.mixed_in, labels)
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


class Learner(nn.Module):
    """A network and what becomes of its answers: all that ``train.compile`` makes one graph of."""

    def __init__(self, network: nn.Module, config: TrainConfig, loss: Any = None) -> None:
        super().__init__()
        self.network = network
        self.config = config
        self.loss = loss  # a function in place of the config's

    def forward(
        self,
        tensors: dict[str, Any],
        options: dict[str, Any],
        taught: Any = None,
        weight: Tensor | None = None,
        penalised: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Answer a batch; returns what to minimise, the mean loss and how many answers are right.

        Args:
            tensors: of a :class:`Batch`, by name.
            options: of the operating point.
            taught: the teacher's answers.
            weight: of the loss in what is minimised; 1 without it.
            penalised: whether to add the penalties.
        """
        batch = Batch(**tensors)
        answers = self.network(batch.inputs, **options, **batch.arguments())
        answers = each(_not_half, answers)
        loss = taught_loss(answers, batch, self.config, taught, self.loss)
        if weight is not None:
            loss = loss * weight
        total = loss + penalty(self.network, self.config) if penalised else loss
        return total, loss.detach(), count_right(answers, batch)


def _not_half(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
