"""Draw the random variables of the theorems and count. Each function returns an :class:`Estimate`.

Keys come from :mod:`mimonets.vsa`, as in the networks. The same generator state gives the same
numbers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from mimonets.theory.dimensionality import cutoff
from mimonets.vsa import bipolar_keys, cleanup, gaussian_keys

# b samples   s streams   d width   m, n the two stream axes
KeyMaker = Callable[..., Tensor]
ELEMENTS = 2**16  # drawn at a time, to stay in the cache
ROUNDING = 1e-9  # a comparison that is met exactly counts as met, whatever was rounded


@dataclass(frozen=True)
class Estimate:
    """A simulated mean or probability and how sure of it we are."""

    mean: float
    standard_error: float
    samples: int


def simulate_interference(
    dim: int,
    angle: float = 70.0,
    *,
    num_streams: int = 2,
    keys: KeyMaker = bipolar_keys,
    samples: int = 10_000,
    generator: Generator | None = None,
) -> Estimate:
    """Count how often any two of N fresh keys are within ``angle``, on either side.

    >>> simulate_interference(1, samples=100).mean  # in one dimension any two are parallel
    1.0
    """

    def batch(size: int) -> Tensor:
        drawn = keys(size * num_streams, dim, generator=generator, dtype=torch.float64)
        unit = torch.nn.functional.normalize(drawn, dim=-1).view(size, num_streams, dim)
        cosine = (unit @ unit.mT).abs()
        # The diagonal does not count.
        cosine.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
        return cosine.amax(dim=(-2, -1)) >= cutoff(angle) - ROUNDING

    return _share(batch, samples, num_streams * dim)


def simulate_sum(
    t: float, limits: Sequence[float], *, samples: int = 10_000, generator: Generator | None = None
) -> Estimate:
    """Count how often a sum of fair signs, each times its limit, reaches ``t`` on either side.

    >>> simulate_sum(2.0, [1.0, 1.0], samples=1000).mean > 0.4  # one half
    True
    """
    weights = torch.tensor(limits, dtype=torch.float64)

    def batch(size: int) -> Tensor:
        signs = bipolar_keys(size, len(weights), generator=generator, dtype=torch.float64)
        return (signs @ weights).abs() >= t - ROUNDING

    return _share(batch, samples, len(weights))


def simulate_hadamard_norm(
    dim: int,
    beta: float | None = None,
    *,
    samples: int = 10_000,
    generator: Generator | None = None,
    direction: Tensor | None = None,
) -> Estimate:
    """Measure the mean square norm of X * Y, or how often it exceeds (1 + beta) / D.

    Args:
        dim: D.
        beta: The excess; without it the mean is measured.
        samples: How many pairs are drawn.
        generator: Where the randomness comes from.
        direction: X, a unit vector; without it X is drawn uniformly, as Y always is.

    >>> simulate_hadamard_norm(1, samples=10).mean  # both are +1 or -1
    1.0
    """

    def batch(size: int) -> Tensor:
        x = _unit(size, dim, generator) if direction is None else direction.double()
        return (x * _unit(size, dim, generator)).square().sum(-1)

    if beta is None:
        return _mean(batch, samples, dim)
    return _share(lambda size: batch(size) > (1 + beta) / dim + ROUNDING, samples, dim)


def simulate_cleanup_noise(
    values: Tensor,
    item: Tensor,
    stream: int,
    alpha: float,
    *,
    samples: int = 10_000,
    generator: Generator | None = None,
) -> Estimate:
    """Bind, bundle, unbind and compare with ``item``; count comparisons off by more than alpha.

    >>> simulate_cleanup_noise(torch.ones(1, 4), torch.ones(4), 0, 0.5, samples=10).mean  # alone
    0.0
    """
    values, item = values.double(), item.double()
    signal = values[stream] @ item

    def batch(size: int) -> Tensor:
        keys = _bipolar(size, values, generator)
        bundled = (keys * values).sum(1)  # b d
        read = (bundled * keys[:, stream]) @ item
        return (read - signal).abs() > alpha * signal.abs() + ROUNDING

    return _share(batch, samples, values.numel())


def simulate_wrong_item(
    dim: int,
    num_streams: int,
    items: int,
    *,
    samples: int = 10_000,
    generator: Generator | None = None,
) -> Estimate:
    """Read one of N superposed dictionary entries through ``vsa.cleanup``; count wrong answers.

    The dictionary is drawn anew each time. Stream 0 carries its last entry, which loses ties; the
    others carry fresh vectors, independent of the dictionary.

    >>> simulate_wrong_item(64, num_streams=1, items=4, samples=10).mean
    0.0
    """
    wrong = []
    for _ in range(samples):
        dictionary = bipolar_keys(items, dim, generator=generator)
        others = (
            bipolar_keys(num_streams - 1, dim, generator=generator) if num_streams > 1 else None
        )
        values = dictionary[-1:] if others is None else torch.cat([dictionary[-1:], others])
        keys = bipolar_keys(num_streams, dim, generator=generator)
        read = (keys * values).sum(0) * keys[0]
        wrong.append(int(cleanup(read, dictionary)[0]) != items - 1)
    return _probability(sum(wrong), samples)


def simulate_relu_kernel(
    cosine: float, dim: int = 2, *, samples: int = 10_000, generator: Generator | None = None
) -> Estimate:
    """Average ReLU(w x) ReLU(w y) over Gaussian w, for unit vectors at that cosine.

    >>> simulate_relu_kernel(-1.0, samples=10).mean  # one of the two is always 0
    0.0
    """
    x, y = aligned_pair(cosine, dim)

    def batch(size: int) -> Tensor:
        w = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        return (w @ x).relu() * (w @ y).relu()

    return _mean(batch, samples, dim)


def simulate_crosstalk(
    k: Tensor,
    q: Tensor,
    own: tuple[int, int],
    alpha: float,
    *,
    samples: int = 10_000,
    generator: Generator | None = None,
) -> Estimate:
    """Bind and bundle keys and queries as FAVOR+S does; count scores off by more than alpha.

    Only row u and column n of the grid of stream keys enter a score, so only they are drawn.

    Args:
        k: (n, d), the unbound keys of row u.
        q: (m, d), the unbound queries of column n.
        own: (u, n), the stream that is read.
        alpha: The share of distortion.
        samples: How many grids of stream keys are drawn.
        generator: Where the randomness comes from.

    >>> simulate_crosstalk(torch.ones(1, 8), torch.ones(1, 8), (0, 0), 0.5, samples=10).mean
    0.0
    """
    k, q, (u, n) = k.double(), q.double(), own
    signal = k[n] @ q[u]

    def batch(size: int) -> Tensor:
        row = _bipolar(size, k, generator)  # a^(u, w) for every w
        column = _bipolar(size, q, generator)  # a^(t, n) for every t
        column[:, u] = row[:, n]  # they cross in a^(u, n)
        score = ((row * k).sum(1) * (column * q).sum(1)).sum(-1)
        return (score - signal).abs() > alpha * signal.abs() + ROUNDING

    return _share(batch, samples, k.numel() + q.numel())


def simulate_superposed_relu_kernel(
    cosine: float,
    grid: tuple[int, int],
    dim: int,
    *,
    features: int = 16,
    samples: int = 10_000,
    generator: Generator | None = None,
) -> Estimate:
    """Bind and bundle keys and queries as FAVOR+S does, then average ReLU(w k) ReLU(w q).

    A sample is a grid of stream keys together with ``features`` directions w.

    >>> simulate_superposed_relu_kernel(-1.0, (1, 1), 8, samples=10).mean < 1e-12
    True
    """
    k, q = unit_streams(dim, grid, cosine, generator)

    def batch(size: int) -> Tensor:
        row, column = _bipolar(size, k, generator), _bipolar(size, q, generator)
        column[:, 0] = row[:, 0]
        w = torch.randn(size, features, dim, generator=generator, dtype=torch.float64)
        keys, queries = (row * k).sum(1, keepdim=True), (column * q).sum(1, keepdim=True)
        products = (w @ keys.mT).relu() * (w @ queries.mT).relu()
        return products.mean(dim=(1, 2))

    return _mean(batch, samples, (features + len(k) + len(q)) * dim)


def aligned_pair(cosine: float, dim: int) -> tuple[Tensor, Tensor]:
    """Make two unit vectors with that cosine, (d,) each.

    >>> x, y = aligned_pair(0.5, 3)
    >>> float(x @ y), round(float(y.norm()), 12)
    (0.5, 1.0)
    """
    if dim < 2:
        raise ValueError(f"dim={dim} leaves no room for an angle: pass at least 2.")
    x, y = torch.zeros(2, dim, dtype=torch.float64)
    x[0], y[0], y[1] = 1.0, cosine, math.sqrt(1 - cosine**2)
    return x, y


def unit_streams(
    dim: int, grid: tuple[int, int], cosine: float, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw keys (n, d) and queries (m, d) of unit norm; the pair of stream (0, 0) has that cosine.

    >>> k, q = unit_streams(16, (2, 3), cosine=0.9)
    >>> k.shape, q.shape, round(float(k[0] @ q[0]), 6)
    (torch.Size([3, 16]), torch.Size([2, 16]), 0.9)
    """
    rows, columns = grid
    k, q = _unit(columns, dim, generator), _unit(rows, dim, generator)
    across = torch.nn.functional.normalize(q[0] - (q[0] @ k[0]) * k[0], dim=0)
    q[0] = cosine * k[0] + math.sqrt(1 - cosine**2) * across
    return k, q


