r"""Cascade: which fast answers are worth a second, slow pass.

Running everything fast and a fraction r again in slow mode costs

.. math:: 1/N + r

passes per input. Against a middle mode of 1/2 it pays for r < 1/4 at N = 4, if it is as accurate.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Threshold:
    """What comes of rerunning all answers whose confidence is below a threshold."""

    confidence: float
    rerun: float  # fraction of inputs
    accuracy: float
    cost: float  # passes per input
    changed: float  # fraction of the rerun whose answer changes

    def as_dict(self) -> dict[str, float]:
        """Give plain data for JSON."""
        return asdict(self)


def thresholds(
    fast: Array, slow: Array, labels: Array, *, active_streams: int, shares: Sequence[float]
) -> list[Threshold]:
    """Tabulate thresholds that rerun given shares of the inputs.

    Args:
        fast: logits (b, classes) in fast mode.
        slow: logits (b, classes) of the same inputs in slow mode.
        labels: (b,) right classes, of data that was not trained on.
        active_streams: inputs per pass in fast mode.
        shares: fractions of the inputs to rerun, such as 0, 0.05, 0.1.
    """
    sure = np.sort(confidences(fast))
    return [
        _tabulate(fast, slow, labels, active_streams, _quantile(sure, share)) for share in shares
    ]


def choose_threshold(table: Sequence[Threshold], *, tolerance: float = 0.0005) -> Threshold:
    """Choose the cheapest threshold that is within ``tolerance`` of the most accurate one."""
    best = max(row.accuracy for row in table)
    return min((row for row in table if row.accuracy >= best - tolerance), key=lambda row: row.cost)


def confidences(logits: Array) -> Array:
    """Give the largest probability of every row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(1 / np.exp(shifted).sum(axis=1))


def _quantile(sure: Array, share: float) -> float:
    """Find the confidence below which a share of the inputs lies."""
    below = round(share * len(sure))
    return float(sure[below]) if below < len(sure) else float("inf")


def _tabulate(
    fast: Array, slow: Array, labels: Array, active_streams: int, confidence: float
) -> Threshold:
    again = confidences(fast) < confidence
    first, second = fast.argmax(axis=1), slow.argmax(axis=1)
    answers = np.where(again, second, first)
    changed = (first != second)[again]
    return Threshold(
        confidence=confidence,
        rerun=float(again.mean()),
        accuracy=float((answers == labels).mean()),
        cost=1 / active_streams + float(again.mean()),
        changed=float(changed.mean()) if len(changed) else 0.0,
    )
