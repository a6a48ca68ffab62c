"""What training minimises: the task's loss and the two penalties. MIMONets, appendix B."""

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
    if batch.mixed_in is not None and batch.share < 0.5:
        labels = batch.mixed_in
    return (logits.argmax(dim=-1) == labels).sum()
