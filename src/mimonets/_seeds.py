"""Statistics over seeds and of shares, computed in one way."""

import math
import statistics
from collections.abc import Sequence


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; None where there are too few values for one.

    >>> mean_and_deviation([1.0, 2.0, 3.0]), mean_and_deviation([4.0]), mean_and_deviation([])
    ((2.0, 1.0), (4.0, None), (None, None))
    """
    mean = statistics.mean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    r"""Bound a share that was measured on ``total`` inputs, with 95 % confidence.

    .. math:: \frac{1}{1 + z^2/n} \Bigl(\hat p + \frac{z^2}{2n}
        \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4n^2}}\Bigr)

    Wilson, "Probable inference", JASA 1927. Stays inside [0, 1], also for few inputs.

    >>> [round(bound, 3) for bound in wilson_interval(95, 100)]
    [0.888, 0.978]
    """
    if total == 0:
        return 0.0, 1.0
    z, share = 1.96, correct / total
    middle = share + z**2 / (2 * total)
    reach = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    scale = 1 + z**2 / total
    # At 0 and 1 the share is a bound itself, but for rounding.
    low, high = min(share, (middle - reach) / scale), max(share, (middle + reach) / scale)
    return max(0.0, low), min(1.0, high)