def _unit(count: int, dim: int, generator: Generator | None) -> Tensor:
    drawn = gaussian_keys(count, dim, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(drawn, dim=-1)


def _bipolar(size: int, like: Tensor, generator: Generator | None) -> Tensor:
    streams, dim = like.shape
    keys = bipolar_keys(size * streams, dim, generator=generator, dtype=torch.float64)
    return keys.view(size, streams, dim)


def _batches(samples: int, elements: int) -> list[int]:
    size = max(1, ELEMENTS // elements)
    return [min(size, samples - start) for start in range(0, samples, size)]


def _share(batch: Callable[[int], Tensor], samples: int, elements: int) -> Estimate:
    """Estimate a probability from batches of true and false."""
    hits = sum(int(batch(size).sum()) for size in _batches(samples, elements))
    return _probability(hits, samples)


def _probability(hits: int, samples: int) -> Estimate:
    smooth = (hits + 0.5) / (samples + 1)  # never seen is not never: the error is not 0 then
    return Estimate(hits / samples, math.sqrt(smooth * (1 - smooth) / samples), samples)


def _mean(batch: Callable[[int], Tensor], samples: int, elements: int) -> Estimate:
    """Estimate a mean from batches of numbers."""
    drawn = torch.cat([batch(size) for size in _batches(samples, elements)])
    error = float(drawn.std()) / math.sqrt(samples)
    return Estimate(float(drawn.mean()), error, samples)
