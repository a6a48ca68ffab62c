"""Feature maps of linear attention. MIMONets, section 4 and appendices C.1, C.2.

A feature map turns the similarity of a query and a key into an explicit inner product,
``phi(q) @ phi(k)``, so that the sum over keys can be taken before any query is known. The scaling
by D^(-1/4) that makes the similarity <q, k> / sqrt(D) lives here, and nowhere else.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

# ... anything   m, n the two stream axes   t, s tokens   d head size   r features

LOWEST = -1e30  # the peak of no keys at all; finite, so that differences of peaks are numbers
CEILING = 2.0**42  # the largest feature of maps that choose their scale; see sums.reciprocal


class FeatureMap(nn.Module):
    r"""What every feature map can do; a new one needs ``num_features`` and ``forward``.

    .. math:: \phi: \mathbb{R}^D \to \mathbb{R}_+^R
    """

    num_features: int  # R, the size of what forward gives
    ceiling: float = 1.0  # the order of magnitude of the largest features in attention

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d) to (..., r), exactly as the map's equation says."""
        raise NotImplementedError

    def keys(
        self, k: Tensor, visible: Tensor | None = None, peak: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Map keys, on a scale that keeps them in the range of floating point.

        Maps that need no scale have nothing to do here or in :meth:`queries`.

        Args:
            k: (..., m, s, d).
            visible: (..., m, s), False where a key belongs to no stream's real token.
            peak: (..., 1, 1, r or 1), as this method gave it for the keys before these.

        Returns:
            The features, (..., m, s, r), times ``ceiling`` / exp(peak), and that peak, of these
            keys and those before them; None for a map that needs no scale.
        """
        return self(k), peak

    def queries(self, q: Tensor, peak: Tensor | None = None) -> Tensor:
        """Map queries of keys with this peak, up to a factor per query that normalising removes.

        Args:
            q: (..., n, t, d).
            peak: As :meth:`keys` gave it for the keys that the queries meet.
        """
        features: Tensor = self(q)
        return features


class _RandomFeatures(FeatureMap):
    """Features that read their input along random directions, which a checkpoint remembers."""

    projection: Tensor

    def __init__(self, dim: int, num_features: int, *, generator: Generator | None = None) -> None:
        super().__init__()
        self.dim, self.num_features = dim, num_features
        drawn = orthogonal_projection(num_features, dim, generator=generator)
        self.register_buffer("projection", drawn)

    @torch.no_grad()
    def redraw(self, generator: Generator | None = None) -> None:
        """Draw new directions in place; the same generator state gives the same directions."""
        drawn = orthogonal_projection(self.num_features, self.dim, generator=generator)
        self.projection.copy_(drawn)

    def project(self, x: Tensor, scale: float = 1.0) -> Tensor:
        r"""Read along the random directions: :math:`w_i^T x / D^{1/4}`, times ``scale``."""
        return self._project_rows(x, scale).view(*x.shape[:-1], self.num_features)

    def _project_rows(self, x: Tensor, scale: float) -> Tensor:
        """Project (..., d) to rows of features, (..., r) as a matrix: one product, without axes."""
        _check_dim(x, self.dim)
        weight = self.projection.to(x.dtype) * (scale * self.dim**-0.25)
        return F.linear(x.reshape(math.prod(x.shape[:-1]), self.dim), weight)

    def extra_repr(self) -> str:
        """Show the sizes when the module is printed."""
        return f"dim={self.dim}, num_features={self.num_features}"


class ReLUFeatures(_RandomFeatures):
    r"""FAVOR+ with ReLU, the map of MIMOFormer. Appendix C.2.

    .. math:: \phi_i(x) = (\mathrm{ReLU}(w_i^T x) / D^{1/4} + \epsilon) / \sqrt{R}

    Linear in the norm of x, so it is stable where the exponential is not. The small
    :math:`\epsilon` is not in the paper's equation but in every implementation: it keeps the
    normaliser above zero.

    >>> relu = ReLUFeatures(4, 6, generator=torch.Generator().manual_seed(0))
    >>> relu(torch.zeros(2, 4)).shape, bool((relu(torch.randn(2, 4)) > 0).all())
    (torch.Size([2, 6]), True)
    """

    def __init__(
        self,
        dim: int,
        num_features: int,
        *,
        generator: Generator | None = None,
        epsilon: float = 1e-3,
    ) -> None:
        super().__init__(dim, num_features, generator=generator)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d) to (..., r)."""
        scale = 1 / math.sqrt(self.num_features)  # in the weights, where it costs nothing
        rows = F.relu_(self._project_rows(x, scale))  # in place before a view: autograd would copy
        return rows.view(*x.shape[:-1], self.num_features) + self.epsilon * scale


class SoftmaxFeatures(_RandomFeatures):
    r"""FAVOR+ with positive features, unbiased for the softmax kernel. Appendix C.1.

    .. math::
        \phi_i(x) = \exp(w_i^T x / D^{1/4} - \|x\|^2 / (2 \sqrt D)) / \sqrt R,
        \qquad E[\phi(q)^T \phi(k)] = \exp(\langle q, k \rangle / \sqrt D)

    Calling the module gives exactly this, with the range that floating point has. Attention goes
    through :meth:`keys` and :meth:`queries` instead, which never under- or overflow.

    >>> features = SoftmaxFeatures(4, 20_000, generator=torch.Generator().manual_seed(0))
    >>> q, k = torch.tensor([1.0, 0.0, -0.5, 0.3]), torch.tensor([0.4, 1.0, 0.2, -0.2])
    >>> kernel = torch.exp(q @ k / 2)
    >>> torch.allclose(features(q) @ features(k), kernel, rtol=0.05)
    True
    """

    ceiling = CEILING

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d) to (..., r)."""
        return torch.exp(self.exponent(x)) / math.sqrt(self.num_features)

    def exponent(self, x: Tensor) -> Tensor:
        """Give what the exponential is taken of, (..., r)."""
        return self.project(x) - x.square().sum(-1, keepdim=True) / (2 * math.sqrt(self.dim))

    def keys(
        self, k: Tensor, visible: Tensor | None = None, peak: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        r"""Shift the exponents of each feature by their largest, over all m and tokens so far.

        .. math:: 2^{42} \, \phi_i(k_j) \, e^{-c_i}, \qquad c_i = \max_j \log \phi_i(k_j)
        """
        exponent = self.exponent(k)
        if visible is not None:
            exponent = exponent.masked_fill(~visible.unsqueeze(-1), -torch.inf)
        with torch.no_grad():  # the shift cancels, so no gradient flows through it
            highest = exponent.amax(dim=(-3, -2), keepdim=True).clamp_min(LOWEST)
            peak = highest if peak is None else torch.maximum(peak, highest)
        return torch.exp(exponent - (peak - math.log(CEILING))), peak

    def queries(self, q: Tensor, peak: Tensor | None = None) -> Tensor:
        r"""Undo the shift of the keys, and shift each query so that its largest feature is 2^42.

        .. math:: 2^{42} \, \phi_i(q) \, e^{c_i - b}, \qquad b = \max_i \, (\log \phi_i(q) + c_i)

        b is one number per query, so it cancels in the normalised answer. The normaliser over all
        keys is then at least 2^84: it holds the term in which both maxima are attained.
        """
        exponent = self.project(q)  # |q|^2 would be a part of b
        if peak is not None:
            exponent = exponent + peak
        highest = exponent.detach().amax(dim=-1, keepdim=True)
        return torch.exp(exponent - (highest - math.log(CEILING)))


class DPFP(FeatureMap):
    r"""Deterministic parameter-free projection: products of half-rectified neighbours.

    .. math::
        \phi_{(\nu - 1) 2D + i}(x) = u_i \, u_{i - \nu \bmod 2D},
        \qquad u = [\mathrm{ReLU}(x), \mathrm{ReLU}(-x)]

    Schlag et al., "Linear transformers are secretly fast weight programmers", ICML 2021, section
    5.3. Nothing is random and nothing is scaled: it has degree 2, so a scale of the keys or the
    queries cancels in the normalised answer.

    Args:
        dim: D.
        nu: How many shifts; there are 2 D nu features.

    >>> DPFP(2, nu=1)(torch.tensor([3.0, -2.0]))
    tensor([6., 0., 0., 0.])
    """

    ceiling = CEILING

    def __init__(self, dim: int, nu: int = 1) -> None:
        super().__init__()
        if dim < 1 or not 1 <= nu < 2 * dim:
            raise ValueError(
                f"DPFP of nu={nu} does not fit vectors of dimension {dim}: "
                f"take nu from 1 to {max(2 * dim - 1, 1)}; usual are 1, 2 and 3."
            )
        self.dim, self.nu, self.num_features = dim, nu, 2 * dim * nu

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d) to (..., r)."""
        _check_dim(x, self.dim)
        u = F.relu(torch.cat([x, -x], dim=-1))
        return torch.cat([u * u.roll(shift, dims=-1) for shift in range(1, self.nu + 1)], dim=-1)

    def keys(
        self, k: Tensor, visible: Tensor | None = None, peak: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Divide all keys by their largest entry and multiply by 2^21, which cancels.

        Products of four small or large numbers would leave the range of float32 otherwise.
        """
        with torch.no_grad():
            largest = k.abs().amax(dim=(-3, -2, -1), keepdim=True)
            highest = 2 * largest.clamp_min(self._smallest(k)).log()  # ... 1 1 1
            peak = highest if peak is None else torch.maximum(peak, highest)
        return self(k * (torch.exp(-peak / 2) * CEILING**0.5)), peak

    def queries(self, q: Tensor, peak: Tensor | None = None) -> Tensor:
        """Divide every query by its largest entry and multiply by 2^21, which cancels."""
        largest = q.detach().abs().amax(dim=-1, keepdim=True)
        return self.forward(q / (largest.clamp_min(self._smallest(q)) / CEILING**0.5))

    def _smallest(self, x: Tensor) -> float:
        """Give what an entry can be divided by with room to spare; smaller ones count as zero."""
        return torch.finfo(x.dtype).tiny * CEILING

    def extra_repr(self) -> str:
        """Show the sizes when the module is printed."""
        return f"dim={self.dim}, nu={self.nu}"


def orthogonal_projection(
    num_features: int, dim: int, *, generator: Generator | None = None
) -> Tensor:
    r"""Draw (r, d) directions that are orthogonal within each block of d, with Gaussian norms.

    .. math:: w_i = \chi_i \, h_i, \quad \|w_i\| \sim \chi_D, \quad H \sim \text{Haar on } O(D)

    Every :math:`w_i` is a standard Gaussian vector by itself; that those of a block are orthogonal
    lowers the variance of the kernel's estimate. Appendix C.1, after Choromanski et al.,
    "Rethinking attention with Performers", ICLR 2021.

    >>> w = orthogonal_projection(5, 3, generator=torch.Generator().manual_seed(0))
    >>> bool((w[0] @ w[1]).abs() < 1e-5), bool((w[3] @ w[4]).abs() < 1e-5)
    (True, True)
    """
    if num_features < 1 or dim < 1:
        raise ValueError(
            f"Cannot draw {num_features} directions in {dim} dimensions: both must be at least 1."
        )
    device = None if generator is None else generator.device
    blocks = -(-num_features // dim)
    gaussian = torch.randn(blocks, dim, dim, generator=generator, device=device)
    q, r = torch.linalg.qr(gaussian)
    # QR alone leaves the signs to the algorithm; fixing those of R's diagonal makes Q uniform.
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    directions = (q * signs.unsqueeze(-2)).mT.flatten(0, 1)[:num_features]
    norms = torch.randn(num_features, dim, generator=generator, device=device).norm(dim=-1)
    drawn: Tensor = directions * norms.unsqueeze(-1)
    return drawn


def _check_dim(x: Tensor, dim: int) -> None:
    if x.shape[-1] != dim:
        raise ValueError(
            f"This feature map takes vectors of dimension {dim}, but got a tensor of shape "
            f"{tuple(x.shape)}: build the map with dim={x.shape[-1]}."
        )
