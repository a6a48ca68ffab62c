r"""How far other streams disturb a score of FAVOR+S. MIMONets, appendix D.

The score of query i and key j in stream (u, n) is read from two superpositions:

.. math::
    \Big\langle \sum_w \bar k^{(u,w)} \odot a^{(u,w)}, \; \sum_t \bar q^{(t,n)} \odot a^{(t,n)}
    \Big\rangle \approx \langle \bar k^{(u,n)}, \bar q^{(u,n)} \rangle

P is the chance that it is off by more than the share :math:`\alpha`, over random bipolar keys.
The paper's bounds are functions of the crosstalk table :math:`1 / \Xi` alone, (M, N) numbers, 0 for
the stream itself. Above 1 a bound says nothing, and for a pair with cosine 0 all of them are above
1: what should not attend is not covered.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mimonets.theory.tails import bernstein_bound

# m the stream rows, t in the sums   n the columns, w in the sums   d head size
Table = Sequence[Sequence[float]]  # [t][w]


def crosstalk(k: Tensor, q: Tensor, own: tuple[int, int], alpha: float) -> list[list[float]]:
    r"""Tabulate :math:`1 / \Xi` for given keys and queries.

    .. math::
        \frac{1}{\Xi_{(u,w)}^{(t,n)}} = \frac{\|\bar k^{(u,w)} \odot \bar q^{(t,n)}\|^2}
        {\alpha^2 \langle \bar k^{(u,n)}, \bar q^{(u,n)} \rangle^2}

    Args:
        k: (n, d), the unbound keys of row u.
        q: (m, d), the unbound queries of column n.
        own: (u, n), the stream that is read.
        alpha: The share of distortion.

    >>> ones = torch.ones(2, 64)
    >>> crosstalk(ones, ones, own=(0, 0), alpha=0.5)
    [[0.0, 0.0625], [0.0625, 0.0625]]
    """
    u, n = own
    signal = alpha * float(k[n] @ q[u])
    table = (
        (q.square() @ k.square().mT) / signal**2
        if signal
        else torch.full((len(q), len(k)), math.inf)
    )
    table[u, n] = 0.0
    rows: list[list[float]] = table.tolist()
    return rows


def typical_crosstalk(
    dim: int, grid: tuple[int, int], alpha: float, cosine: float = 1.0
) -> list[list[float]]:
    r"""Tabulate it for keys and queries of equal norm and unrelated directions.

    .. math:: \Xi = D \alpha^2 \cos^2 \angle(\bar k^{(u,n)}, \bar q^{(u,n)})

    The paper's "typical scaling", exact for bipolar keys and queries, and an expectation (not a
    bound) where one of the two directions is uniform.

    >>> typical_crosstalk(64, (2, 2), alpha=0.5)
    [[0.0, 0.0625], [0.0625, 0.0625]]
    """
    if dim < 1 or min(grid) < 1:
        raise ValueError(f"dim={dim} and grid={grid} do not fit: all must be at least 1.")
    xi = dim * (alpha * cosine) ** 2
    ratio = 1 / xi if xi else math.inf
    return [[0.0 if (t, w) == (0, 0) else ratio for w in range(grid[1])] for t in range(grid[0])]


def markov_over_columns(table: Table) -> float:
    r"""Apply Markov's and Khintchine's inequalities to each column w.

    .. math:: P \le \sum_w \sqrt{\sum_t 1 / \Xi_{(u,w)}^{(t,n)}}

    Appendix D, first bound. Whenever it is below 1, :func:`chebyshev` is at most as large:
    :math:`\sum_w \sqrt{s_w} \ge \sqrt{\sum_w s_w} \ge \sum_w s_w`.

    >>> round(markov_over_columns(typical_crosstalk(64, (2, 2), alpha=0.5)), 4)
    0.6036
    """
    return math.fsum(math.sqrt(math.fsum(column)) for column in zip(*table, strict=True))


def markov_over_rows(table: Table) -> float:
    r"""Apply the same to each row t.

    .. math:: P \le \sum_t \sqrt{\sum_w 1 / \Xi_{(u,w)}^{(t,n)}}

    Appendix D, second bound.

    >>> round(markov_over_rows(typical_crosstalk(64, (1, 4), alpha=0.5)), 4)
    0.433
    """
    return math.fsum(math.sqrt(math.fsum(row)) for row in table)


def chebyshev(table: Table) -> float:
    r"""Apply Chebyshev's inequality: the products of two streams' keys are uncorrelated.

    .. math:: P \le \sum_{(t, w)} 1 / \Xi_{(u,w)}^{(t,n)}

    Appendix D, third bound. The sum is exactly the variance of the relative error, in units of
    :math:`\alpha^2`.

    >>> chebyshev(typical_crosstalk(64, (2, 2), alpha=0.5))
    0.1875
    """
    return math.fsum(math.fsum(row) for row in table)


def hoeffding_per_pair(table: Table) -> float:
    r"""Give every other pair of streams an equal share of alpha, and Hoeffding's bound each.

    .. math:: P \le 2 \sum_{(t, w)} \exp\Big(-\frac{\Xi_{(u,w)}^{(t,n)}}{2 (N M - 1)^2}\Big)

    Appendix D, fourth bound, the exponential one. Equal shares cost it a square: for aligned
    pairs off by half it says nothing below D = 130 in 2x2 streams, and below 6123 in 4x4.
    :func:`bernstein` repairs that.

    >>> round(hoeffding_per_pair(typical_crosstalk(64, (2, 2), alpha=0.5)), 2)
    2.47
    >>> round(hoeffding_per_pair(typical_crosstalk(1024, (2, 2), alpha=0.5)), 6)
    4e-06
    """
    others = len(table) * len(table[0]) - 1
    ratios = [ratio for row in table for ratio in row if ratio]
    return 2 * math.fsum(math.exp(-1 / (2 * ratio * others**2)) for ratio in ratios)


def bernstein(table: Table, peak: float) -> float:
    r"""Sum over streams before dimensions: the error is a sum of D independent terms.

    .. math::
        P \le 2 \exp\Big(-\frac{1}{2 (\sum_{(t,w)} 1/\Xi_{(u,w)}^{(t,n)} + b / 3)}\Big), \qquad
        b = \max_p \frac{\sum_{(t,w)} |\bar k_p^{(u,w)} \bar q_p^{(t,n)}|}
        {\alpha |\langle \bar k^{(u,n)}, \bar q^{(u,n)} \rangle|}

    Not in the paper, same assumptions. The paper's fourth bound goes around the dependence of the
    pairs, which share keys; but entries of different dimensions share none, so Bernstein's
    inequality applies to them with the variance that :func:`chebyshev` found. Typically the
    exponent is :math:`D \alpha^2 \cos^2 / 2 (N M - 1)(1 + \alpha \cos / 3)`: linear in the number
    of streams where the paper's is quadratic.

    Args:
        table: The crosstalk.
        peak: b, from :func:`crosstalk_peak` or :func:`typical_peak`.

    >>> table, peak = typical_crosstalk(64, (2, 2), 0.5), typical_peak(64, (2, 2), 0.5)
    >>> round(bernstein(table, peak), 3)
    0.203
    """
    return bernstein_bound(1.0, chebyshev(table), peak)


def crosstalk_peak(k: Tensor, q: Tensor, own: tuple[int, int], alpha: float) -> float:
    """Find b of :func:`bernstein`: the most that one dimension can add to the relative error.

    >>> crosstalk_peak(torch.ones(2, 64), torch.ones(2, 64), own=(0, 0), alpha=0.5)
    0.09375
    """
    u, n = own
    signal = alpha * abs(float(k[n] @ q[u]))
    every = k.abs().sum(0) * q.abs().sum(0) - (k[n] * q[u]).abs()
    return float(every.max()) / signal if signal else math.inf


def typical_peak(dim: int, grid: tuple[int, int], alpha: float, cosine: float = 1.0) -> float:
    """Give it for bipolar keys and queries, or others whose entries are of equal size.

    >>> typical_peak(64, (2, 2), alpha=0.5)
    0.09375
    """
    signal = dim * alpha * abs(cosine)
    others = grid[0] * grid[1] - 1
    return others / signal if signal else math.inf


PAPER_BOUNDS = {
    "Markov, by column": markov_over_columns,
    "Markov, by row": markov_over_rows,
    "Chebyshev": chebyshev,
    "Hoeffding, by pair": hoeffding_per_pair,
}
