"""How far a network's probabilities can be trusted: on its own data, and on what it never saw."""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mimonets.evaluation.accuracy import expected_calibration_error

# n inputs   c classes


@dataclass(frozen=True)
class Judgement:
    """How right a network is, and how right it is about being right."""

    accuracy: float
    negative_log_likelihood: float  # nats per input
    calibration_error: float  # expected, 15 bins

    def as_dict(self) -> dict[str, float]:
        """Give everything as plain data for JSON."""
        return asdict(self)


def judge(logits: Tensor, labels: Tensor) -> Judgement:
    r"""Judge answers (n, c) by their labels (n,).

    .. math:: \mathrm{NLL} = -\frac{1}{n} \sum_i \log p_i(y_i)

    >>> sure = judge(torch.eye(2) * 50, torch.tensor([0, 1]))
    >>> sure.accuracy, round(sure.negative_log_likelihood, 6)
    (1.0, 0.0)
    """
    return Judgement(
        accuracy=float((logits.argmax(dim=-1) == labels).double().mean()),
        negative_log_likelihood=float(F.cross_entropy(logits.double(), labels)),
        calibration_error=expected_calibration_error(logits, labels),
    )


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
