"""What training minimises: the losses of labels and of a teacher, and two penalties.

MIMONets, appendix B.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets.data.interface import IGNORED
from mimonets.training.batch import Batch
from mimonets.training.config import TrainConfig

# b batch   t tokens   c classes


def task_loss(logits: Tensor, batch: Batch, config: TrainConfig) -> Tensor:
    r"""Score answers (b, c), or (b, t, c) for next tokens, averaged over what has a label.

    .. math:: \lambda \, \ell(y, l) + (1 - \lambda) \, \ell(y, l_\pi) \quad
        \text{for inputs mixed in the proportion } \lambda
    """
    loss = _score(logits, batch.labels, config)
    if batch.mixed_in is None:
        return loss
    return torch.lerp(_score(logits, batch.mixed_in, config), loss, batch.share)


def _score(logits: Tensor, labels: Tensor, config: TrainConfig) -> Tensor:
    if config.loss == "cross_entropy":
        return F.cross_entropy(
            logits.flatten(0, -2),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=config.label_smoothing,
        )
    wanted = F.one_hot(labels.clamp_min(0), logits.shape[-1]).to(logits.dtype)
    wanted = torch.lerp(
        wanted, torch.full_like(wanted, 1 / wanted.shape[-1]), config.label_smoothing
    )
    if labels.ndim == 1:
        return F.mse_loss(logits, 2 * wanted - 1)
    scored = labels != IGNORED  # counted on the device: no step waits for the number
    errors = F.mse_loss(logits, 2 * wanted - 1, reduction="none").mean(dim=-1)
    return (errors * scored).sum() / scored.sum()


def taught_loss(logits: Tensor, batch: Batch, config: TrainConfig, taught: Tensor | None) -> Tensor:
    r"""Score answers by the labels and by the teacher's answers, if it was asked.

    .. math:: (1 - w) \, \ell(y, l) + w \, T^2 \,
        \mathrm{KL}\bigl(\mathrm{softmax}(y_t / T) \,\|\, \mathrm{softmax}(y / T)\bigr)

    with w = ``config.distill`` and T = ``config.temperature``. Without a teacher it is the task's
    loss alone.
    """
    loss = task_loss(logits, batch, config)
    if taught is None:
        return loss
    scored = None if batch.labels.ndim == 1 else batch.labels.flatten() != IGNORED
    return torch.lerp(loss, soft_loss(logits, taught, scored, config.temperature), config.distill)


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
def count_right(logits: Tensor, batch: Batch) -> Tensor:
    """Count answers that name the label; of a mixture, the larger part's."""
    labels = batch.labels
    if batch.mixed_in is not None:
        labels = torch.where(torch.as_tensor(batch.share) < 0.5, batch.mixed_in, labels)
    return (logits.argmax(dim=-1) == labels).sum()


class Learner(nn.Module):
    """A network and what becomes of its answers: all that ``train.compile`` makes one graph of."""

    def __init__(self, network: nn.Module, config: TrainConfig) -> None:
        super().__init__()
        self.network = network
        self.config = config

    def forward(
        self,
        tensors: dict[str, Any],
        options: dict[str, Any],
        taught: Tensor | None = None,
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
        logits = self.network(batch.inputs, **options, **batch.arguments())
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        loss = taught_loss(logits, batch, self.config, taught)
        if weight is not None:
            loss = loss * weight
        total = loss + penalty(self.network, self.config) if penalised else loss
        return total, loss.detach(), count_right(logits, batch)
