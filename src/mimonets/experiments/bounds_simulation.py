"""Draw the random variables of the theorems and count. Each function returns an :class:`Estimate`.

Keys come from :mod:`mimonets.vsa`, as in the networks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from mimonets.theory.dimensionality import cutoff
from mimonets.vsa import bipolar_keys, cleanup, gaussian_keys

# b samples   s streams   d width   m, n the two stream axes
ELEMENTS = 2**16  # drawn at a time, to stay in the cache
ROUNDING = 1e-9  # a comparison that is met exactly counts as met, whatever was rounded


@dataclass(frozen=True)
class Estimate:
    """A simulated mean or probability and how sure of it we are."""

    mean: float
    standard_error: float
    samples: int


@dataclass(frozen=True)
class Draws:
    """How many samples are drawn, and from which generator: its state decides the numbers."""

    samples: int
    generator: Generator | None = None

    def probability(self, batch: Callable[[int], Tensor], elements: int) -> Estimate:
        """Estimate a probability from batches of true and false; a sample draws ``elements``."""
        hits = sum(int(batch(size).sum()) for size in self._batches(elements))
        smooth = (hits + 0.5) / (self.samples + 1)  # never seen is not never: the error is not 0
        error = math.sqrt(smooth * (1 - smooth) / self.samples)
        return Estimate(hits / self.samples, error, self.samples)

    def mean(self, batch: Callable[[int], Tensor], elements: int) -> Estimate:
        """Estimate a mean from batches of numbers."""
        drawn = torch.cat([batch(size) for size in self._batches(elements)])
        error = float(drawn.std()) / math.sqrt(self.samples)
        return Estimate(float(drawn.mean()), error, self.samples)

    def signs(self, size: int, like: Tensor) -> Tensor:
        """Draw bipolar keys for tensors of that shape (s, d): (size, s, d)."""
        streams, dim = like.shape
        keys = bipolar_keys(size * streams, dim, generator=self.generator, dtype=torch.float64)
        return keys.view(size, streams, dim)

    def unit_vectors(self, count: int, dim: int) -> Tensor:
        """Draw directions uniformly, (count, dim)."""
        drawn = gaussian_keys(count, dim, generator=self.generator, dtype=torch.float64)
        return normalize(drawn, dim=-1)

    def _batches(self, elements: int) -> list[int]:
        size = max(1, ELEMENTS // elements)
        return [min(size, self.samples - start) for start in range(0, self.samples, size)]


def simulate_interference(
    draws: Draws,
    dim: int,
    angle: float = 70.0,
    *,
    num_streams: int = 2,
    keys: Callable[..., Tensor] = bipolar_keys,
) -> Estimate:
    """Count how often any two of N fresh keys are within ``angle``, on either side.

    >>> simulate_interference(Draws(100), 1).mean  # in one dimension any two are parallel
    1.0
    """

    def batch(size: int) -> Tensor:
        drawn = keys(size * num_streams, dim, generator=draws.generator, dtype=torch.float64)
        unit = normalize(drawn, dim=-1).view(size, num_streams, dim)
        cosine = (unit @ unit.mT).abs()
        # The diagonal does not count.
        cosine.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
        return cosine.amax(dim=(-2, -1)) >= cutoff(angle) - ROUNDING

    return draws.probability(batch, num_streams * dim)


def simulate_sum(draws: Draws, t: float, limits: Sequence[float]) -> Estimate:
    """Count how often a sum of fair signs, each times its limit, reaches ``t`` on either side.

    >>> simulate_sum(Draws(1000), 2.0, [1.0, 1.0]).mean > 0.4  # one half
    True
    """
    weights = torch.tensor([limits], dtype=torch.float64)

    def batch(size: int) -> Tensor:
        return (draws.signs(size, weights) @ weights[0]).abs() >= t - ROUNDING

    return draws.probability(batch, weights.numel())


def simulate_hadamard_norm(
    draws: Draws, dim: int, beta: float | None = None, direction: Tensor | None = None
) -> Estimate:
    """Measure the mean square norm of X * Y, or how often it exceeds (1 + beta) / D.

    X is the unit vector ``direction``, or drawn uniformly, as Y always is.

    >>> simulate_hadamard_norm(Draws(10), 1).mean  # both are +1 or -1
    1.0
    """

    def batch(size: int) -> Tensor:
        x = draws.unit_vectors(size, dim) if direction is None else direction.double()
        return (x * draws.unit_vectors(size, dim)).square().sum(-1)

    if beta is None:
        return draws.mean(batch, dim)
    return draws.probability(lambda size: batch(size) > (1 + beta) / dim + ROUNDING, dim)


def simulate_cleanup_noise(
    draws: Draws, values: Tensor, item: Tensor, stream: int, alpha: float
) -> Estimate:
    """Bind, bundle, unbind and compare with ``item``; count comparisons off by more than alpha.

    >>> simulate_cleanup_noise(Draws(10), torch.ones(1, 4), torch.ones(4), 0, 0.5).mean  # alone
    0.0
    """
    values, item = values.double(), item.double()
    signal = values[stream] @ item

    def batch(size: int) -> Tensor:
        keys = draws.signs(size, values)
        bundled = (keys * values).sum(1)  # b d
        read = (bundled * keys[:, stream]) @ item
        return (read - signal).abs() > alpha * signal.abs() + ROUNDING

    return draws.probability(batch, values.numel())


def simulate_wrong_item(draws: Draws, dim: int, num_streams: int, items: int) -> Estimate:
    """Read one of N superposed dictionary entries through ``vsa.cleanup``; count wrong answers.

    The dictionary is drawn anew each time. Stream 0 carries its last entry, which loses ties; the
    others carry fresh vectors, independent of the dictionary.

    >>> simulate_wrong_item(Draws(10), 64, num_streams=1, items=4).mean
    0.0
    """

    def is_wrong(_: int) -> Tensor:
        dictionary = bipolar_keys(items, dim, generator=draws.generator)
        values = dictionary[-1:]
        if num_streams > 1:
            others = bipolar_keys(num_streams - 1, dim, generator=draws.generator)
            values = torch.cat([values, others])
        keys = bipolar_keys(num_streams, dim, generator=draws.generator)
        read = (keys * values).sum(0) * keys[0]
        return cleanup(read, dictionary)[0] != items - 1

    return draws.probability(is_wrong, ELEMENTS)  # one at a time


def simulate_relu_kernel(draws: Draws, cosine: float, dim: int = 2) -> Estimate:
    """Average ReLU(w x) ReLU(w y) over Gaussian w, for unit vectors at that cosine.

    >>> simulate_relu_kernel(Draws(10), -1.0).mean  # one of the two is always 0
    0.0
    """
    x, y = aligned_pair(cosine, dim)

    def batch(size: int) -> Tensor:
        w = torch.randn(size, dim, generator=draws.generator, dtype=torch.float64)
        return (w @ x).relu() * (w @ y).relu()

    return draws.mean(batch, dim)


def simulate_crosstalk(
    draws: Draws, k: Tensor, q: Tensor, own: tuple[int, int], alpha: float
) -> Estimate:
    """Bind and bundle keys and queries as FAVOR+S does; count scores off by more than alpha.

    Only row u and column n of the grid of stream keys enter a score, so only they are drawn.

    Args:
        draws: How many grids of stream keys, and from where.
        k: (n, d), the unbound keys of row u.
        q: (m, d), the unbound queries of column n.
        own: (u, n), the stream that is read.
        alpha: The share of distortion.

    >>> simulate_crosstalk(Draws(10), torch.ones(1, 8), torch.ones(1, 8), (0, 0), 0.5).mean
    0.0
    """
    k, q, (u, n) = k.double(), q.double(), own
    signal = k[n] @ q[u]

    def batch(size: int) -> Tensor:
        row = draws.signs(size, k)  # a^(u, w) for every w
        column = draws.signs(size, q)  # a^(t, n) for every t
        column[:, u] = row[:, n]  # they cross in a^(u, n)
        score = ((row * k).sum(1) * (column * q).sum(1)).sum(-1)
        return (score - signal).abs() > alpha * signal.abs() + ROUNDING

    return draws.probability(batch, k.numel() + q.numel())


def simulate_superposed_relu_kernel(
    draws: Draws, cosine: float, grid: tuple[int, int], dim: int, features: int = 16
) -> Estimate:
    """Bind and bundle keys and queries as FAVOR+S does, then average ReLU(w k) ReLU(w q).

    A sample is a grid of stream keys together with ``features`` directions w.

    >>> simulate_superposed_relu_kernel(Draws(10), -1.0, (1, 1), 8).mean < 1e-12
    True
    """
    k, q = unit_streams(draws, dim, grid, cosine)

    def batch(size: int) -> Tensor:
        row, column = draws.signs(size, k), draws.signs(size, q)
        column[:, 0] = row[:, 0]
        w = torch.randn(size, features, dim, generator=draws.generator, dtype=torch.float64)
        keys, queries = (row * k).sum(1, keepdim=True), (column * q).sum(1, keepdim=True)
        products = (w @ keys.mT).relu() * (w @ queries.mT).relu()
        return products.mean(dim=(1, 2))

    return draws.mean(batch, (features + len(k) + len(q)) * dim)


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
    draws: Draws, dim: int, grid: tuple[int, int], cosine: float
) -> tuple[Tensor, Tensor]:
    """Draw keys (n, d) and queries (m, d) of unit norm; the pair of stream (0, 0) has that cosine.

    >>> k, q = unit_streams(Draws(1), 16, (2, 3), cosine=0.9)
    >>> k.shape, q.shape, round(float(k[0] @ q[0]), 6)
    (torch.Size([3, 16]), torch.Size([2, 16]), 0.9)
    """
    rows, columns = grid
    k, q = draws.unit_vectors(columns, dim), draws.unit_vectors(rows, dim)
    across = normalize(q[0] - (q[0] @ k[0]) * k[0], dim=0)
    q[0] = cosine * k[0] + math.sqrt(1 - cosine**2) * across
    return k, q
