r"""Cascade: which fast answers are worth a second, slow pass.

Running everything fast and a fraction r again in slow mode costs

.. math:: 1/N + r

passes per input. Against a middle mode of 1/2 it pays for r < 1/4 at N = 4, if it is as accurate.
Thresholds are calibrated on validation data: an export does so, and its manifest has the table.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5)  # of the inputs that run again
TOLERANCE = 0.0005  # of accuracy that the chosen threshold may give up to be cheaper


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
    fast: Array,
    slow: Array,
    labels: Array,
    *,
    active_streams: int,
    shares: Sequence[float] = SHARES,
) -> list[Threshold]:
    """Tabulate thresholds that rerun given shares of the inputs.

    Args:
        fast: logits (b, classes) in fast mode.
        slow: logits (b, classes) of the same inputs in slow mode.
        labels: (b,) right classes, of data that was not trained on.
        active_streams: inputs that share a pass in fast mode.
        shares: fractions of the inputs to rerun, such as 0, 0.05, 0.1. Several that have the same
            threshold are one row.
    """
    sure = np.sort(confidences(fast))
    levels = dict.fromkeys(_quantile(sure, share) for share in shares)
    return [_tabulate(fast, slow, labels, active_streams, level) for level in levels]


def choose_threshold(table: Sequence[Threshold], *, tolerance: float = TOLERANCE) -> Threshold:
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
