"""Losses and metrics by name, for labels and for answers of any shape.

Each takes answers and what was wanted, both a tensor with the inputs in front, or tuples or dicts
of tensors: then it is the sum over the outputs, a metric their mean.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimonets._answers import each, names_of, parts_of
from mimonets._messages import did_you_mean, short
from mimonets.data.interface import IGNORED

# b batch   t tokens   c classes

Measure = Callable[[Any, Any], Tensor]  # answers and what was wanted -> one number


def class_last(answers: Tensor, labels: Tensor) -> Tensor:
    """Bring logits to (..., c): those of maps are (b, c, h, w) and (b, c, t), as PyTorch has them.

    >>> class_last(torch.zeros(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.long)).shape
    torch.Size([2, 4, 5, 3])
    """
    if answers.shape[:-1] == labels.shape:
        return answers
    if answers.ndim == labels.ndim + 1 and answers[:, 0].shape == labels.shape:
        return answers.movedim(1, -1)
    raise ValueError(
        f"Labels of shape {tuple(labels.shape)} do not fit answers of shape "
        f"{tuple(answers.shape)}: a label belongs to each row of logits, (b, classes), "
        f"(b, tokens, classes) or (b, classes, ...)."
    )


def cross_entropy(answers: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Score logits by integer labels, averaged over those that have one."""
    if labels.is_floating_point():
        raise ValueError(
            "cross_entropy needs integer labels, and these are floats: choose loss='squared_error' "
            "for numbers, or 'binary' for probabilities of yes and no."
        )
    logits = class_last(answers, labels)
    return F.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED,
        label_smoothing=smoothing,
    )


def squared_error(answers: Tensor, wanted: Tensor, smoothing: float = 0.0) -> Tensor:
    """Average squared differences from numbers; of integer labels from +1 and -1, as in DataMUX."""
    if wanted.is_floating_point():
        return F.mse_loss(answers, _like(wanted, answers))
    answers = class_last(answers, wanted)
    hot = F.one_hot(wanted.clamp_min(0), answers.shape[-1]).to(answers.dtype)
    hot = torch.lerp(hot, torch.full_like(hot, 1 / hot.shape[-1]), smoothing)
    if wanted.ndim == 1:
        return F.mse_loss(answers, 2 * hot - 1)
    scored = wanted != IGNORED  # counted on the device: no step waits for the number
    errors = F.mse_loss(answers, 2 * hot - 1, reduction="none").mean(dim=-1)
    return (errors * scored).sum() / scored.sum()


def binary(answers: Tensor, wanted: Tensor, smoothing: float = 0.0) -> Tensor:
    """Score logits of yes against 0 and 1, or shares between, by their cross entropy."""
    wanted = torch.lerp(_like(wanted, answers), torch.full_like(answers, 0.5), smoothing)
    return F.binary_cross_entropy_with_logits(answers, wanted)


def absolute_error(answers: Tensor, wanted: Tensor) -> Tensor:
    """Average the distances from the numbers that were wanted."""
    return F.l1_loss(answers, _like(wanted, answers))


def accuracy(answers: Tensor, labels: Tensor) -> Tensor:
    """Give the share of right answers; without classes, of right signs, as of ``binary``."""
    if labels.is_floating_point() or answers.numel() == labels.numel():
        return ((answers > 0) == (_like(labels, answers) > 0.5)).float().mean()
    scored = labels != IGNORED
    right = class_last(answers, labels).argmax(dim=-1) == labels
    return (right & scored).sum() / scored.sum().clamp_min(1)


def _like(wanted: Tensor, answers: Tensor) -> Tensor:
    """Bring what was wanted to the shape and type of answers; (b,) and (b, 1) are the same."""
    if wanted.shape != answers.shape:
        if len(wanted) != len(answers) or wanted.numel() != answers.numel():
            raise ValueError(
                f"What is wanted has the shape {tuple(wanted.shape)}, and the answers have "
                f"{tuple(answers.shape)}: this loss takes as many numbers as there are answers."
            )
        wanted = wanted.reshape(answers.shape)
    return wanted.to(answers.dtype)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "binary": binary,
}
METRICS: dict[str, Callable[..., Tensor]] = {
    **LOSSES,
    "absolute_error": absolute_error,
    "accuracy": accuracy,
}


def loss_of(loss: str | Measure, smoothing: float = 0.0) -> Measure:
    """Give a loss: a function as it is, a named one summed over all outputs.

    >>> wanted = {"a": torch.ones(2), "b": torch.zeros(2, 3)}
    >>> float(loss_of("squared_error")({"a": torch.zeros(2), "b": torch.zeros(2, 3)}, wanted))
    1.0
    """
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise ValueError(
            f"There is no loss {short(loss)}{did_you_mean(str(loss), LOSSES)}: choose from "
            f"{', '.join(LOSSES)}, or pass a function of answers and labels."
        )
    return partial(_over_outputs, partial(LOSSES[loss], smoothing=smoothing))


def metrics_of(metrics: Mapping[str, Measure] | Sequence[str | Measure]) -> dict[str, Measure]:
    """Give metrics by their names: those of ours, and functions by their own names."""
    found: dict[str, Measure] = {}
    pairs: list[tuple[str, Any]] = [
        (one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__), one)
        for one in metrics
    ]
    for name, one in metrics.items() if isinstance(metrics, Mapping) else pairs:
        if callable(one):
            found[name] = one
        elif one in METRICS:
            found[name] = partial(_over_outputs, METRICS[one], mean=True)
        else:
            raise ValueError(
                f"There is no metric {short(one)}{did_you_mean(str(one), METRICS)}: choose from "
                f"{', '.join(METRICS)}, or pass a function of answers and labels."
            )
    return found


def _over_outputs(measure: Measure, answers: Any, wanted: Any, *, mean: bool = False) -> Tensor:
    """Measure every output and add up."""
    if isinstance(answers, Tensor) and isinstance(wanted, Tensor):
        return measure(answers, wanted)
    wanted = tuple(wanted) if isinstance(wanted, list) else wanted
    names, known = names_of(answers), names_of(wanted)
    if {*names} != {*known}:
        raise ValueError(
            f"The network answers with {', '.join(names) or 'one tensor'}, and the labels have "
            f"{', '.join(known) or 'one tensor'}: give a label for every output, or a loss of your "
            f"own."
        )
    if isinstance(wanted, Mapping):
        wanted = {name: wanted[name] for name in names}
    losses = parts_of(each(measure, answers, wanted))
    return torch.stack(losses).mean() if mean else torch.stack(losses).sum()


def has_classes(labels: Any, answers: Any = None) -> bool:
    """Tell whether labels are numbers of classes, and answers the logits of several.

    >>> has_classes(torch.tensor([1, 2])), has_classes(torch.tensor([0.5]))
    (True, False)
    """
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        return False
    if answers is None:
        return True
    logits = isinstance(answers, Tensor) and answers.ndim == labels.ndim + 1
    return logits and answers.numel() > labels.numel()
