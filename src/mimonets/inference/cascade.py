r"""Cascade: which fast answers are worth a second, slow pass.

Running everything fast and a fraction r again in slow mode costs

.. math:: 1/N + r

passes per input. Against a middle mode of 1/2 it pays for r < 1/4 at N = 4, if it is as accurate.
Thresholds are calibrated on validation data: an export does so, and its manifest has the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mimonets._inputs import Array

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
    sure = confidences(fast)
    levels = np.append(np.sort(sure), np.inf)  # below the last lie all inputs
    first, second = fast.argmax(axis=1), slow.argmax(axis=1)
    table = []
    for level in dict.fromkeys(float(levels[round(share * len(sure))]) for share in shares):
        again = sure < level
        rerun, changed = float(again.mean()), (first != second)[again]
        table.append(
            Threshold(
                confidence=level,
                rerun=rerun,
                accuracy=float((np.where(again, second, first) == labels).mean()),
                cost=1 / active_streams + rerun,
                changed=float(changed.mean()) if len(changed) else 0.0,
            )
        )
    return table


def choose_threshold(table: Sequence[Threshold], *, tolerance: float = TOLERANCE) -> Threshold:
    """Choose the cheapest threshold that is within ``tolerance`` of the most accurate one."""
    best = max(row.accuracy for row in table)
    return min((row for row in table if row.accuracy >= best - tolerance), key=lambda row: row.cost)


def confidences(logits: Array) -> Array:
    """Give the largest probability of every row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(1 / np.exp(shifted).sum(axis=1))
