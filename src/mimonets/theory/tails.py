"""Tails of sums of independent variables: what every bound here rests on. MIMONets, appendix G."""

import math
from collections.abc import Sequence


def hoeffding_bound(t: float, limits: Sequence[float]) -> float:
    r"""Bound the chance that a sum of independent, bounded, centred variables leaves [-t, t].

    .. math:: P(|\sum_i X_i| \ge t) \le 2 \exp\Big(-\frac{t^2}{2 \sum_i a_i^2}\Big),
        \qquad |X_i| \le a_i, \; E[X_i] = 0

    Hoeffding 1963; the paper states it for ">" and uses it for "≥" as well, which is right: its
    proof gives both.

    Args:
        t: The threshold, 0 or more.
        limits: One a per variable, 0 or more.

    >>> round(hoeffding_bound(16.0, [1.0] * 64), 4)  # two standard deviations of 64 signs
    0.2707
    """
    _check(t, limits)
    spread = math.fsum(limit**2 for limit in limits)
    if spread == 0:  # the sum is 0: it reaches t only if that is 0 as well
        return 2.0 if t == 0 else 0.0
    return 2 * math.exp(-(t**2) / (2 * spread))


def bernstein_bound(t: float, variance: float, limit: float) -> float:
    r"""Bound the same tail from the variance of the sum; not in the paper.

    .. math:: P(|\sum_i X_i| \ge t) \le 2 \exp\Big(-\frac{t^2}{2 (V + b t / 3)}\Big),
        \qquad V = \sum_i \mathrm{Var}(X_i), \; |X_i| \le b

    Bernstein 1946. Sharper than Hoeffding's wherever the variables are seldom near their limits.

    >>> round(bernstein_bound(16.0, variance=64 / 3, limit=1.0), 4)  # 64 uniform on [-1, 1]
    0.0165
    >>> round(hoeffding_bound(16.0, [1.0] * 64), 4)
    0.2707
    """
    _check(t, [variance, limit])
    if variance == 0:
        return 2.0 if t == 0 else 0.0
    return 2 * math.exp(-(t**2) / (2 * (variance + limit * t / 3)))


def _check(t: float, limits: Sequence[float]) -> None:
    if not t >= 0 or not all(limit >= 0 for limit in limits):
        raise ValueError(
            f"A tail bound takes a threshold and limits of 0 or more, but got t={t} and limits "
            f"from {min(limits, default=0.0)}: pass absolute values."
        )
