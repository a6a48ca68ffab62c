"""Statistics over seeds, computed in one way."""

import statistics
from collections.abc import Sequence


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; None where there are too few values for one.

    >>> mean_and_deviation([1.0, 2.0, 3.0]), mean_and_deviation([4.0]), mean_and_deviation([])
    ((2.0, 1.0), (4.0, None), (None, None))
    """
    mean = statistics.mean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None
